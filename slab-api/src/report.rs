//! The statistics of the whole process, as text (as the kernel's /proc files print
//! them) and as JSON. Nothing here allocates.

#![deny(unsafe_code)]

use core::fmt::{self, Write};

use page_alloc::{PAGE_SIZE, stats};

use crate::cache::CacheInfo;
use crate::registry::{self, CacheHead};
use crate::{large, misuse};

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
        totals.slabs += info.slabs * (PAGE_SIZE << info.slab_order);
    });
    totals.in_use += totals.large;
    for zone in (0..).map_while(stats::zone_stats) {
        totals.free += zone.free_pages * PAGE_SIZE;
    }
    totals
}

fn each_cache(mut f: impl FnMut(&CacheHead, &CacheInfo)) {
    registry::for_each(|head| f(head, &(head.backend.info)(head)));
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
            "{:<17} {:6} {:6} {:6} {:4} {:4} : tunables {limit:4} {batch:4} {shared:4} \
             : slabdata {:6} {:6} {:6}",
            head.name(),
            info.in_use,
            info.slabs * info.objects_per_slab,
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
    write!(out, "{:<17} queued {}", head.name(), info.queued)?;
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
    let t = totals();
    let (in_place, moved, copied) = large::realloc_counts();
    writeln!(
        out,
        "\nslabmalloc: backend {backend}: in use {} KiB ({} KiB large), queued {} KiB, \
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
    write!(
        out,
        "{{\"schema_version\":1,\"backend\":\"{backend}\",\"pid\":{pid},\
         \"in_use_bytes\":{},\"queued_bytes\":{},\"slab_bytes\":{},\"large_bytes\":{},\
         \"mapped_bytes\":{},\"free_bytes\":{},\"misuses\":{},\"caches\":[",
        t.in_use,
        t.queued,
        t.slabs,
        t.large,
        t.mapped,
        t.free,
        misuse::detected(),
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
        let c = zone.counters;
        write!(
            out,
            "{}{{\"node\":{},\"managed_pages\":{},\"free_pages\":{},\"dirty_pages\":{},\
             \"free_blocks\":{},\"mixed_blocks\":{},\"claims_whole\":{},\"claims_partial\":{},\
             \"steals\":{},\"mixing_events\":{},\"growths\":{},\"purged_pages\":{}}}",
            if n == 0 { "" } else { "," },
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
        )?;
    }
    out.write_str("]}\n")
}

fn write_json_cache(out: &mut dyn Write, head: &CacheHead, info: &CacheInfo) -> fmt::Result {
    out.write_str("{\"name\":\"")?;
    for c in head.name().chars() {
        match c {
            '"' | '\\' => write!(out, "\\{c}")?,
            c if c.is_control() => write!(out, "\\u{:04x}", c as u32)?,
            c => out.write_char(c)?,
        }
    }
    write!(
        out,
        "\",\"backend\":\"{}\",\"size\":{},\"stride\":{},\"objects_per_slab\":{},\
         \"slab_order\":{},\"slabs\":{},\"active_slabs\":{},\"in_use\":{},\"queued\":{},\
         \"counters\":{{",
        head.backend.name,
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
