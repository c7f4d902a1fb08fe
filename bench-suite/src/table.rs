//! Tables in the style of the kernel lists: a row's label, then for each backend `value ( delta%)`.
//!
//! ```text
//!        slab             unified
//! 64     52.23 (  0.00%)  53.80 *  3.01%*   1.36%  1.00%
//! │      │        │             │           └ widths of the confidence intervals, where one is wider than asked
//! │      │        │             └ stars for brackets: significant
//! │      │        └ the baseline comes first
//! │      └ mean
//! └ row
//! ```
//! `--delta lkml-2010` prints what the tables of 2010 printed: there a star *after* the bracket marks the column
//! whose interval did not get within the width asked, and no column is printed narrower than that width.

use crate::report::{Config, Report, Row};
use crate::stats::{Better, Delta};
use crate::workloads;

/// One figure of a table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cell {
    /// The mean.
    pub value: f64,
    /// Change from the baseline, + is better; `None` where it is not defined.
    pub delta: Option<f64>,
    /// Is the difference from the baseline significant?
    pub significant: bool,
    /// Width of the confidence interval in per cent.
    pub width: f64,
}

/// One line of a table.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// The row's label.
    pub label: String,
    /// One figure a column; `None` where the backend failed or was not run.
    pub cells: Vec<Option<Cell>>,
}

/// A table of one metric of one workload.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    /// The workload.
    pub workload: String,
    /// What is measured.
    pub metric: String,
    /// In which unit.
    pub unit: String,
    /// Which direction is an improvement.
    pub better: Better,
    /// Column heads, the baseline's first.
    pub columns: Vec<String>,
    /// The lines.
    pub lines: Vec<Line>,
    /// The arithmetic of the deltas.
    pub delta: Delta,
    /// Level of the intervals, in per cent.
    pub level: f64,
    /// Width asked of them, in per cent.
    pub width: f64,
}

/// The short name of a backend for a column head: `so:` and the file's name without its directory.
pub fn column_head(backend: &str) -> String {
    match backend.strip_prefix("so:") {
        Some(path) => format!("so:{}", path.rsplit('/').next().unwrap_or(path)),
        None => backend.to_owned(),
    }
}

/// The backends of a report in the order of its columns: the baseline comes first.
pub fn column_backends(config: &Config) -> Vec<&str> {
    let mut backends: Vec<&str> = vec![&config.baseline];
    backends.extend(
        config
            .backends
            .iter()
            .map(String::as_str)
            .filter(|name| *name != config.baseline),
    );
    backends
}

/// The backends of a workload's tables: those that it runs on, its baseline first.
pub fn columns_of<'a>(config: &'a Config, workload: &str) -> Vec<&'a str> {
    let base = config.baseline_of(workload);
    // A workload that this build does not know keeps every column.
    let known = workloads::find(workload).ok();
    let others = config.backends.iter().map(String::as_str);
    let others =
        others.filter(|name| *name != base && known.is_none_or(|workload| workload.takes(name)));
    std::iter::once(base).chain(others).collect()
}

/// The change of a whole column.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Change {
    /// Geometric mean of the change in speed over the rows, in per cent; + is better.
    pub percent: f64,
    /// Rows significantly better.
    pub better: usize,
    /// Rows significantly worse.
    pub worse: usize,
}

impl Table {
    /// How a column differs from the first over all rows (times inverted); `None` where no row has both.
    pub fn change(&self, column: usize) -> Option<Change> {
        let cells = || {
            let lines = self.lines.iter();
            lines.filter_map(|line| line.cells.get(column)?.as_ref())
        };
        let logs: Vec<f64> = (self.lines.iter())
            .filter_map(|line| {
                let base = line.cells.first()?.as_ref()?.value;
                let own = line.cells.get(column)?.as_ref()?.value;
                let ratio = match self.better {
                    Better::Higher => own / base,
                    Better::Lower => base / own,
                };
                (ratio > 0.0 && ratio.is_finite()).then(|| ratio.ln())
            })
            .collect();
        if logs.is_empty() {
            return None;
        }
        let mean = (logs.iter().sum::<f64>() / logs.len() as f64).exp();
        let count = |sign: f64| {
            cells()
                .filter(|c| c.significant && c.delta.is_some_and(|d| d * sign > 0.0))
                .count()
        };
        Some(Change {
            percent: (mean - 1.0) * 100.0,
            better: count(1.0),
            worse: count(-1.0),
        })
    }
}

/// The tables of a computed report, in the order in which its rows appear.
pub fn tables_of(report: &Report) -> Vec<Table> {
    let config = &report.config;
    let mut tables: Vec<(Table, Vec<&Row>)> = Vec::new();
    for row in &report.rows {
        let known = tables.iter_mut().find(|(table, _)| {
            table.workload == row.workload && table.metric == row.metric && table.unit == row.unit
        });
        match known {
            Some((_, rows)) => rows.push(row),
            None => {
                let table = Table {
                    workload: row.workload.clone(),
                    metric: row.metric.clone(),
                    unit: row.unit.clone(),
                    better: row.better,
                    columns: columns_of(config, &row.workload)
                        .into_iter()
                        .map(column_head)
                        .collect(),
                    lines: Vec::new(),
                    delta: config.delta,
                    level: config.level,
                    width: config.width,
                };
                tables.push((table, vec![row]));
            }
        }
    }
    for (table, rows) in &mut tables {
        let backends = columns_of(config, &table.workload);
        let mut labels: Vec<&str> = Vec::new();
        for row in rows.iter() {
            if !labels.contains(&row.row.as_str()) {
                labels.push(&row.row);
            }
        }
        for label in labels {
            let cells = backends.iter().map(|backend| {
                rows.iter()
                    .find(|row| row.row == label && row.backend == *backend)
                    .map(|row| cell_of(row))
            });
            table.lines.push(Line {
                label: label.to_owned(),
                cells: cells.collect(),
            });
        }
    }
    tables.into_iter().map(|(table, _)| table).collect()
}

fn cell_of(row: &Row) -> Cell {
    Cell {
        value: row.mean,
        delta: row.delta_pct,
        significant: row.significant,
        width: row.width_pct(),
    }
}

impl Table {
    /// `hackbench: time, s (less is better)`.
    pub fn title(&self) -> String {
        let direction = match self.better {
            Better::Higher => "more is better",
            Better::Lower => "less is better",
        };
        format!(
            "{}: {}, {} ({direction})",
            self.workload, self.metric, self.unit
        )
    }

    /// The note under the table: what its signs mean.
    pub fn legend(&self) -> String {
        let base = self.columns.first().map_or("", String::as_str);
        match self.delta {
            Delta::Base => format!(
                "(..) change from {base}, divided by {base}: + is always better. *..* significant: exact Mann-Whitney \
                 U, p < 0.05.\nTrailing: width of each {} % confidence interval, where one is wider than {} %.",
                self.level, self.width
            ),
            Delta::Lkml2010 => format!(
                "(..) change from {base}, divided by the new value (lkml, 2010): + is always better. * after it: the \
                 {} % confidence\ninterval did not get within {} %; trailing: the widths reached, printed as {} % \
                 where narrower.",
                self.level, self.width, self.width
            ),
        }
    }

    /// A value with the decimals its unit needs.
    pub fn format_value(&self, value: f64) -> String {
        if self.unit == "s" {
            format!("{value:.4}")
        } else {
            format!("{value:.2}")
        }
    }

    /// A figure as the table prints it.
    pub fn format_cell(&self, cell: Option<&Cell>) -> String {
        let Some(cell) = cell else {
            return "failed".to_owned();
        };
        let value = self.format_value(cell.value);
        match (cell.delta, self.delta) {
            (None, _) => format!("{value} (   n/a )"),
            (Some(delta), Delta::Base) if cell.significant => format!("{value} *{delta:+6.2}%*"),
            (Some(0.0), Delta::Base) => format!("{value} ({:6.2}%)", 0.0),
            (Some(delta), Delta::Base) => format!("{value} ({delta:+6.2}%)"),
            (Some(delta), Delta::Lkml2010) => {
                // A delta that rounds to zero has no sign in the old tables.
                let delta = if delta.abs() < 0.005 { 0.0 } else { delta };
                let star = if self.too_wide(cell) { "*" } else { "" };
                format!("{value} ({delta:5.2}%){star}")
            }
        }
    }

    fn too_wide(&self, cell: &Cell) -> bool {
        cell.width > self.width
    }

    /// The trailing widths of a line; empty when every interval is within the width asked.
    pub fn format_widths(&self, line: &Line) -> Vec<String> {
        if !line.cells.iter().flatten().any(|cell| self.too_wide(cell)) {
            return Vec::new();
        }
        let width = |cell: &Option<Cell>| match (cell, self.delta) {
            (None, _) => "-".to_owned(),
            (Some(cell), Delta::Base) => format!("{:.2}%", cell.width),
            (Some(cell), Delta::Lkml2010) => format!("{:.2}%", cell.width.max(self.width)),
        };
        line.cells.iter().map(width).collect()
    }

    /// The whole table as text, with its title and legend.
    pub fn render(&self) -> String {
        self.render_with(&[])
    }

    /// The whole table with the allocator's share behind each line, as [`shares_of`] gives it.
    pub fn render_with(&self, shares: &[Option<f64>]) -> String {
        let with_shares = shares.iter().any(Option::is_some);
        let mut grid: Vec<Vec<String>> = Vec::with_capacity(self.lines.len() + 1);
        let mut head = vec![String::new()];
        head.extend(self.columns.iter().cloned());
        if with_shares {
            head.push("alloc".to_owned());
        }
        grid.push(head);
        for (i, line) in self.lines.iter().enumerate() {
            let mut cells = vec![line.label.clone()];
            cells.extend(
                line.cells
                    .iter()
                    .map(|cell| self.format_cell(cell.as_ref())),
            );
            if with_shares {
                cells.push(format_share(shares.get(i).copied().flatten()));
            }
            cells.extend(self.format_widths(line));
            grid.push(cells);
        }
        let mut text = format!("{}\n", self.title());
        text.push_str(&align(&grid));
        text.push_str(&self.legend());
        text.push('\n');
        if with_shares {
            text.push_str(SHARE_LEGEND);
            text.push('\n');
        }
        text
    }
}

/// Under this share of its time, in per cent, a row says little about its allocator.
pub const LOW_SHARE: f64 = 10.0;

/// What the share column means.
pub const SHARE_LEGEND: &str = "alloc: the allocator's share of the row's time, the largest of the columns, against a \
                                floor that does next to\nnothing; ! under 10 %: a delta there means little.";

/// The allocator's share of each line of `table`: the largest of its columns. `None` where the floor did not run.
pub fn shares_of(report: &Report, table: &Table) -> Vec<Option<f64>> {
    let share = |line: &Line| {
        let rows = report.rows.iter().filter(|row| {
            row.workload == table.workload && row.metric == table.metric && row.row == line.label
        });
        rows.filter_map(|row| row.share_pct).reduce(f64::max)
    };
    table.lines.iter().map(share).collect()
}

/// A share as the tables print it.
pub fn format_share(share: Option<f64>) -> String {
    match share {
        None => "-".to_owned(),
        Some(share) if share < LOW_SHARE => format!("!{share:.0}%"),
        Some(share) => format!("{share:.0}%"),
    }
}

/// Lines up the columns of a grid: the first to the left, the others to the right.
pub fn align(grid: &[Vec<String>]) -> String {
    let columns = grid.iter().map(Vec::len).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns)
        .map(|column| {
            grid.iter()
                .filter_map(|row| row.get(column))
                .map(|s| s.chars().count())
                .max()
                .unwrap_or(0)
        })
        .collect();
    let mut text = String::new();
    for row in grid {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            if column == 0 {
                line.push_str(&format!("{cell:<0$}", widths[0]));
            } else {
                line.push_str(&format!("  {cell:>0$}", widths[column]));
            }
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// Memory beside time: for each workload and backend, the largest figures over its rows.
pub fn render_memory(report: &Report, workload: &str) -> String {
    let mib = |kib: u64| format!("{:.1}", kib as f64 / 1024.0);
    let mut grid = vec![vec![
        format!("{workload}: memory"),
        "peak RSS, MiB".to_owned(),
        "resting RSS, MiB".to_owned(),
        "objects".to_owned(),
    ]];
    for backend in &report.config.backends {
        let rows = || {
            report
                .rows
                .iter()
                .filter(|row| row.workload == workload && row.backend == *backend)
        };
        if rows().next().is_none() {
            continue;
        }
        let peak = rows().map(|row| row.rss_peak_kib).max().unwrap_or(0);
        let rest = rows().map(|row| row.rss_rest_kib).max().unwrap_or(0);
        let objects = rows().map(|row| row.objects).max().unwrap_or(0);
        grid.push(vec![
            column_head(backend),
            mib(peak),
            mib(rest),
            objects.to_string(),
        ]);
    }
    format!(
        "{}Largest row of each; objects: allocated from the backend in a sample of that row.\n",
        align(&grid)
    )
}
