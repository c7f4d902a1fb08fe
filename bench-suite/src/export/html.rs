//! HTML: one file that needs nothing else, light or dark as the reader's system is, fit to print.

use super::html_plot::plot;
use crate::report::Report;
use crate::table::{Table, column_backends, column_head, columns_of, tables_of};

const STYLE: &str = include_str!("report.css");

/// The report as a page.
pub fn render(report: &Report) -> String {
    let mut page = String::from(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>bench-suite</title>\n<style>\n",
    );
    page.push_str(STYLE);
    page.push_str("</style>\n</head>\n<body>\n<h1>bench-suite</h1>\n");
    page.push_str(&environment(report));
    let tables = tables_of(report);
    if tables.len() > 1 {
        page.push_str("<nav><ul>\n");
        for (i, table) in tables.iter().enumerate() {
            page.push_str(&format!(
                "<li><a href=\"#t{i}\">{}</a></li>\n",
                escape(&table.title())
            ));
        }
        page.push_str("</ul></nav>\n");
    }
    for (i, table) in tables.iter().enumerate() {
        page.push_str(&format!(
            "<section id=\"t{i}\">\n<h2>{}</h2>\n",
            escape(&table.title())
        ));
        page.push_str(&plot(report, table));
        page.push_str(&figures(table));
        page.push_str(&format!(
            "<p class=\"legend\">{}</p>\n</section>\n",
            escape(&table.legend())
        ));
    }
    page.push_str(&memory(report));
    page.push_str("</body>\n</html>\n");
    page
}

fn environment(report: &Report) -> String {
    let mut html = String::from("<ul class=\"environment\">\n");
    let config = &report.config;
    for line in report.environment.lines() {
        let class = if line.starts_with("warning:") {
            " class=\"warning\""
        } else {
            ""
        };
        html.push_str(&format!("<li{class}>{}</li>\n", escape(&line)));
    }
    html.push_str(&format!(
        "<li>{} to {} rounds a row, interleaved, seed {}</li>\n",
        config.runs, config.max_runs, config.seed
    ));
    if let Some((local, remote)) = config.cpus {
        html.push_str(&format!(
            "<li>pinned: sending side on CPU {local}, receiving side on CPU {remote}</li>\n"
        ));
    }
    if !config.args.is_empty() {
        html.push_str(&format!(
            "<li>workload options: {}</li>\n",
            escape(&config.args.join(" "))
        ));
    }
    if report.interrupted {
        html.push_str("<li class=\"warning\">interrupted: only finished rows are shown</li>\n");
    }
    for failure in &report.failures {
        let what = format!(
            "{} {} on {}: {}",
            failure.workload, failure.job, failure.backend, failure.error
        );
        html.push_str(&format!(
            "<li class=\"warning\">failed: {}</li>\n",
            escape(&what)
        ));
    }
    html.push_str("</ul>\n");
    html
}

fn figures(table: &Table) -> String {
    let mut html = String::from("<div class=\"scroll\"><table>\n<thead><tr><th></th>");
    for column in &table.columns {
        html.push_str(&format!("<th>{}</th>", escape(column)));
    }
    html.push_str("<th>interval widths</th></tr></thead>\n<tbody>\n");
    for line in &table.lines {
        html.push_str(&format!("<tr><th>{}</th>", escape(&line.label)));
        for cell in &line.cells {
            let class = match cell {
                Some(cell) if cell.significant && cell.delta.is_some_and(|delta| delta > 0.0) => {
                    " class=\"up\""
                }
                Some(cell) if cell.significant => " class=\"down\"",
                _ => "",
            };
            html.push_str(&format!(
                "<td{class}>{}</td>",
                escape(&table.format_cell(cell.as_ref()))
            ));
        }
        html.push_str(&format!(
            "<td>{}</td></tr>\n",
            table.format_widths(line).join(" ")
        ));
    }
    html.push_str("</tbody>\n</table></div>\n");
    html
}

fn memory(report: &Report) -> String {
    let backends = column_backends(&report.config);
    let mut html = String::from(
        "<section>\n<h2>Memory: peak / resting resident set of a worker, MiB</h2>\n\
         <div class=\"scroll\"><table>\n<thead><tr><th></th>",
    );
    for backend in &backends {
        html.push_str(&format!("<th>{}</th>", escape(&column_head(backend))));
    }
    html.push_str("</tr></thead>\n<tbody>\n");
    let mut seen: Vec<(&str, &str)> = Vec::new();
    for row in &report.rows {
        let key = (row.workload.as_str(), row.row.as_str());
        if seen.contains(&key) {
            continue;
        }
        seen.push(key);
        html.push_str(&format!("<tr><th>{} {}</th>", escape(key.0), escape(key.1)));
        for backend in &backends {
            let found = report
                .rows
                .iter()
                .find(|r| (r.workload.as_str(), r.row.as_str()) == key && r.backend == *backend);
            let text = found.map_or_else(
                || {
                    let runs = columns_of(&report.config, key.0).contains(backend);
                    if runs { "failed" } else { "" }.to_owned()
                },
                |r| {
                    format!(
                        "{:.1} / {:.1}",
                        r.rss_peak_kib as f64 / 1024.0,
                        r.rss_rest_kib as f64 / 1024.0
                    )
                },
            );
            html.push_str(&format!("<td>{text}</td>"));
        }
        html.push_str("</tr>\n");
    }
    html.push_str(
        "</tbody>\n</table></div>\n<p class=\"legend\">Medians over the rounds.</p>\n</section>\n",
    );
    html
}

/// Text as HTML shows it verbatim.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}
