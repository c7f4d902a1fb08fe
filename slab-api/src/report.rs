//! The statistics of the whole process, as text (as the kernel's /proc files print
//! them) and as JSON. Nothing here allocates.
//!
//! ```text
//!   registry: every cache ─▶ CacheInfo ─▶ slabinfo 2.1, queued objects, counters ┐
//!   page_alloc::stats ─▶ ZoneStats ─────▶ buddyinfo, pagetypeinfo                ├▶ text
//!   large, misuse ──────────────────────▶ summary                                ┘ or JSON
//! ```

#![deny(unsafe_code)]

use core::fmt::{self, Write};

use page_alloc::stats::{self, ZoneStats};
use page_alloc::text::FdWriter;
use page_alloc::{Migratetype, PAGE_SIZE, os, pcp};

use crate::cache::CacheInfo;
use crate::registry::{self, CacheHead};
use crate::{large, misuse, percpu};

/// Sums over all caches and pages.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct Totals {
    /// Bytes in objects and runs that users hold.
    pub in_use: usize,
    /// Bytes of free objects in queues.
    pub queued: usize,
    /// Bytes of slabs.
    pub slabs: usize,
    /// Bytes of large objects.
    pub large: usize,
    /// Heap bytes committed.
    pub mapped: usize,
    /// Committed heap bytes that are free pages.
    pub free: usize,
}

/// Adds everything up; exact when no other thread allocates.
pub fn totals() -> Totals {
    let mut totals = Totals {
        large: large::live_bytes() as usize,
        mapped: page_alloc::committed_bytes(),
        ..Totals::default()
    };
    each_cache(|_, info| {
        totals.in_use += info.in_use * info.stride;
        totals.queued += info.queued * info.stride;
        totals.slabs += info.pages() * PAGE_SIZE;
    });
    totals.in_use += totals.large;
    for zone in (0..).map_while(stats::zone_stats) {
        totals.free += zone.free_pages * PAGE_SIZE;
    }
    totals
}

fn each_cache(mut f: impl FnMut(&CacheHead, &CacheInfo)) {
    // Caches are destroyed under this lock: none goes while it is looked at.
    let _slots = registry::slots_lock();
    registry::for_each(|head| f(head, &(head.backend.info)(head)));
}

/// A cache's name as a column of its own: one word, whatever the cache is called.
struct Word<'a>(&'a str);

impl fmt::Display for Word<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut width = 0;
        for c in self.0.chars() {
            let odd = c.is_whitespace() || c.is_control();
            f.write_char(if odd { '_' } else { c })?;
            width += 1;
        }
        for _ in width..17 {
            f.write_char(' ')?;
        }
        Ok(())
    }
}

/// What is between the quotes of a JSON string.
struct Escaped<'a>(&'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            match c {
                '"' | '\\' => write!(f, "\\{c}")?,
                c if c.is_control() => write!(f, "\\u{:04x}", c as u32)?,
                c => f.write_char(c)?,
            }
        }
        Ok(())
    }
}

/// The name of the backend whose caches there are; `mixed` for several.
pub fn backend_in_use() -> &'static str {
    let mut found = "";
    registry::for_each(|head| {
        found = match found {
            "" => head.backend.name,
            name if name == head.backend.name => name,
            _ => "mixed",
        };
    });
    if found.is_empty() { "none" } else { found }
}

/// [`write_text`] to a file descriptor: 2 is standard error.
pub fn write_all(fd: i32) {
    let _ = write_text(&mut FdWriter::new(fd), backend_in_use());
}

/// [`write_json`] to a file descriptor.
pub fn write_all_json(fd: i32) {
    let _ = write_json(&mut FdWriter::new(fd), backend_in_use(), std::process::id());
}

/// Writes slabinfo, version 2.1, and below it what slabinfo has no column for:
/// objects in queues and the backends' own counters.
///
/// # Errors
/// Those of the writer.
pub fn write_slabinfo(out: &mut dyn Write) -> fmt::Result {
    out.write_str(
        "slabinfo - version: 2.1\n\
         # name            <active_objs> <num_objs> <objsize> <objperslab> <pagesperslab> \
         : tunables <limit> <batchcount> <sharedfactor> \
         : slabdata <active_slabs> <num_slabs> <sharedavail>\n",
    )?;
    let mut result = Ok(());
    each_cache(|head, info| {
        let (limit, batch, shared) = info.tunables;
        let line = writeln!(
            out,
            "{} {:6} {:6} {:6} {:4} {:4} : tunables {limit:4} {batch:4} {shared:4} \
             : slabdata {:6} {:6} {:6}",
            Word(head.name()),
            info.in_use,
            info.objects(),
            info.stride,
            info.objects_per_slab,
            1usize << info.slab_order,
            info.active_slabs,
            info.slabs,
            0,
        );
        result = result.and(line);
    });
    result?;
    out.write_str("\n# name            queued objects, counters\n")?;
    each_cache(|head, info| {
        result = result.and(write_counters(out, head, info));
    });
    result
}

fn write_counters(out: &mut dyn Write, head: &CacheHead, info: &CacheInfo) -> fmt::Result {
    write!(out, "{} queued {}", Word(head.name()), info.queued)?;
    for (name, value) in info.counters {
        if !name.is_empty() && value != 0 {
            write!(out, " {name} {value}")?;
        }
    }
    out.write_char('\n')
}

/// Writes everything: slabinfo, buddyinfo, pagetypeinfo and a summary line.
///
/// # Errors
/// Those of the writer.
pub fn write_text(out: &mut dyn Write, backend: &str) -> fmt::Result {
    write_slabinfo(out)?;
    out.write_char('\n')?;
    stats::write_buddyinfo(out)?;
    out.write_char('\n')?;
    stats::write_pagetypeinfo(out)?;
    let p = percpu::counts();
    writeln!(
        out,
        "\nslots: {}: unavailable {}, aborts {}, bypasses {}, refills {}, flushes {}, \
         steals {}, trims {}",
        percpu::mode(),
        p.unavailable,
        p.aborts,
        p.bypasses,
        p.refills,
        p.flushes,
        p.steals,
        p.trims,
    )?;
    let t = totals();
    let (in_place, moved, copied) = large::realloc_counts();
    writeln!(
        out,
        "slabmalloc: backend {backend}: in use {} KiB ({} KiB large), queued {} KiB, \
         slabs {} KiB, committed {} KiB, free {} KiB; large reallocs in place {in_place}, \
         moved {moved}, copied {copied}; misuses {}",
        t.in_use >> 10,
        t.large >> 10,
        t.queued >> 10,
        t.slabs >> 10,
        t.mapped >> 10,
        t.free >> 10,
        misuse::detected(),
    )
}

/// Writes everything as one JSON object.
///
/// # Errors
/// Those of the writer.
pub fn write_json(out: &mut dyn Write, backend: &str, pid: u32) -> fmt::Result {
    let t = totals();
    let p = percpu::counts();
    let (in_place, moved, copied) = large::realloc_counts();
    write!(
        out,
        "{{\"schema_version\":1,\"backend\":\"{}\",\"pid\":{pid},\
         \"slots\":{{\"mode\":\"{}\",\"unavailable\":{},\"aborts\":{},\"bypasses\":{},\
         \"refills\":{},\"flushes\":{},\"steals\":{},\"trims\":{}}},\
         \"in_use_bytes\":{},\"queued_bytes\":{},\"slab_bytes\":{},\"large_bytes\":{},\
         \"mapped_bytes\":{},\"free_bytes\":{},\"misuses\":{},\
         \"cached_pages\":{},\"realloc\":{{\"in_place\":{in_place},\"moved\":{moved},\
         \"copied\":{copied}}},\"refusals\":{{\"reserve\":{},\"commit\":{},\"advise\":{},\
         \"remap\":{}}},\"caches\":[",
        Escaped(backend),
        percpu::mode(),
        p.unavailable,
        p.aborts,
        p.bypasses,
        p.refills,
        p.flushes,
        p.steals,
        p.trims,
        t.in_use,
        t.queued,
        t.slabs,
        t.large,
        t.mapped,
        t.free,
        misuse::detected(),
        pcp::cached_pages(),
        os::refusals(os::Call::Reserve),
        os::refusals(os::Call::Commit),
        os::refusals(os::Call::Advise),
        os::refusals(os::Call::Remap),
    )?;
    let mut result = Ok(());
    let mut first = true;
    each_cache(|head, info| {
        let comma = if core::mem::take(&mut first) { "" } else { "," };
        result = result
            .and_then(|()| out.write_str(comma))
            .and_then(|()| write_json_cache(out, head, info));
    });
    result?;
    out.write_str("],\"zones\":[")?;
    for (n, zone) in (0..).map_while(stats::zone_stats).enumerate() {
        out.write_str(if n == 0 { "" } else { "," })?;
        write_json_zone(out, &zone)?;
    }
    out.write_str("]}\n")
}

/// What buddyinfo and pagetypeinfo say of a zone.
fn write_json_zone(out: &mut dyn Write, zone: &ZoneStats) -> fmt::Result {
    let c = zone.counters;
    write!(
        out,
        "{{\"node\":{},\"managed_pages\":{},\"free_pages\":{},\"dirty_pages\":{},\
         \"free_blocks\":{},\"mixed_blocks\":{},\"claims_whole\":{},\"claims_partial\":{},\
         \"steals\":{},\"mixing_events\":{},\"growths\":{},\"purged_pages\":{},\
         \"failures\":{},\"free_chunks\":[",
        zone.node,
        zone.managed_pages,
        zone.free_pages,
        zone.dirty_pages,
        zone.free_blocks,
        zone.mixed_blocks,
        c.claims_whole,
        c.claims_partial,
        c.steals,
        c.mixing_events,
        c.growths,
        c.purged_pages,
        c.failures,
    )?;
    for order in 0..zone.chunks.len() {
        let comma = if order == 0 { "" } else { "," };
        write!(out, "{comma}{}", zone.chunks_of_order(order))?;
    }
    out.write_str("],\"types\":[")?;
    for (n, mt) in Migratetype::ALL.into_iter().enumerate() {
        let comma = if n == 0 { "" } else { "," };
        write!(
            out,
            "{comma}{{\"name\":\"{}\",\"blocks\":{},\"used_pages\":{},\"free_chunks\":[",
            Escaped(mt.name()),
            zone.blocks[mt as usize],
            zone.used[mt as usize],
        )?;
        for (order, row) in zone.chunks.iter().enumerate() {
            let comma = if order == 0 { "" } else { "," };
            write!(out, "{comma}{}", row[mt as usize])?;
        }
        out.write_str("]}")?;
    }
    out.write_str("]}")
}

fn write_json_cache(out: &mut dyn Write, head: &CacheHead, info: &CacheInfo) -> fmt::Result {
    let (limit, batch, shared) = info.tunables;
    write!(
        out,
        "{{\"name\":\"{}\",\"backend\":\"{}\",\"id\":{},\"size\":{},\"stride\":{},\"objects_per_slab\":{},\
         \"slab_order\":{},\"slabs\":{},\"active_slabs\":{},\"in_use\":{},\"queued\":{},\
         \"limit\":{limit},\"batchcount\":{batch},\"shared\":{shared},\
         \"counters\":{{",
        Escaped(head.name()),
        Escaped(head.backend.name),
        head.id,
        info.size,
        info.stride,
        info.objects_per_slab,
        info.slab_order,
        info.slabs,
        info.active_slabs,
        info.in_use,
        info.queued,
    )?;
    let named = info.counters.iter().filter(|(name, _)| !name.is_empty());
    for (n, (name, value)) in named.enumerate() {
        write!(out, "{}\"{name}\":{value}", if n == 0 { "" } else { "," })?;
    }
    out.write_str("}}")
}
