//! sysbench: OLTP transactions with 1 to 8 threads, and its memory test.
//!
//! A transaction is that of sysbench's read/write test: ten point selects, four range queries of 100 rows (plain, sum,
//! ordered, distinct), an update of an indexed and of an unindexed column, a delete with an insert. What a database
//! holds on the way comes from the heap under test:
//!
//! ```text
//!  session: statement ─> nodes     result set (grows)      log records ──> kept until the commit
//!                │ key                ▲ copies of rows
//!                ▼                    │
//!  table, shared by all threads:  [ row | row | … ] in 64 locked parts; an update puts a new row in the place
//!                                 of the old one, which another thread may have made
//! ```
//! The memory test takes a block, writes or reads all of it and gives it back, as the original does with its one
//! buffer a thread.

use super::store::{Buf, Owned};
use super::{Job, Measurement, Options, Outcome, RowSpec, Workload, args, crew, die};
use crate::objects::{CacheRun, Objects, dispatch};
use crate::rng::Rng;
use crate::stats::Better;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

/// The workload.
pub struct Sysbench;

const USAGE: &str = "-t THREADS,.. -n ROWS -b BLOCK_BYTES -l SECONDS -m oltp|memory|all";

/// A row: id, k, c[120], pad[60].
const ROW: usize = 188;
/// Where the indexed column, and the unindexed one, stand in it.
const COLUMN_K: usize = 4;
const COLUMN_C: usize = 8;
/// Rows of a range query.
const RANGE: usize = 100;
/// Locks over the table.
const PARTS: usize = 64;

struct Settings {
    threads: Vec<usize>,
    rows: usize,
    block: usize,
    length: Duration,
    oltp: bool,
    memory: bool,
}

impl Settings {
    fn parse(options: &Options) -> Result<Self, String> {
        const NAME: &str = "sysbench";
        let mut settings = Self {
            threads: (1..=8).collect(),
            rows: 10_000,
            block: 1024,
            length: Duration::from_millis(if options.quick { 100 } else { 1000 }),
            oltp: true,
            memory: true,
        };
        for (letter, value) in args::parse(NAME, "t:n:b:l:m:", USAGE, &options.args)? {
            let value = value.unwrap_or_default();
            match letter {
                't' => settings.threads = args::numbers(NAME, 't', &value, 1..=256)?,
                'n' => settings.rows = args::number(NAME, 'n', &value, RANGE..=10_000_000)?,
                'b' => settings.block = args::number(NAME, 'b', &value, 8..=1 << 20)?,
                'l' => settings.length = args::seconds(NAME, 'l', &value)?,
                _ => {
                    (settings.oltp, settings.memory) = match value.as_str() {
                        "oltp" => (true, false),
                        "memory" => (false, true),
                        "all" => (true, true),
                        _ => {
                            return Err(format!(
                                "sysbench: -m '{value}': no such test; valid: oltp, memory, all"
                            ));
                        }
                    }
                }
            }
        }
        Ok(settings)
    }
}

impl Workload for Sysbench {
    fn name(&self) -> &'static str {
        "sysbench"
    }

    fn about(&self) -> &'static str {
        "OLTP transactions with 1 to 8 threads on a shared table; memory blocks written and read"
    }

    fn usage(&self) -> &'static str {
        USAGE
    }

    fn plan(&self, options: &Options) -> Result<Vec<Job>, String> {
        let settings = Settings::parse(options)?;
        let mut jobs = Vec::new();
        let mut add = |name: String, threads: usize, metric, unit| {
            jobs.push(Job {
                rows: vec![RowSpec {
                    row: name.clone(),
                    metric,
                    unit,
                    better: Better::Higher,
                }],
                name,
                time_limit: Duration::from_secs(60) + settings.length * 4,
                threads,
            });
        };
        if settings.oltp {
            for &threads in &settings.threads {
                add(
                    format!("oltp/{threads}"),
                    threads,
                    "transactions",
                    "trans/s",
                );
            }
        }
        if settings.memory {
            for way in ["write", "read"] {
                for &threads in &settings.threads {
                    // sysbench's memory test has no rows on the kernel list: a few thread counts show the scaling.
                    if threads.is_power_of_two() {
                        add(
                            format!("memory-{way}/{threads}"),
                            threads,
                            "memory",
                            "MiB/s",
                        );
                    }
                }
            }
        }
        Ok(jobs)
    }

    fn run(&self, backend: &str, job: &str, options: &Options) -> Result<Outcome, String> {
        dispatch::<Self>(backend, job, options)
    }
}

impl CacheRun for Sysbench {
    fn run<O: Objects>(job: &str, options: &Options) -> Result<Outcome, String> {
        let settings = Settings::parse(options)?;
        let (test, threads) = job
            .split_once('/')
            .ok_or_else(|| format!("sysbench: no row '{job}'"))?;
        let threads = args::number("sysbench", 't', threads, 1..=256)?;
        let (pace, metric, scale) = match test {
            "oltp" => {
                let table = Table::<O>::new(settings.rows);
                let pace = crew::run(threads, settings.length, options.cpus, |index, meter| {
                    let mut session = Session::new(&table, index as u64);
                    loop {
                        session.transaction();
                        if !meter.tick() {
                            break;
                        }
                    }
                });
                (pace, "transactions", 1.0)
            }
            "memory-write" | "memory-read" => {
                let writes = test == "memory-write";
                let pace = crew::run(threads, settings.length, options.cpus, |_, meter| {
                    memory::<O>(settings.block, writes, meter)
                });
                (
                    pace,
                    "memory",
                    settings.block as f64 / f64::from(1u32 << 20),
                )
            }
            _ => return Err(format!("sysbench: no test '{test}'; valid: {USAGE}")),
        };
        if pace.operations == 0 {
            return Err(format!(
                "sysbench: {job}: nothing was done after the warm-up; try a longer -l"
            ));
        }
        Ok(Outcome {
            objects: pace.objects,
            measurements: vec![Measurement {
                row: job.to_owned(),
                metric: metric.to_owned(),
                value: pace.rate * scale,
            }],
            ..Outcome::default()
        })
    }
}

/// Blocks, one after another.
fn memory<O: Objects>(block: usize, writes: bool, meter: &mut crew::Meter<'_>) {
    let mut source = Buf::<O>::filled(block, 0);
    let mut byte = 0u8;
    while meter.tick() {
        byte = byte.wrapping_add(1);
        if writes {
            std::hint::black_box(&*Buf::<O>::filled(block, byte));
        } else {
            // Reading needs something to read: the new block replaces the old one, which is read first.
            let sum: u64 = source.iter().map(|byte| u64::from(*byte)).sum();
            std::hint::black_box(sum);
            source = Buf::copy_of(&source);
        }
    }
}

/// The shared table.
struct Table<O: Objects> {
    parts: Vec<Mutex<Vec<Buf<O>>>>,
    rows: usize,
}

impl<O: Objects> Table<O> {
    fn new(rows: usize) -> Self {
        let mut rng = Rng::new(1);
        let mut parts: Vec<Vec<Buf<O>>> = (0..PARTS).map(|_| Vec::new()).collect();
        // Neighbouring rows share a part, so that a range query takes one lock or two.
        let each = rows.div_ceil(PARTS);
        for id in 0..rows {
            parts[id / each].push(row(id, rng.next_u64() as u32));
        }
        Self {
            parts: parts.into_iter().map(Mutex::new).collect(),
            rows,
        }
    }

    fn part(&self, id: usize) -> (MutexGuard<'_, Vec<Buf<O>>>, usize) {
        let each = self.rows.div_ceil(PARTS);
        let part = self.parts[id / each].lock();
        (
            part.unwrap_or_else(|_| die("sysbench: another session panicked")),
            id % each,
        )
    }

    /// A copy of a row.
    fn read(&self, id: usize) -> Buf<O> {
        let (part, at) = self.part(id);
        Buf::copy_of(&part[at])
    }

    /// Puts `new` in the place of a row; the old one ends here.
    fn replace(&self, id: usize, new: Buf<O>) -> Buf<O> {
        let (mut part, at) = self.part(id);
        std::mem::replace(&mut part[at], new)
    }
}

fn row<O: Objects>(id: usize, k: u32) -> Buf<O> {
    let mut row = Buf::filled(ROW, b'0' + (id % 10) as u8);
    row[..4].copy_from_slice(&(id as u32).to_le_bytes());
    row[COLUMN_K..COLUMN_C].copy_from_slice(&k.to_le_bytes());
    row
}

fn k_of(row: &[u8]) -> u32 {
    u32::from_le_bytes([row[4], row[5], row[6], row[7]])
}

/// What a statement is parsed into.
struct Node<O: Objects> {
    text: Buf<O>,
    next: Option<Owned<O, Node<O>>>,
}

/// A statement's nodes, freed with it.
struct Statement<O: Objects>(Option<Owned<O, Node<O>>>);

impl<O: Objects> Statement<O> {
    fn parse(text: &str) -> Self {
        let mut first = None;
        for word in text.split(' ') {
            first = Some(Owned::new(Node {
                text: Buf::copy_of(word.as_bytes()),
                next: first,
            }));
        }
        Self(first)
    }

    /// Bytes of the words: every node is visited.
    fn len(&self) -> usize {
        let mut len = 0;
        let mut node = self.0.as_ref();
        while let Some(here) = node {
            len += here.text.len();
            node = here.next.as_ref();
        }
        len
    }
}

/// A connection: its random numbers and the log of its transaction.
struct Session<'a, O: Objects> {
    table: &'a Table<O>,
    rng: Rng,
    log: Vec<Buf<O>>,
}

impl<'a, O: Objects> Session<'a, O> {
    fn new(table: &'a Table<O>, seed: u64) -> Self {
        Self {
            table,
            rng: Rng::new(seed + 100),
            log: Vec::with_capacity(16),
        }
    }

    fn transaction(&mut self) {
        for _ in 0..10 {
            self.point_select();
        }
        for kind in 0..4 {
            self.range(kind);
        }
        self.update_index();
        self.update_non_index();
        self.delete_insert();
        // Commit: the log is written out in one piece, and its records end.
        let bytes: usize = self.log.iter().map(|record| record.len()).sum();
        let mut flushed = Buf::<O>::filled(bytes.max(1), 0);
        let mut at = 0;
        for record in self.log.drain(..) {
            flushed[at..at + record.len()].copy_from_slice(&record);
            at += record.len();
        }
        std::hint::black_box(&*flushed);
    }

    fn point_select(&mut self) {
        let statement = Statement::<O>::parse("SELECT c FROM sbtest WHERE id = ?");
        let id = self.rng.below(self.table.rows);
        let key = Buf::<O>::copy_of(&id.to_be_bytes());
        let row = self.table.read(id);
        std::hint::black_box((statement.len(), key.len(), row[COLUMN_C]));
    }

    fn range(&mut self, kind: usize) {
        let statement = Statement::<O>::parse(match kind {
            0 => "SELECT c FROM sbtest WHERE id BETWEEN ? AND ?",
            1 => "SELECT SUM ( k ) FROM sbtest WHERE id BETWEEN ? AND ?",
            2 => "SELECT c FROM sbtest WHERE id BETWEEN ? AND ? ORDER BY c",
            _ => "SELECT DISTINCT c FROM sbtest WHERE id BETWEEN ? AND ? ORDER BY c",
        });
        let from = self.rng.below(self.table.rows - RANGE + 1);
        let mut rows: Vec<Buf<O>> = (from..from + RANGE).map(|id| self.table.read(id)).collect();
        match kind {
            1 => {
                let sum: u64 = rows.iter().map(|row| u64::from(k_of(row))).sum();
                std::hint::black_box(sum);
                return;
            }
            2 => rows.sort_by(|a, b| a[COLUMN_C..].cmp(&b[COLUMN_C..])),
            3 => {
                rows.sort_by(|a, b| a[COLUMN_C..].cmp(&b[COLUMN_C..]));
                rows.dedup_by(|a, b| a[COLUMN_C..] == b[COLUMN_C..]);
            }
            _ => {}
        }
        // The result set grows as rows are sent.
        let mut result = Buf::<O>::filled(1024, 0);
        let mut used = 0;
        for row in &rows {
            let column = &row[COLUMN_C..COLUMN_C + 120];
            if used + column.len() > result.len() {
                let double = result.len() * 2;
                result = result.grown(double);
            }
            result[used..used + column.len()].copy_from_slice(column);
            used += column.len();
        }
        std::hint::black_box((statement.len(), &*result));
    }

    fn log(&mut self, old: &[u8], new: &[u8]) {
        let mut record = Buf::filled(24 + old.len() + new.len(), 0);
        record[24..24 + old.len()].copy_from_slice(old);
        record[24 + old.len()..].copy_from_slice(new);
        self.log.push(record);
    }

    fn update_index(&mut self) {
        let statement = Statement::<O>::parse("UPDATE sbtest SET k = k + 1 WHERE id = ?");
        let id = self.rng.below(self.table.rows);
        let mut new = self.table.read(id);
        let k = k_of(&new).wrapping_add(1).to_le_bytes();
        new[COLUMN_K..COLUMN_C].copy_from_slice(&k);
        // The index's old and new key.
        let keys = [Buf::<O>::filled(24, k[0]), Buf::<O>::filled(24, k[1])];
        let old = self.table.replace(id, new);
        self.log(&old[..COLUMN_C], &k);
        std::hint::black_box((statement.len(), keys[0][0], keys[1][0]));
    }

    fn update_non_index(&mut self) {
        let statement = Statement::<O>::parse("UPDATE sbtest SET c = ? WHERE id = ?");
        let id = self.rng.below(self.table.rows);
        let mut new = self.table.read(id);
        let c = (self.rng.next_u64() % 10) as u8 + b'0';
        new[COLUMN_C..COLUMN_C + 120].fill(c);
        let after = [c; 120];
        let old = self.table.replace(id, new);
        self.log(&old[COLUMN_C..COLUMN_C + 120], &after);
        std::hint::black_box(statement.len());
    }

    fn delete_insert(&mut self) {
        let statements = [
            Statement::<O>::parse("DELETE FROM sbtest WHERE id = ?"),
            Statement::<O>::parse(
                "INSERT INTO sbtest ( id , k , c , pad ) VALUES ( ? , ? , ? , ? )",
            ),
        ];
        let id = self.rng.below(self.table.rows);
        let new = row(id, self.rng.next_u64() as u32);
        let after: [u8; ROW] = std::array::from_fn(|at| new[at]);
        let old = self.table.replace(id, new);
        self.log(&old, &[]);
        self.log(&[], &after);
        std::hint::black_box((statements[0].len(), statements[1].len()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::Cached;

    type Unified = Cached<slab_unified::Unified>;

    fn options(text: &str) -> Options {
        Options {
            args: text.split_whitespace().map(str::to_owned).collect(),
            ..Options::default()
        }
    }

    #[test]
    fn every_row_is_measured() {
        let options = options("-t 1,2 -n 500 -l 0.02");
        for job in Sysbench.plan(&options).unwrap() {
            let outcome = <Sysbench as CacheRun>::run::<Unified>(&job.name, &options).unwrap();
            assert_eq!(outcome.measurements[0].row, job.rows[0].row);
            assert_eq!(outcome.measurements[0].metric, job.rows[0].metric);
            assert!(outcome.measurements[0].value > 0.0 && outcome.objects > 0);
        }
    }

    #[test]
    fn transactions_keep_every_row_in_its_place() {
        let table = Table::<Unified>::new(300);
        let mut session = Session::new(&table, 3);
        for _ in 0..20 {
            session.transaction();
        }
        assert!(session.log.is_empty());
        let rows: Vec<u32> = (0..300)
            .map(|id| table.read(id))
            .map(|row| u32::from_le_bytes([row[0], row[1], row[2], row[3]]))
            .collect();
        assert_eq!(rows, (0..300).collect::<Vec<u32>>());
    }

    #[test]
    fn wrong_options_are_named() {
        let error = |text| Settings::parse(&options(text)).map(|_| ()).unwrap_err();
        assert!(error("-m disk").contains("'disk'"));
        assert!(error("-n 5").contains("-n '5'"));
        assert!(error("-l none").contains("-l 'none'"));
    }
}
