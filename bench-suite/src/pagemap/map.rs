//! A snapshot of every pageblock, and its text.

use crate::series::PageMap;
use page_alloc::{MIGRATETYPES, Migratetype, PAGEBLOCK_PAGES, stats};
use serde::Serialize;

/// One pageblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Block {
    /// Where it starts.
    pub address: usize,
    /// Name of the type whose pages it takes.
    pub migratetype: &'static str,
    /// Pages in use, by type, in the order of [`Migratetype::ALL`].
    pub used_by_type: [u16; MIGRATETYPES],
    /// Free pages.
    pub free: u16,
}

impl Block {
    /// Pages in use.
    pub fn used(&self) -> usize {
        self.used_by_type.iter().map(|n| usize::from(*n)).sum()
    }

    /// Whether pages of more than one type are in it.
    pub fn is_mixed(&self) -> bool {
        self.used_by_type.iter().filter(|n| **n > 0).count() > 1
    }

    /// The type that holds most of what is used; `None` for a free block.
    pub fn main_type(&self) -> Option<Migratetype> {
        let used = |mt: &Migratetype| self.used_by_type[*mt as usize];
        Migratetype::ALL
            .into_iter()
            .max_by_key(used)
            .filter(|mt| used(mt) > 0)
    }

    /// The block in one character: `.` free, `x` mixed, else the type's initial; a capital from half full on.
    fn letter(&self) -> char {
        let letter = match self.main_type() {
            None => return '.',
            Some(_) if self.is_mixed() => 'x',
            Some(mt) => initial(mt),
        };
        if self.used() * 2 >= PAGEBLOCK_PAGES {
            letter.to_ascii_uppercase()
        } else {
            letter
        }
    }
}

fn initial(mt: Migratetype) -> char {
    match mt {
        Migratetype::Unmovable => 'u',
        Migratetype::Movable => 'm',
        Migratetype::Reclaimable => 'r',
        Migratetype::Large => 'l',
        Migratetype::HighAtomic => 'h',
    }
}

/// All blocks of page-alloc's arenas at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Map {
    /// Of what and when.
    pub title: String,
    /// The blocks, by arena and address.
    pub blocks: Vec<Block>,
}

impl Map {
    /// The map of now.
    pub fn take(title: String) -> Self {
        let mut blocks = Vec::new();
        stats::for_each_block(|info| {
            blocks.push(Block {
                address: info.address,
                migratetype: info.migratetype.name(),
                used_by_type: info.used_by_type,
                free: info.free,
            });
        });
        Self { title, blocks }
    }

    /// The map as a report keeps it, a kind a block; `None` without blocks.
    pub fn for_report(&self) -> Option<PageMap> {
        let kind = |block: &Block| match block.main_type() {
            None => '.',
            Some(_) if block.is_mixed() => 'X',
            Some(mt) => initial(mt).to_ascii_uppercase(),
        };
        (!self.blocks.is_empty()).then(|| PageMap {
            row: self.title.clone(),
            pages_per_block: PAGEBLOCK_PAGES as u32,
            kinds: self.blocks.iter().map(kind).collect(),
            used: self
                .blocks
                .iter()
                .map(|block| block.used() as u32)
                .collect(),
            ..PageMap::default()
        })
    }

    /// Pages in use.
    pub fn used_pages(&self) -> usize {
        self.blocks.iter().map(Block::used).sum()
    }

    /// Free, mixed, and all blocks in one line, and the pages of each type.
    pub fn summary(&self) -> String {
        let blocks = self.blocks.len();
        let free = self.blocks.iter().filter(|b| b.used() == 0).count();
        let mixed = self.blocks.iter().filter(|b| b.is_mixed()).count();
        let pages = Migratetype::ALL.map(|mt| {
            let of = |block: &Block| usize::from(block.used_by_type[mt as usize]);
            let sum: usize = self.blocks.iter().map(of).sum();
            format!("{} {sum}", mt.name())
        });
        let all = (blocks * PAGEBLOCK_PAGES).max(1);
        format!(
            "{blocks} blocks of 2 MiB: {free} free, {mixed} mixed; {:.1} % of the pages in use: {}",
            100.0 * self.used_pages() as f64 / all as f64,
            pages.join(", ")
        )
    }

    /// The map as text, `width` blocks a line.
    pub fn text(&self, width: usize) -> String {
        let mut text = format!("{}\n", self.title);
        for row in self.blocks.chunks(width.max(1)) {
            let letters: String = row.iter().map(Block::letter).collect();
            text.push_str(&format!("{:#014x}  {letters}\n", row[0].address));
        }
        text.push_str(&format!(
            "{}\n. free  u unmovable  m movable  r reclaimable  l large  h urgent  x mixed; a capital: at least half full\n",
            self.summary()
        ));
        text
    }
}

#[cfg(test)]
pub(super) fn sample() -> Map {
    let block = |at: usize, used_by_type: [u16; MIGRATETYPES]| Block {
        address: 0x7f00_0000_0000 + at * (PAGEBLOCK_PAGES << 12),
        migratetype: "Movable",
        used_by_type,
        free: PAGEBLOCK_PAGES as u16 - used_by_type.iter().sum::<u16>(),
    };
    Map {
        title: "a <map>".to_owned(),
        blocks: vec![
            block(0, [0, 0, 0, 0, 0]),
            block(1, [1, 0, 0, 0, 0]),
            block(2, [0, 256, 0, 0, 0]),
            block(3, [0, 0, 255, 0, 0]),
            block(4, [1, 0, 511, 0, 0]),
            block(5, [0, 0, 0, 512, 0]),
        ],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_say_type_and_fill() {
        let text = sample().text(4);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "a <map>");
        assert_eq!(lines[1], "0x7f0000000000  .uMr");
        assert_eq!(lines[2], "0x7f0000800000  XL");
        assert_eq!(
            lines[3],
            "6 blocks of 2 MiB: 1 free, 1 mixed; 50.0 % of the pages in use: Unmovable 2, Movable 256, \
             Reclaimable 766, Large 512, HighAtomic 0"
        );
    }
}
