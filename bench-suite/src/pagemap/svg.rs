//! The map as one self-contained SVG: each block is a cell, filled from the bottom by type in proportion to its pages.
//!
//! Text and frames take `currentColor`, which follows the page the file is embedded in, and a dark scheme when it
//! stands alone.

use super::map::Map;
use crate::export::html::escape;
use page_alloc::{Migratetype, PAGEBLOCK_PAGES};

const CELL: usize = 14;
const GAP: usize = 2;
const LEFT: usize = 118;
const TOP: usize = 64;

const STYLE: &str = "\
svg { color: #1b1f24; font: 11px ui-monospace, monospace; }
@media (prefers-color-scheme: dark) { svg { color: #d7dde4; } }
text { fill: currentColor; }
.cell { fill: none; stroke: currentColor; stroke-opacity: .35; }
.mixed { stroke-opacity: 1; stroke-width: 2; }
.unmovable { fill: #d1495b; } .movable { fill: #3a86c8; } .reclaimable { fill: #3f9c5a; } .large { fill: #c98a1b; } .urgent { fill: #8a5fbf; }
";

/// The map as SVG, `width` blocks a line.
pub fn render(map: &Map, width: usize) -> String {
    let width = width.max(1);
    let columns = map.blocks.len().min(width);
    let rows = map.blocks.len().div_ceil(width);
    let w = (LEFT + columns * (CELL + GAP) + GAP).max(640);
    let h = TOP + rows * (CELL + GAP) + GAP;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {w} {h}\" role=\"img\" aria-label=\"{}\">\n\
         <style>\n{STYLE}</style>\n<text x=\"4\" y=\"14\">{}</text>\n<text x=\"4\" y=\"30\">{}</text>\n",
        escape(&map.title),
        escape(&map.title),
        escape(&map.summary())
    );
    svg.push_str(&key());
    for (at, block) in map.blocks.iter().enumerate() {
        let (x, y) = (
            LEFT + at % width * (CELL + GAP),
            TOP + at / width * (CELL + GAP),
        );
        if at % width == 0 {
            svg.push_str(&format!(
                "<text x=\"4\" y=\"{}\">{:#014x}</text>\n",
                y + CELL - 3,
                block.address
            ));
        }
        let mut tip = format!("{:#x} {}:", block.address, block.migratetype);
        let mut top = (y + CELL) as f64;
        let mut fills = String::new();
        for mt in Migratetype::ALL {
            let used = block.used_by_type[mt as usize];
            if used == 0 {
                continue;
            }
            tip.push_str(&format!(" {used} {},", mt.name()));
            let height = f64::from(used) * CELL as f64 / PAGEBLOCK_PAGES as f64;
            top -= height;
            fills.push_str(&format!(
                "<rect class=\"{}\" x=\"{x}\" y=\"{top:.2}\" width=\"{CELL}\" height=\"{height:.2}\"/>",
                class(mt)
            ));
        }
        tip.push_str(&format!(" {} free", block.free));
        let mixed = if block.is_mixed() { " mixed" } else { "" };
        svg.push_str(&format!(
            "<g><title>{tip}</title>{fills}<rect class=\"cell{mixed}\" pointer-events=\"all\" x=\"{x}\" y=\"{y}\" \
             width=\"{CELL}\" height=\"{CELL}\"/></g>\n"
        ));
    }
    svg.push_str("</svg>\n");
    svg
}

fn class(mt: Migratetype) -> &'static str {
    match mt {
        Migratetype::Unmovable => "unmovable",
        Migratetype::Movable => "movable",
        Migratetype::Reclaimable => "reclaimable",
        Migratetype::Large => "large",
        Migratetype::HighAtomic => "urgent",
    }
}

fn key() -> String {
    let mut svg = String::new();
    let mut x = 4;
    for mt in Migratetype::ALL {
        svg.push_str(&format!(
            "<rect class=\"{}\" x=\"{x}\" y=\"40\" width=\"10\" height=\"10\"/><text x=\"{}\" y=\"49\">{}</text>\n",
            class(mt),
            x + 14,
            class(mt)
        ));
        x += 120;
    }
    svg.push_str(&format!(
        "<rect class=\"cell mixed\" x=\"{x}\" y=\"40\" width=\"10\" height=\"10\"/><text x=\"{}\" y=\"49\">mixed</text>\n",
        x + 14
    ));
    svg
}

#[cfg(test)]
mod tests {
    use super::super::map::sample;
    use super::*;

    #[test]
    fn a_cell_is_filled_in_proportion() {
        let svg = render(&sample(), 4);
        assert_eq!(svg.matches("<title>").count(), 6);
        // One in the map, one in the key.
        assert_eq!(svg.matches("cell mixed").count(), 2);
        // Half of 14 for 256 pages of 512.
        assert!(svg.contains(
            "<rect class=\"movable\" x=\"150\" y=\"71.00\" width=\"14\" height=\"7.00\"/>"
        ));
        assert!(svg.contains(": 1 Unmovable, 511 Reclaimable, 0 free</title>"));
        assert!(svg.contains("a &lt;map&gt;") && !svg.contains("<map>"));
        assert!(svg.contains("currentColor") && svg.contains("prefers-color-scheme: dark"));
        let opened = svg.matches("<g>").count() + svg.matches("<text").count();
        let closed = svg.matches("</g>").count() + svg.matches("</text>").count();
        assert_eq!(opened, closed);
    }
}
