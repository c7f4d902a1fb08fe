//! Markdown: the tables of the terminal, for a pull request or a mail.

use crate::preload::Route;
use crate::report::Report;
use crate::summary;
use crate::table::{Table, tables_of};
use crate::workloads;

/// The report as Markdown.
pub fn render(report: &Report) -> String {
    let mut text = String::from("# bench-suite\n\n");
    for line in report.environment.lines() {
        text.push_str(&format!("- {}\n", escape(&line)));
    }
    if report.interrupted {
        text.push_str("- interrupted: only finished rows are shown\n");
    }
    for failure in &report.failures {
        let what = format!(
            "{} {} on {}: {}",
            failure.workload, failure.job, failure.backend, failure.error
        );
        text.push_str(&format!("- failed: {}\n", escape(&what)));
    }
    for table in tables_of(report) {
        text.push('\n');
        text.push_str(&render_table(&table));
    }
    for name in &report.config.workloads {
        let mallocs = workloads::find(name).is_ok_and(|found| found.route() != Route::Caches);
        if mallocs {
            text.push_str(&format!("\n```\n{}```\n", summary::render(report, name)));
        }
    }
    text
}

/// One table.
pub fn render_table(table: &Table) -> String {
    let mut text = format!("## {}\n\n", escape(&table.title()));
    let wide = table
        .lines
        .iter()
        .any(|line| !table.format_widths(line).is_empty());
    let mut head = vec![String::new()];
    head.extend(table.columns.iter().map(|column| escape(column)));
    if wide {
        head.push("interval widths".to_owned());
    }
    let columns = head.len();
    text.push_str(&format!(
        "| {} |\n|:--{}|\n",
        head.join(" | "),
        "|--:".repeat(columns - 1)
    ));
    for line in &table.lines {
        let mut cells = vec![escape(&line.label)];
        cells.extend(
            line.cells
                .iter()
                .map(|cell| escape(&table.format_cell(cell.as_ref()))),
        );
        if wide {
            cells.push(table.format_widths(line).join(" "));
        }
        text.push_str(&format!("| {} |\n", cells.join(" | ")));
    }
    text.push_str(&format!("\n{}\n", escape(&table.legend())));
    text
}

/// Text as Markdown shows it verbatim.
pub fn escape(text: &str) -> String {
    text.replace('\\', "\\\\")
        .replace('|', "\\|")
        .replace('*', "\\*")
        .replace('<', "&lt;")
}
