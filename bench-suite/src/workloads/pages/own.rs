//! page-alloc, with placement by migratetype and without.

use super::held::{OwnCounters, PageBackend};
use super::owner::Owner;
use page_alloc::{Migratetype, Order, PageRef, config, stats};
use std::ptr::NonNull;

/// Page-alloc as it is: pages placed by migratetype ("Modified").
pub struct Placement;

/// Page-alloc as a plain buddy allocator ("Standard").
pub struct Plain;

fn configure(bytes: usize, placement: bool) {
    config::set_arena_max(bytes);
    config::set_purge_ms(None);
    config::set_placement(placement);
}

fn counters() -> OwnCounters {
    let mut sum = OwnCounters::default();
    for zone in (0..).map_while(stats::zone_stats) {
        let counters = zone.counters;
        sum.mixing_events += counters.mixing_events;
        sum.steals += counters.steals;
        sum.claims += counters.claims_whole + counters.claims_partial;
    }
    sum
}

/// Both backends are the same code: only the setting differs.
macro_rules! page_alloc_backend {
    ($type:ident, $name:literal, $placement:literal) => {
        // SAFETY: page-alloc hands out each chunk once until it is freed.
        unsafe impl PageBackend for $type {
            const NAME: &'static str = $name;
            const RECLAIMS: bool = false;
            type Page = PageRef;
            type Owner = ();

            fn create(bytes: usize) -> Result<Self, String> {
                configure(bytes, $placement);
                Ok(Self)
            }

            fn register(&self, _: &'static dyn Owner<PageRef>) -> Result<(), String> {
                Ok(())
            }

            #[inline]
            fn get(&self, order: Order, migratetype: Migratetype) -> Option<PageRef> {
                page_alloc::alloc_pages(order, migratetype)
            }

            #[inline]
            fn get_owned(&self, (): (), order: Order, migratetype: Migratetype) -> Option<PageRef> {
                page_alloc::alloc_pages(order, migratetype)
            }

            #[inline]
            unsafe fn put(&self, page: PageRef, _: Order) {
                if let Err(error) = page_alloc::free_pages(page) {
                    crate::workloads::die(&format!("{}: {error}", Self::NAME));
                }
            }

            #[inline]
            fn address(&self, page: PageRef) -> NonNull<u8> {
                NonNull::new(page.address())
                    .unwrap_or_else(|| crate::workloads::die("page-alloc: a page at address 0"))
            }

            fn counters(&self) -> OwnCounters {
                counters()
            }
        }
    };
}

page_alloc_backend!(Placement, "placement", true);
page_alloc_backend!(Plain, "plain", false);
