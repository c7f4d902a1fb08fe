//! `bench-suite verdict FILE.json …`: is one backend at least as good as the better of its rivals in every row?
//!
//! For each row the rival with the better mean is taken, which favours the rivals: of two equal ones, chance makes one
//! look good. The figure is the quotient of costs (times, or inverted rates), so that more than 1 is worse whatever the
//! metric, with the exact interval that belongs to the Mann–Whitney test. Over m rows, Holm's procedure asks of the
//! i-th most extreme row an interval at 1 - alpha / (m - i): the chance that any good row of the whole table is failed
//! is then at most alpha.
//!
//! A row that stands in several files fails only when it fails in each: what one run of a machine shows alone may be
//! that run's.

use crate::cli::{bad_arguments, print};
use crate::compare::settings::parse_percentage;
use crate::report::{Report, Row};
use crate::stats::{Interval, holm, mann_whitney_p, shift};
use crate::table::{align, column_head};
use clap::Args;
use std::path::PathBuf;
use std::process::ExitCode;

/// The options of `verdict`.
#[derive(Args)]
pub struct Verdict {
    /// Finished runs: files that `compare` wrote
    #[arg(value_name = "FILE.json", required = true)]
    files: Vec<PathBuf>,

    /// The backend to judge
    #[arg(long, value_name = "NAME", default_value = "unified")]
    of: String,

    /// Its rivals, of which the better counts in each row
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "slab,slub"
    )]
    against: Vec<String>,

    /// How many per cent worse still passes
    #[arg(long, value_name = "PCT", allow_negative_numbers = true, value_parser = parse_percentage, default_value = "2")]
    within: f64,

    /// How many per cent more peak memory than the smaller of the rivals' still passes
    #[arg(long, value_name = "PCT", allow_negative_numbers = true, value_parser = parse_percentage, default_value = "5")]
    rss_within: f64,

    /// Print the rows that fail, and the sum, only
    #[arg(long)]
    brief: bool,
}

/// The tail probability of the whole table.
const ALPHA: f64 = 0.05;

/// What became of a row, from the best to the worst.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Judgement {
    /// Nothing shows that it is worse than allowed.
    Pass,
    /// Too few samples: no difference, however large, could fail it.
    Undecided,
    /// Fast enough, but its peak memory is larger than allowed.
    Memory,
    /// The whole interval is worse than allowed.
    Fail,
}

impl Judgement {
    /// As tables print it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Undecided => "undecided",
            Self::Memory => "FAIL RSS",
            Self::Fail => "FAIL",
        }
    }
}

impl Verdict {
    /// What `bench-suite verdict` asks unless it is told otherwise, without files.
    pub fn of_unified() -> Self {
        Self {
            files: Vec::new(),
            of: "unified".to_owned(),
            against: ["slab", "slub"].map(str::to_owned).to_vec(),
            within: 2.0,
            rss_within: 5.0,
            brief: false,
        }
    }
}

/// One row's verdict.
#[derive(Clone, Debug)]
pub struct Line {
    /// `workload row metric`.
    pub label: String,
    /// The better rival.
    pub rival: String,
    /// Cost over the rival's cost.
    pub ratio: f64,
    /// Its interval, corrected for the number of rows.
    pub interval: Option<Interval>,
    /// Peak resident memory over the smallest of the rivals'.
    pub rss: Option<f64>,
    /// The allocator's share of the row's time.
    pub share: Option<f64>,
    /// The result.
    pub judgement: Judgement,
}

impl Line {
    /// The row's workload.
    pub fn workload(&self) -> &str {
        self.label.split(' ').next().unwrap_or_default()
    }
}

/// The verdict on `of` against the better of `against`, row by row; rows without all of them are left out. `within`
/// is what may be worse, in per cent.
pub fn judge(reports: &[Report], of: &str, against: &[String], within: f64) -> Vec<Line> {
    let limit = 1.0 + within / 100.0;
    let mut pairs: Vec<(&Row, &Row, Option<f64>)> = Vec::new();
    // A figure of 0 is no part of a quotient.
    let measured = |row: &Row| row.samples.iter().all(|sample| *sample > 0.0);
    for report in reports {
        for row in report.rows.iter().filter(|row| row.backend == of) {
            let rivals: Vec<&Row> = (against.iter())
                .filter_map(|name| {
                    let mut rows = report.rows.iter();
                    rows.find(|rival| rival.backend == *name && rival.same_measurement(row))
                })
                .collect();
            if rivals.len() != against.len()
                || !rivals.iter().all(|r| measured(r))
                || !measured(row)
            {
                continue;
            }
            let rss = rivals.iter().map(|rival| rival.rss_peak_kib).min();
            let rss = rss.filter(|kib| *kib > 0);
            let rss = rss.map(|kib| row.rss_peak_kib as f64 / kib as f64);
            let cost = |row: &Row| {
                let costs = row.costs();
                costs.iter().sum::<f64>() / costs.len() as f64
            };
            if let Some(best) = (rivals.into_iter()).min_by(|a, b| cost(a).total_cmp(&cost(b))) {
                pairs.push((row, best, rss));
            }
        }
    }
    // How surprising is each row if it were exactly at the limit, on the bad side of it?
    let p: Vec<f64> = (pairs.iter())
        .map(|(row, rival, _)| {
            let allowed: Vec<f64> = rival.costs().iter().map(|cost| cost * limit).collect();
            let worse =
                shift::ratio(&row.costs(), &allowed, ALPHA).is_some_and(|r| r.estimate > 1.0);
            if worse {
                mann_whitney_p(&row.costs(), &allowed)
            } else {
                1.0
            }
        })
        .collect();
    let levels = holm::levels(&p, ALPHA);
    let mut lines: Vec<(f64, Line)> = Vec::new();
    for (i, (row, rival, rss)) in pairs.iter().enumerate() {
        let ratio = shift::ratio(&row.costs(), &rival.costs(), levels[i]);
        let interval = ratio.and_then(|ratio| ratio.interval);
        let judgement = match interval {
            None => Judgement::Undecided,
            Some(interval) if interval.low > limit => Judgement::Fail,
            Some(_) => Judgement::Pass,
        };
        let line = Line {
            label: format!("{} {} {}", row.workload, row.row, row.metric),
            rival: column_head(&rival.backend),
            ratio: ratio.map_or(f64::NAN, |ratio| ratio.estimate),
            interval,
            rss: *rss,
            share: row.share_pct,
            judgement,
        };
        lines.push((levels[i], line));
    }
    // Step down: where one row passes, those that were asked less pass too.
    let strictest_pass = (lines.iter())
        .filter(|(_, line)| line.judgement == Judgement::Pass)
        .map(|(level, _)| *level)
        .reduce(f64::min);
    for (level, line) in &mut lines {
        if line.judgement == Judgement::Fail && strictest_pass.is_some_and(|pass| pass < *level) {
            line.judgement = Judgement::Pass;
        }
    }
    lines.into_iter().map(|(_, line)| line).collect()
}

/// The verdict over several runs: a row of more than one fails only where every one of them fails it, in time or in
/// memory. The line shown is the best for it.
pub fn judge_all(reports: &[Report], options: &Verdict) -> Vec<Line> {
    let mut all: Vec<Line> = Vec::new();
    for report in reports {
        let one = std::slice::from_ref(report);
        let mut lines = judge(one, &options.of, &options.against, options.within);
        for line in &mut lines {
            let fat = line
                .rss
                .is_some_and(|rss| rss > 1.0 + options.rss_within / 100.0);
            if fat && line.judgement == Judgement::Pass {
                line.judgement = Judgement::Memory;
            }
        }
        for line in lines {
            match all.iter_mut().find(|known| known.label == line.label) {
                None => all.push(line),
                Some(known) if line.judgement < known.judgement => *known = line,
                Some(_) => {}
            }
        }
    }
    all
}

/// The verdict as text.
pub fn render(lines: &[Line], options: &Verdict) -> String {
    let of = column_head(&options.of);
    let mut grid = vec![
        [
            "", "against", "cost", "interval", "peak RSS", "alloc", "verdict",
        ]
        .map(str::to_owned)
        .to_vec(),
    ];
    let quotient = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |v| format!("{v:.3}"));
    for line in lines {
        if options.brief && line.judgement == Judgement::Pass {
            continue;
        }
        grid.push(vec![
            line.label.clone(),
            line.rival.clone(),
            quotient(Some(line.ratio).filter(|ratio| ratio.is_finite())),
            line.interval.map_or_else(
                || "-".to_owned(),
                |i| format!("{:.3} .. {:.3}", i.low, i.high),
            ),
            quotient(line.rss),
            crate::table::format_share(line.share),
            line.judgement.name().to_owned(),
        ]);
    }
    let count = |judgement| lines.iter().filter(|l| l.judgement == judgement).count();
    format!(
        "{of} against the better of {}, row by row\n{}\
         cost: {of}'s time over the rival's (rates inverted), 1 is equal, more is worse. interval: exact, {} % over \
         all {} rows\ntogether (Holm). FAIL: all of it above {:.2}. peak RSS: over the smaller of the rivals'. alloc: \
         {of}'s share of the row's time. FAIL RSS: above {:.2}. A row in several files fails only if each fails it.\n\
         {} pass, {} fail, {} fail by memory, {} undecided\n",
        options.against.join(", "),
        align(&grid),
        100.0 * (1.0 - ALPHA),
        lines.len(),
        1.0 + options.within / 100.0,
        1.0 + options.rss_within / 100.0,
        count(Judgement::Pass),
        count(Judgement::Fail),
        count(Judgement::Memory),
        count(Judgement::Undecided)
    )
}

/// Runs `bench-suite verdict`: status 3 when a row fails, 1 when one cannot be decided.
pub fn main(options: &Verdict) -> ExitCode {
    let mut reports = Vec::new();
    for file in &options.files {
        match Report::read(file) {
            Ok(mut report) => {
                report.compute();
                reports.push(report);
            }
            Err(error) => return bad_arguments(&error),
        }
    }
    if options.against.contains(&options.of) {
        return bad_arguments(&format!("--against: '{}' is judged itself", options.of));
    }
    let lines = judge_all(&reports, options);
    if lines.is_empty() {
        let names: Vec<&str> = (reports.iter())
            .flat_map(|report| report.config.backends.iter().map(String::as_str))
            .collect();
        return bad_arguments(&format!(
            "no row has figures of {} and {}; the files hold {}",
            options.of,
            options.against.join(", "),
            names.join(", ")
        ));
    }
    print(&render(&lines, options));
    let has = |judgement| lines.iter().any(|line| line.judgement == judgement);
    if has(Judgement::Undecided) {
        eprintln!(
            "bench-suite: too few samples for a verdict over {} rows: run compare with --runs {} or more",
            lines.len(),
            shift::rounds_needed(ALPHA / lines.len() as f64)
        );
    }
    let fails = has(Judgement::Fail) || has(Judgement::Memory);
    match (fails, has(Judgement::Undecided)) {
        (true, _) => ExitCode::from(3),
        (false, true) => ExitCode::from(1),
        (false, false) => ExitCode::SUCCESS,
    }
}
