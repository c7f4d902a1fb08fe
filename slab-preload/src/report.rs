//! The heap's figures in the shapes that C programs know.

use core::fmt::{self, Write};

use page_alloc::text::FdWriter;
use page_alloc::{ORDERS, PAGE_SIZE, stats};
use slab_api::report;

use crate::backend::{Debugged, Installed as _};
use crate::dispatch::{Choice, with_backend};

fn name(choice: Choice) -> &'static str {
    match choice {
        Choice::Unified => "unified",
        Choice::Slub => "slub",
        Choice::Classic => "slab",
        Choice::UnifiedV4 => "unified:v4",
    }
}

/// glibc's totals: the arena is what is committed, `hblkhd` the large objects.
pub fn mallinfo2() -> libc::mallinfo2 {
    let totals = report::totals();
    libc::mallinfo2 {
        arena: totals.mapped,
        ordblks: 0,
        smblks: 0,
        hblks: 0,
        hblkhd: totals.large,
        usmblks: 0,
        fsmblks: totals.queued,
        uordblks: totals.in_use,
        fordblks: totals.mapped.saturating_sub(totals.in_use),
        keepcost: totals.free,
    }
}

/// The XML of `malloc_info`: glibc's outline, where `fast` are objects in queues, and the sizes are
/// those of free runs of pages.
pub fn xml(out: &mut impl Write) {
    let _ = write_xml(out);
}

fn write_xml(out: &mut impl Write) -> fmt::Result {
    let t = report::totals();
    out.write_str("<malloc version=\"1\">\n<heap nr=\"0\">\n<sizes>\n")?;
    let mut free_runs = 0;
    for zone in (0..).map_while(stats::zone_stats) {
        for order in 0..ORDERS {
            let (bytes, count) = (PAGE_SIZE << order, zone.chunks_of_order(order));
            free_runs += count;
            if count > 0 {
                let total = bytes * count;
                writeln!(
                    out,
                    "  <size from=\"{bytes}\" to=\"{bytes}\" total=\"{total}\" count=\"{count}\"/>"
                )?;
            }
        }
    }
    out.write_str("</sizes>\n")?;
    // glibc prints the same lines for each heap and for all together.
    for (large, end) in [(None, "</heap>"), (Some(t.large), "</malloc>")] {
        write!(
            out,
            "<total type=\"fast\" count=\"0\" size=\"{}\"/>\n\
             <total type=\"rest\" count=\"{free_runs}\" size=\"{}\"/>\n",
            t.queued, t.free
        )?;
        if let Some(large) = large {
            writeln!(out, "<total type=\"mmap\" count=\"0\" size=\"{large}\"/>")?;
        }
        write!(
            out,
            "<system type=\"current\" size=\"{mapped}\"/>\n\
             <system type=\"max\" size=\"{mapped}\"/>\n\
             <aspace type=\"total\" size=\"{mapped}\"/>\n\
             <aspace type=\"mprotect\" size=\"{mapped}\"/>\n{end}\n",
            mapped = t.mapped
        )?;
    }
    Ok(())
}

/// The few lines of glibc's `malloc_stats`.
pub fn summary(fd: i32) {
    let t = report::totals();
    let _ = write!(
        FdWriter::new(fd),
        "Arena 0:\nsystem bytes     = {mapped:>10}\nin use bytes     = {in_use:>10}\n\
         Total (incl. large blocks):\nsystem bytes     = {mapped:>10}\n\
         in use bytes     = {in_use:>10}\nlarge bytes      = {large:>10}\n\
         queued bytes     = {queued:>10}\n",
        mapped = t.mapped,
        in_use = t.in_use,
        large = t.large,
        queued = t.queued,
    );
}

/// Everything as text: slabinfo, buddyinfo, pagetypeinfo and a summary line.
pub fn text(fd: i32, choice: Choice) {
    let _ = report::write_text(&mut FdWriter::new(fd), name(choice));
}

/// Everything as JSON.
pub fn json(fd: i32, choice: Choice) {
    let _ = report::write_json(&mut FdWriter::new(fd), name(choice), std::process::id());
}

/// Who allocated what is in use.
pub fn leaks(fd: i32) {
    let mut out = FdWriter::new(fd);
    let _ = with_backend!(B => Debugged::<B>::heap().write_leaks(&mut out));
}
