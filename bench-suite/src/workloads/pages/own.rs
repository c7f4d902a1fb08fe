//! page-alloc, with placement by migratetype and without.

use super::held::{OwnCounters, PageBackend};
use super::owner::Owner;
use page_alloc::{BlockRange, Migratetype, Order, OwnerId, PageOwner, PageRef, config, stats};
use std::ptr::NonNull;
use std::sync::OnceLock;

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

/// A workload's owner as page-alloc's contract has it.
struct Registered {
    owner: &'static dyn Owner<PageRef>,
    id: OnceLock<OwnerId>,
}

impl PageOwner for Registered {
    fn shrink_block(&self, block: BlockRange) -> usize {
        let Some(id) = self.id.get() else { return 0 };
        let heads: Vec<PageRef> = block.pages_of(*id).collect();
        self.owner.shrink_block(&heads)
    }

    fn shrink(&self, pages: usize) -> usize {
        self.owner.shrink(pages)
    }

    fn relocate(&self, old: PageRef, new: PageRef) -> bool {
        // SAFETY: page-alloc hands over a fresh chunk of the same order.
        unsafe { self.owner.relocate(old, new) }
    }
}

fn register(owner: &'static dyn Owner<PageRef>) -> Result<OwnerId, String> {
    // Owners are registered for the life of the process.
    let registered: &'static Registered = Box::leak(Box::new(Registered {
        owner,
        id: OnceLock::new(),
    }));
    let id = page_alloc::owner::register(registered).map_err(|e| e.to_string())?;
    Ok(*registered.id.get_or_init(|| id))
}

/// Both backends are the same code: only the setting differs.
macro_rules! page_alloc_backend {
    ($type:ident, $name:literal, $placement:literal) => {
        // SAFETY: page-alloc hands out each chunk once until it is freed.
        unsafe impl PageBackend for $type {
            const NAME: &'static str = $name;
            const RECLAIMS: bool = true;
            type Page = PageRef;
            type Owner = OwnerId;

            fn create(bytes: usize) -> Result<Self, String> {
                configure(bytes, $placement);
                Ok(Self)
            }

            fn register(&self, owner: &'static dyn Owner<PageRef>) -> Result<OwnerId, String> {
                register(owner)
            }

            #[inline]
            fn get(&self, order: Order, migratetype: Migratetype) -> Option<PageRef> {
                page_alloc::alloc_pages(order, migratetype)
            }

            #[inline]
            fn get_owned(
                &self,
                owner: OwnerId,
                order: Order,
                migratetype: Migratetype,
            ) -> Option<PageRef> {
                owner.alloc_pages(order, migratetype)
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
