//! The heap's figures in the shapes that C programs know.

use core::fmt::Write;

use page_alloc::text::FdWriter;
use slab_api::report;

use crate::dispatch::Choice;

fn name(choice: Choice) -> &'static str {
    match choice {
        Choice::Unified => "unified",
        Choice::Slub => "slub",
        Choice::Classic => "slab",
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

/// The XML of `malloc_info`: glibc's outline, with this allocator's totals.
pub fn xml(out: &mut impl Write) {
    let t = report::totals();
    let _ = write!(
        out,
        "<malloc version=\"1\">\n<heap nr=\"0\">\n<sizes>\n</sizes>\n\
         <total type=\"fast\" count=\"0\" size=\"{}\"/>\n\
         <total type=\"rest\" count=\"0\" size=\"{}\"/>\n\
         <system type=\"current\" size=\"{mapped}\"/>\n<system type=\"max\" size=\"{mapped}\"/>\n\
         <aspace type=\"total\" size=\"{mapped}\"/>\n\
         <aspace type=\"mprotect\" size=\"{mapped}\"/>\n</heap>\n\
         <total type=\"fast\" count=\"0\" size=\"{}\"/>\n\
         <total type=\"rest\" count=\"0\" size=\"{}\"/>\n\
         <total type=\"mmap\" count=\"0\" size=\"{}\"/>\n\
         <system type=\"current\" size=\"{mapped}\"/>\n<system type=\"max\" size=\"{mapped}\"/>\n\
         <aspace type=\"total\" size=\"{mapped}\"/>\n\
         <aspace type=\"mprotect\" size=\"{mapped}\"/>\n</malloc>\n",
        t.queued,
        t.free,
        t.queued,
        t.free,
        t.large,
        mapped = t.mapped,
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
