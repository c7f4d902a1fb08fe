//! The vocabulary: pages, orders, migratetypes.

/// log2 of [`PAGE_SIZE`].
pub const PAGE_SHIFT: usize = 12;
/// The allocator's page: the unit of the page map and of orders, in bytes.
///
/// A compile-time unit so that every address computation is a constant shift;
/// the *kernel's* page size, which may be larger, is read at run time
/// ([`crate::os::page_size`]) and rules what is committed and given back.
pub const PAGE_SIZE: usize = 1 << PAGE_SHIFT;
/// The order of a pageblock: 2 MiB, the unit of placement and of huge pages.
pub const PAGEBLOCK_ORDER: u8 = 9;
/// Pages in a pageblock.
pub const PAGEBLOCK_PAGES: usize = 1 << PAGEBLOCK_ORDER;
/// Bytes in a pageblock.
pub const PAGEBLOCK_SIZE: usize = PAGE_SIZE << PAGEBLOCK_ORDER;
/// The largest buddy order: 2^18 pages, 1 GiB.
pub const MAX_ORDER: u8 = 18;
/// Number of orders, 0 to [`MAX_ORDER`].
pub const ORDERS: usize = MAX_ORDER as usize + 1;
/// log2 of [`GRANULE`].
pub const GRANULE_SHIFT: usize = 4;
/// The smallest unit that an object can start on, in bytes: malloc's alignment.
pub const GRANULE: usize = 1 << GRANULE_SHIFT;

/// A power-of-two run: 2^order pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Order(u8);

impl Order {
    /// One page.
    pub const ZERO: Self = Self(0);
    /// One pageblock.
    pub const PAGEBLOCK: Self = Self(PAGEBLOCK_ORDER);
    /// The largest.
    pub const MAX: Self = Self(MAX_ORDER);

    /// The order, or `None` above [`MAX_ORDER`].
    pub const fn new(order: u8) -> Option<Self> {
        if order <= MAX_ORDER {
            Some(Self(order))
        } else {
            None
        }
    }

    /// The smallest order that holds so many pages; `None` above the maximum.
    pub const fn for_pages(pages: usize) -> Option<Self> {
        if pages == 0 || pages > 1 << MAX_ORDER {
            return None;
        }
        Some(Self(pages.next_power_of_two().trailing_zeros() as u8))
    }

    /// As a number.
    pub const fn get(self) -> u8 {
        self.0
    }

    /// Number of pages.
    pub const fn pages(self) -> usize {
        1 << self.0
    }

    /// Number of bytes.
    pub const fn bytes(self) -> usize {
        PAGE_SIZE << self.0
    }
}

/// What the owner of a page promises about moving it or giving it back.
///
/// The first three are the kernel's; `Large` is this allocator's own, for runs of
/// whole pages that malloc handed out, and slabs of objects longer than a page:
/// nothing may be assumed of them, not even that all of their pages are ever
/// written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Migratetype {
    /// Nothing is promised: slabs of malloc, pinned objects.
    Unmovable = 0,
    /// The owner can move the page when asked.
    Movable = 1,
    /// The owner has a shrinker that can give a named block back.
    Reclaimable = 2,
    /// malloc's runs, and slabs of objects longer than a page.
    Large = 3,
    /// An urgent request of any kind: it may use the reserve that is kept for such,
    /// and it waits for no reclaim.
    HighAtomic = 4,
}

/// Number of migratetypes.
pub const MIGRATETYPES: usize = 5;

impl Migratetype {
    /// All, in the order of their numbers.
    pub const ALL: [Self; MIGRATETYPES] = [
        Self::Unmovable,
        Self::Movable,
        Self::Reclaimable,
        Self::Large,
        Self::HighAtomic,
    ];

    /// The name, as pagetypeinfo prints it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unmovable => "Unmovable",
            Self::Movable => "Movable",
            Self::Reclaimable => "Reclaimable",
            Self::Large => "Large",
            Self::HighAtomic => "HighAtomic",
        }
    }

    /// The type with this number; numbers come from [`crate::Page`] records.
    pub(crate) const fn from_index(index: u8) -> Self {
        match index {
            0 => Self::Unmovable,
            1 => Self::Movable,
            2 => Self::Reclaimable,
            3 => Self::Large,
            _ => Self::HighAtomic,
        }
    }

    /// Where to look when this type's own blocks are used up, in order.
    /// HighAtomic blocks are not among them: the reserve is released as a whole.
    pub(crate) const fn fallbacks(self) -> [Self; 3] {
        use Migratetype::{HighAtomic, Large, Movable, Reclaimable, Unmovable};
        match self {
            HighAtomic => [Unmovable, Reclaimable, Movable],
            Unmovable => [Reclaimable, Large, Movable],
            Movable => [Large, Reclaimable, Unmovable],
            Reclaimable => [Unmovable, Large, Movable],
            Large => [Movable, Reclaimable, Unmovable],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_round_up() {
        assert_eq!(Order::for_pages(1), Some(Order::ZERO));
        assert_eq!(Order::for_pages(3).map(Order::get), Some(2));
        assert_eq!(Order::for_pages(512), Some(Order::PAGEBLOCK));
        assert_eq!(Order::for_pages(0), None);
        assert_eq!(Order::for_pages((1 << MAX_ORDER) + 1), None);
        assert_eq!(Order::new(MAX_ORDER + 1), None);
    }

    #[test]
    fn fallbacks_name_every_other_type_once() {
        for mt in Migratetype::ALL {
            let mut seen = vec![mt];
            seen.extend(mt.fallbacks());
            seen.push(Migratetype::HighAtomic);
            seen.sort_by_key(|m| *m as u8);
            seen.dedup();
            let missing = Migratetype::ALL
                .iter()
                .filter(|m| !seen.contains(m))
                .count();
            assert_eq!(missing, usize::from(mt == Migratetype::HighAtomic));
            assert_eq!(Migratetype::from_index(mt as u8), mt);
        }
    }
}
