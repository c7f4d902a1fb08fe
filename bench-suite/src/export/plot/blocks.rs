//! A map of pageblocks: a cell for each, in the order of addresses, coloured by migratetype and filled from below as far
//! as its pages are in use.

use super::{WIDTH, push};
use crate::export::html::escape;
use crate::series::PageMap;

const ACROSS: usize = 48;
const CELL: f64 = WIDTH / ACROSS as f64;

/// The map as SVG.
pub fn plot(map: &PageMap) -> String {
    let height = map.used.len().div_ceil(ACROSS).max(1) as f64 * CELL;
    let mut svg = format!(
        "<svg data-plot=\"blocks\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{} pageblocks of {}\">\n<g data-series=\"{}\">",
        map.used.len(),
        escape(&map.backend),
        escape(&map.backend)
    );
    for (i, (kind, used)) in map.kinds.chars().zip(&map.used).enumerate() {
        let (x, y) = ((i % ACROSS) as f64 * CELL, (i / ACROSS) as f64 * CELL);
        let inner = CELL - 1.0;
        let filled = inner * f64::from(*used) / f64::from(map.pages_per_block.max(1));
        let class = class(kind);
        push(
            &mut svg,
            format_args!(
                "<rect class=\"{class} cell\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{inner:.1}\" height=\"{inner:.1}\"><title>block {i}: {}, {used} of {} pages</title></rect>",
                name(kind),
                map.pages_per_block
            ),
        );
        if *used > 0 {
            push(
                &mut svg,
                format_args!(
                    "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{:.1}\" width=\"{inner:.1}\" height=\"{filled:.1}\"/>",
                    y + inner - filled
                ),
            );
        }
    }
    svg.push_str("</g></svg>\n");
    svg
}

/// The key of the maps.
pub fn key() -> String {
    let mut html = String::from("<ul class=\"key\">");
    for (kind, name) in PageMap::KINDS {
        push(
            &mut html,
            format_args!(
                "<li><svg class=\"swatch\" viewBox=\"0 0 12 12\" aria-hidden=\"true\"><rect class=\"{}{}\" x=\"1\" y=\"1\" width=\"10\" height=\"10\"/></svg>{name}</li>",
                class(kind),
                if kind == '.' { " cell" } else { "" }
            ),
        );
    }
    html.push_str("</ul>\n");
    html
}

fn name(kind: char) -> &'static str {
    let kinds = PageMap::KINDS;
    kinds
        .iter()
        .find(|(k, _)| *k == kind)
        .map_or("unknown", |(_, name)| name)
}

fn class(kind: char) -> &'static str {
    match kind {
        'U' => "kU",
        'M' => "kM",
        'R' => "kR",
        'L' => "kL",
        'H' => "kH",
        'X' => "kX",
        _ => "kF",
    }
}
