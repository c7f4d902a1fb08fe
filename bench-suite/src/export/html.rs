//! HTML: one file that needs nothing else, light or dark as the reader's system is, fit for a phone and for paper.

use super::plot::{self, bars, blocks, distribution, lines, memory, push};
use super::reading;
use crate::preload::Route;
use crate::report::{Report, Row, outlier_notes};
use crate::summary;
use crate::table::{
    LOW_SHARE, SHARE_LEGEND, Table, column_backends, column_head, columns_of, format_share,
    shares_of, tables_of,
};
use crate::workloads;

const STYLE: &str = include_str!("report.css");
/// Longer tables keep their bars folded away where lines show the same.
const MANY_LINES: usize = 16;
/// Distributions shown of a workload: those of its first rows.
const MOST_DISTRIBUTIONS: usize = 12;

/// The report as a page.
pub fn render(report: &Report) -> String {
    let tables = tables_of(report);
    let mut workloads: Vec<&str> = Vec::new();
    for table in &tables {
        if !workloads.contains(&table.workload.as_str()) {
            workloads.push(&table.workload);
        }
    }
    let mut page = String::from(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<title>bench-suite</title>\n<style>\n",
    );
    page.push_str(STYLE);
    page.push_str("</style>\n</head>\n<body>\n");
    header(&mut page, report, &workloads);
    if tables.is_empty() {
        page.push_str("<p class=\"warning\">No row was finished.</p>\n");
    } else {
        glance(&mut page, report, &tables);
    }
    for workload in &workloads {
        let own: Vec<&Table> = tables.iter().filter(|t| t.workload == *workload).collect();
        section(&mut page, report, workload, &own);
    }
    how_to_read(&mut page, &workloads);
    page.push_str("</body>\n</html>\n");
    page
}

fn header(page: &mut String, report: &Report, workloads: &[&str]) {
    let config = &report.config;
    page.push_str("<header>\n<h1>bench-suite</h1>\n");
    let names: Vec<String> = column_backends(config)
        .into_iter()
        .map(column_head)
        .collect();
    push(
        page,
        format_args!(
            "<p class=\"lead\">{} on {}</p>\n",
            escape(&workloads.join(", ")),
            escape(&names.join(", "))
        ),
    );
    let mut warnings: Vec<String> = report.environment.warnings.clone();
    if report.interrupted {
        warnings.push("interrupted: only finished rows are shown".to_owned());
    }
    warnings.extend(report.failures.iter().map(|failure| {
        format!(
            "failed: {} {} on {}: {}",
            failure.workload, failure.job, failure.backend, failure.error
        )
    }));
    if !warnings.is_empty() {
        page.push_str("<ul class=\"warnings\">\n");
        for warning in &warnings {
            push(page, format_args!("<li>{}</li>\n", escape(warning)));
        }
        page.push_str("</ul>\n");
    }
    let mut facts: Vec<String> = (report.environment.lines().into_iter())
        .filter(|line| !line.starts_with("warning:"))
        .collect();
    facts.push(format!(
        "{} to {} rounds a row, interleaved, seed {}",
        config.runs, config.max_runs, config.seed
    ));
    if let Some((local, remote)) = config.cpus {
        facts.push(format!(
            "pinned: sending side on CPU {local}, receiving side on CPU {remote}"
        ));
    }
    if !config.args.is_empty() {
        facts.push(format!("workload options: {}", config.args.join(" ")));
    }
    facts.extend(report.notes.iter().cloned());
    page.push_str("<details class=\"environment\" open><summary>Machine and run</summary><ul>\n");
    for fact in &facts {
        push(page, format_args!("<li>{}</li>\n", escape(fact)));
    }
    page.push_str("</ul></details>\n");
    let outliers = outlier_notes(report);
    if !outliers.is_empty() {
        push(
            page,
            format_args!(
                "<details class=\"environment\"><summary>Outliers, in {} workloads</summary><ul>\n",
                outliers.len()
            ),
        );
        for note in &outliers {
            push(page, format_args!("<li>{}</li>\n", escape(note)));
        }
        page.push_str("</ul></details>\n");
    }
    page.push_str("<nav><ul>\n");
    for workload in workloads {
        push(
            page,
            format_args!(
                "<li><a href=\"#{0}\">{1}</a></li>\n",
                id(workload),
                escape(workload)
            ),
        );
    }
    page.push_str("<li><a href=\"#reading\">How to read this</a></li>\n</ul></nav>\n</header>\n");
}

fn id(workload: &str) -> String {
    format!("w-{}", reading::anchor(workload))
}

/// The whole report in one table for each set of columns: the mean change of each over the rows of each metric.
fn glance(page: &mut String, report: &Report, tables: &[Table]) {
    let mut sets: Vec<(&[String], Vec<&Table>)> = Vec::new();
    for table in tables.iter().filter(|table| table.columns.len() > 1) {
        match sets
            .iter_mut()
            .find(|(columns, _)| *columns == table.columns)
        {
            Some((_, tables)) => tables.push(table),
            None => sets.push((&table.columns, vec![table])),
        }
    }
    if sets.is_empty() {
        return;
    }
    page.push_str("<section id=\"glance\">\n<h2>At a glance</h2>\n");
    for (columns, tables) in &sets {
        page.push_str("<div class=\"scroll\"><table>\n<thead><tr><th></th>");
        for column in &columns[1..] {
            push(page, format_args!("<th>{}</th>", escape(column)));
        }
        page.push_str("<th>rows</th></tr></thead>\n<tbody>\n");
        for table in tables {
            glance_line(page, table);
        }
        push(
            page,
            format_args!(
                "</tbody>\n</table></div>\n<p class=\"legend\">Geometric mean, over the rows, of the change from {} in speed (times inverted): + is better. ▲ ▼: rows significantly better and worse.{}</p>\n",
                escape(&columns[0]),
                if report.interrupted {
                    " Unfinished run."
                } else {
                    ""
                }
            ),
        );
    }
    page.push_str("</section>\n");
}

fn glance_line(page: &mut String, table: &Table) {
    push(
        page,
        format_args!(
            "<tr><th><a href=\"#{}\">{} {}</a></th>",
            id(&table.workload),
            escape(&table.workload),
            escape(&table.metric)
        ),
    );
    for column in 1..table.columns.len() {
        let Some(change) = table.change(column) else {
            page.push_str("<td>-</td>");
            continue;
        };
        let class = match (change.better, change.worse) {
            (b, w) if b > w && change.percent > 0.0 => " class=\"up\"",
            (b, w) if w > b && change.percent < 0.0 => " class=\"down\"",
            _ => "",
        };
        push(
            page,
            format_args!(
                "<td{class}>{:+.1}% <small>{}▲ {}▼</small></td>",
                change.percent, change.better, change.worse
            ),
        );
    }
    push(page, format_args!("<td>{}</td></tr>\n", table.lines.len()));
}

/// Everything about one workload.
fn section(page: &mut String, report: &Report, workload: &str, tables: &[&Table]) {
    let columns = &tables[0].columns;
    push(
        page,
        format_args!(
            "<section id=\"{}\">\n<h2>{}</h2>\n",
            id(workload),
            escape(workload)
        ),
    );
    page.push_str(&plot::key(columns));
    for table in tables {
        one_table(page, report, table);
    }
    original(page, report, workload);
    distributions(page, report, tables);
    memory_over_time(page, report, workload);
    memory_table(page, report, workload);
    page_maps(page, report, workload);
    page.push_str("</section>\n");
}

/// What stands under a workload's tables on the terminal: the tables of its original, and the summary of mallocs.
fn original(page: &mut String, report: &Report, workload: &str) {
    // Nothing is known of a workload that an old file names.
    let Ok(found) = workloads::find(workload) else {
        return;
    };
    let mut texts: Vec<(&str, String)> = Vec::new();
    texts.extend(
        found
            .appendix(report)
            .map(|text| ("As the original prints it", text)),
    );
    if found.route() != Route::Caches {
        texts.push(("Ratios and peers", summary::render(report, workload)));
    }
    for (title, text) in texts {
        push(
            page,
            format_args!(
                "<h3>{title} <a class=\"read\" href=\"#{}\">how to read it</a></h3>\n<pre tabindex=\"0\">{}</pre>\n",
                reading::anchor(workload),
                escape(&text)
            ),
        );
    }
}

/// The rows of a table, in the order of its columns.
fn rows_of<'a>(report: &'a Report, table: &Table, label: &str) -> Vec<Option<&'a Row>> {
    let find = |backend| {
        report.rows.iter().find(|row| {
            row.workload == table.workload
                && row.metric == table.metric
                && row.unit == table.unit
                && row.row == label
                && row.backend == backend
        })
    };
    columns_of(&report.config, &table.workload)
        .into_iter()
        .map(find)
        .collect()
}

fn one_table(page: &mut String, report: &Report, table: &Table) {
    let direction = table.title();
    let short = direction
        .split_once(": ")
        .map_or(direction.as_str(), |(_, rest)| rest);
    push(
        page,
        format_args!(
            "<h3>{} <a class=\"read\" href=\"#{}\">what it measures, how to read it</a></h3>\n",
            escape(short),
            reading::anchor(&table.workload)
        ),
    );
    figures(page, report, table);
    let lines = lines::plots(table, |label| rows_of(report, table, label));
    if !lines.is_empty() {
        page.push_str("<div class=\"plots\">\n");
        for (title, svg) in &lines {
            figure(page, title, svg);
        }
        page.push_str("</div>\n");
    }
    let fold = table.lines.len() > MANY_LINES && !lines.is_empty();
    let open = if fold { "" } else { " open" };
    push(
        page,
        format_args!(
            "<details{open}><summary>Bars with intervals, {} rows</summary>\n<div class=\"plots\">\n",
            table.lines.len()
        ),
    );
    for (title, labels) in chunks(table) {
        let groups: Vec<bars::Group<'_>> = (labels.iter())
            .map(|label| (*label, rows_of(report, table, label)))
            .collect();
        figure(page, &title, &bars::plot(table, &title, &groups));
    }
    page.push_str("</div></details>\n");
}

/// Rows that belong together, by what their names share.
fn chunks(table: &Table) -> Vec<(String, Vec<&str>)> {
    let mut chunks: Vec<(String, Vec<&str>)> = Vec::new();
    for line in &table.lines {
        let name = plot::number_in(&line.label).map_or_else(String::new, |(name, _)| name);
        match chunks.iter_mut().find(|(known, _)| *known == name) {
            Some((_, labels)) => labels.push(&line.label),
            None => chunks.push((name, vec![&line.label])),
        }
    }
    chunks
}

fn figure(page: &mut String, title: &str, svg: &str) {
    push(
        page,
        format_args!(
            "<figure>{svg}<figcaption>{}</figcaption></figure>\n",
            escape(title)
        ),
    );
}

fn figures(page: &mut String, report: &Report, table: &Table) {
    let shares = shares_of(report, table);
    let with_shares = shares.iter().any(Option::is_some);
    let wide = table
        .lines
        .iter()
        .any(|line| !table.format_widths(line).is_empty());
    page.push_str("<div class=\"scroll\"><table>\n<thead><tr><th></th>");
    for (i, column) in table.columns.iter().enumerate() {
        push(
            page,
            format_args!(
                "<th class=\"c{}\"><i></i>{}</th>",
                i % plot::COLOURS,
                escape(column)
            ),
        );
    }
    if with_shares {
        page.push_str("<th>alloc</th>");
    }
    if wide {
        page.push_str("<th>interval widths</th>");
    }
    page.push_str("</tr></thead>\n<tbody>\n");
    for (line, share) in table.lines.iter().zip(&shares) {
        push(page, format_args!("<tr><th>{}</th>", escape(&line.label)));
        for cell in &line.cells {
            let class = match cell {
                Some(cell) if cell.significant && cell.delta.is_some_and(|d| d > 0.0) => {
                    " class=\"up\""
                }
                Some(cell) if cell.significant => " class=\"down\"",
                Some(_) => "",
                None => " class=\"failed\"",
            };
            push(
                page,
                format_args!(
                    "<td{class}>{}</td>",
                    escape(&table.format_cell(cell.as_ref()))
                ),
            );
        }
        if with_shares {
            let low = share.is_some_and(|share| share < LOW_SHARE);
            let class = if low {
                " class=\"low\" title=\"a delta here means little\""
            } else {
                ""
            };
            push(
                page,
                format_args!("<td{class}>{}</td>", format_share(*share)),
            );
        }
        if wide {
            push(
                page,
                format_args!(
                    "<td class=\"widths\">{}</td>",
                    table.format_widths(line).join(" ")
                ),
            );
        }
        page.push_str("</tr>\n");
    }
    page.push_str("</tbody>\n</table></div>\n");
    let mut legend = table.legend().replace('\n', " ");
    if with_shares {
        legend.push(' ');
        legend.push_str(&SHARE_LEGEND.replace('\n', " "));
    }
    push(
        page,
        format_args!("<p class=\"legend\">{}</p>\n", escape(&legend)),
    );
}

fn distributions(page: &mut String, report: &Report, tables: &[&Table]) {
    let mut found = Vec::new();
    for table in tables {
        for line in &table.lines {
            let rows = rows_of(report, table, &line.label);
            let named: Vec<(&str, Option<&Row>)> =
                table.columns.iter().map(String::as_str).zip(rows).collect();
            found.extend(distribution::plot(&line.label, &named).map(|svg| (&line.label, svg)));
        }
    }
    if found.is_empty() {
        return;
    }
    let shown = found.len().min(MOST_DISTRIBUTIONS);
    push(
        page,
        format_args!(
            "<h3>Latency distributions <a class=\"read\" href=\"#read-Latency-distributions\">how to read it</a></h3>\n<div class=\"plots\">\n"
        ),
    );
    for (label, svg) in &found[..shown] {
        figure(page, label, svg);
    }
    page.push_str("</div>\n");
    if shown < found.len() {
        push(
            page,
            format_args!(
                "<p class=\"legend\">The first {shown} of {} rows; the JSON has all.</p>\n",
                found.len()
            ),
        );
    }
}

fn memory_over_time(page: &mut String, report: &Report, workload: &str) {
    let candidates = report
        .rows
        .iter()
        .filter(|row| row.workload == workload && row.rss_series.len() > 1);
    let Some(largest) = candidates.max_by_key(|row| row.rss_peak_kib) else {
        return;
    };
    let backends = columns_of(&report.config, workload);
    let heads: Vec<String> = backends.iter().map(|name| column_head(name)).collect();
    let rows: Vec<(&str, Option<&Row>)> = (heads.iter().zip(&backends))
        .map(|(head, backend)| {
            let row = report
                .rows
                .iter()
                .find(|row| row.same_measurement(largest) && row.backend == **backend);
            (head.as_str(), row)
        })
        .collect();
    if let Some(svg) = memory::plot(&format!("{workload} {}", largest.row), &rows) {
        page.push_str("<h3>Memory over time <a class=\"read\" href=\"#read-Memory-over-time\">how to read it</a></h3>\n<div class=\"plots\">\n");
        figure(page, &largest.row, &svg);
        page.push_str("</div>\n");
    }
}

fn memory_table(page: &mut String, report: &Report, workload: &str) {
    let backends = columns_of(&report.config, workload);
    page.push_str("<details><summary>Peak and resting resident memory of each row, MiB</summary>\n<div class=\"scroll\"><table>\n<thead><tr><th></th>");
    for backend in &backends {
        push(
            page,
            format_args!("<th>{}</th>", escape(&column_head(backend))),
        );
    }
    page.push_str("</tr></thead>\n<tbody>\n");
    let mut seen: Vec<&str> = Vec::new();
    for row in report.rows.iter().filter(|row| row.workload == workload) {
        if seen.contains(&row.row.as_str()) {
            continue;
        }
        seen.push(&row.row);
        push(page, format_args!("<tr><th>{}</th>", escape(&row.row)));
        for backend in &backends {
            let mut same = report
                .rows
                .iter()
                .filter(|r| r.workload == workload && r.row == row.row);
            let mib = |kib: u64| kib as f64 / 1024.0;
            match same.find(|r| r.backend == *backend) {
                Some(r) => push(
                    page,
                    format_args!(
                        "<td>{:.1} / {:.1}</td>",
                        mib(r.rss_peak_kib),
                        mib(r.rss_rest_kib)
                    ),
                ),
                None => page.push_str("<td class=\"failed\">failed</td>"),
            }
        }
        page.push_str("</tr>\n");
    }
    page.push_str(
        "</tbody>\n</table></div>\n<p class=\"legend\">Medians over the rounds.</p></details>\n",
    );
}

fn page_maps(page: &mut String, report: &Report, workload: &str) {
    let maps: Vec<_> = report
        .pagemaps
        .iter()
        .filter(|map| map.workload == workload)
        .collect();
    if maps.is_empty() {
        return;
    }
    page.push_str(
        "<h3>Pageblocks <a class=\"read\" href=\"#read-Pageblocks\">how to read it</a></h3>\n",
    );
    page.push_str(&blocks::key());
    page.push_str("<div class=\"plots\">\n");
    for map in maps {
        figure(
            page,
            &format!("{}, {}", column_head(&map.backend), map.row),
            &blocks::plot(map),
        );
    }
    page.push_str("</div>\n");
}

fn how_to_read(page: &mut String, workloads: &[&str]) {
    page.push_str("<section id=\"reading\" class=\"reading\">\n<h2>How to read this</h2>\n<dl>\n");
    for workload in workloads {
        push(
            page,
            format_args!(
                "<dt id=\"{}\"><a href=\"#{}\">{}</a></dt>\n<dd>{}</dd>\n",
                reading::anchor(workload),
                id(workload),
                escape(workload),
                escape(&reading::paragraph(workload))
            ),
        );
    }
    for (heading, text) in reading::COMMON {
        push(
            page,
            format_args!(
                "<dt id=\"{}\">{}</dt>\n<dd>{}</dd>\n",
                reading::anchor(heading),
                escape(heading),
                escape(text)
            ),
        );
    }
    page.push_str("</dl>\n</section>\n");
}

/// Text as HTML shows it verbatim.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}
