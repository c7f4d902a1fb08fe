//! Real programs under the library: the same output as without it, for each backend, and a proof
//! from /proc/PID/maps that the library was in the process that did the work.

mod common;

use std::fs;
use std::io::Write as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use common::{
    BACKENDS, Outcome, Run, SECURE, find_program, fresh_dir, kill_group, library, need,
    same_output, same_output_in,
};

/// As [`same_output`], with the hardened heaps as well.
fn same_output_secure(workers: &[&str], run: impl Fn(Option<&str>) -> Outcome) {
    same_output_in(&[BACKENDS, SECURE].concat(), workers, run);
}

const PYTHON_THREADS: &str = r#"
import threading, hashlib, json, re
lock, digests = threading.Lock(), {}
def work(seed):
    words = ["%d-%s" % (i * seed % 7919, "x" * (i % 300)) for i in range(20000)]
    table = {}
    for word in words:
        table.setdefault(word[:3], []).append(word)
    text = json.dumps(table, sort_keys=True)
    again = json.loads(text)
    for key in list(again)[::2]:
        del again[key]
    blob = b"".join(bytearray(i % 5000) for i in range(2000))
    found = re.findall(r"\d+-x{5,9}\b", text)
    with lock:
        digests[seed] = hashlib.sha256(text.encode() + blob + repr(sorted(again)).encode()).hexdigest() + str(len(found))
threads = [threading.Thread(target=work, args=(seed,)) for seed in range(1, 9)]
[t.start() for t in threads]
[t.join() for t in threads]
for seed in sorted(digests):
    print(seed, digests[seed])
"#;

#[test]
fn python_threads() {
    let Some(python) = need("python3") else {
        return;
    };
    same_output_secure(&["python3"], |backend| {
        Run::under(&python, backend)
            .args(["-c", PYTHON_THREADS])
            .run()
    });
}

const PYTHON_PROCESSES: &str = r#"
import multiprocessing, threading, time
def work(n):
    data = [str(i) * (i % 50) for i in range(n)]
    return sum(map(len, sorted(data, key=lambda s: s[::-1])))
def churn(stop):
    while not stop.is_set():
        [bytearray(i) for i in range(500)]
if __name__ == "__main__":
    stop = threading.Event()
    threads = [threading.Thread(target=churn, args=(stop,)) for _ in range(3)]
    [t.start() for t in threads]
    for kind in ("fork", "spawn"):
        with multiprocessing.get_context(kind).Pool(4) as pool:
            print(kind, pool.map(work, range(1000, 30000, 1000)))
    stop.set()
    [t.join() for t in threads]
"#;

#[test]
fn python_multiprocessing() {
    let Some(python) = need("python3") else {
        return;
    };
    let script = fresh_dir("python").join("pool.py");
    fs::write(&script, PYTHON_PROCESSES).expect("a script");
    same_output_secure(&["python3"], |backend| {
        Run::under(&python, backend).arg(&script).run()
    });
}

const CXX: &str = r##"
#include <algorithm>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <regex>
#include <string>
#include <unordered_map>
#include <vector>
template <int N> struct table { std::map<std::string, std::vector<int>> m; table<N - 1> next; int sum() { int s = N; for (auto &[k, v] : m) s += v.size() + k.size(); return s + next.sum(); } };
template <> struct table<0> { int sum() { return 0; } };
int main() {
    table<60> t;
    std::regex r(R"((\d+)-(\w+))");
    std::unordered_map<std::string, std::function<int(int)>> f;
    for (int i = 0; i < 10; i++) f[std::to_string(i)] = [=](int x) { return x + i; };
    std::cout << t.sum() << f.size() << std::regex_match(std::string(), r);
}
"##;

#[test]
fn gcc() {
    let Some(gxx) = need("g++") else { return };
    let directory = fresh_dir("gcc");
    fs::write(directory.join("program.cpp"), CXX).expect("a source file");
    same_output_secure(&["cc1plus"], |backend| {
        Run::under(&gxx, backend)
            .args(["-std=c++17", "-O2", "-S", "-o", "-", "program.cpp"])
            .dir(&directory)
            .run()
    });
}

const GIT: &str = r#"
set -e
git init -q -b main repo && cd repo
git config user.name tester && git config user.email tester@example.org && git config gc.auto 0 && git config core.fsync none
for commit in 1 2 3 4 5 6; do
    for file in $(seq 1 40); do
        mkdir -p "d$((file % 7))"
        seq $((commit * file)) $((commit * file + 300 * file)) > "d$((file % 7))/f$file.txt"
    done
    git add -A
    GIT_AUTHOR_DATE="@$((1700000000 + commit)) +0000" GIT_COMMITTER_DATE="@$((1700000000 + commit)) +0000" git commit -q -m "commit $commit"
done
cd .. && git clone -q --no-local repo copy && cd copy
git log --stat --format='%H %an %s'
git gc -q --aggressive --prune=now
git fsck --full --strict 2>&1 | grep -v '^Checking\|^notice' || true
git diff --stat HEAD~3 HEAD
git rev-list --objects --all | git cat-file --batch-check='%(objectname) %(objecttype) %(objectsize)' | sort
"#;

#[test]
fn git() {
    let (Some(bash), Some(_)) = (need("bash"), need("git")) else {
        return;
    };
    same_output_secure(&["git", "bash"], |backend| {
        Run::under(&bash, backend)
            .args(["-c", GIT])
            .dir(fresh_dir("git"))
            .env("HOME", fresh_dir("home"))
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .run()
    });
}

const PERL: &str = r#"
my %h; my $s = 12345;
for my $i (1 .. 150000) { $s = ($s * 1103515245 + 12345) % 2147483648; push @{ $h{ $s % 5000 } }, "v$s" x ($s % 9); }
my $t = join ",", map { scalar(@{ $h{$_} }) . ":" . length(join "", @{ $h{$_} }) } sort { $a <=> $b } keys %h;
delete $h{$_} for grep { $_ % 2 } keys %h;
(my $u = $t) =~ s/(\d+):(\d+)/$2-$1/g;
print unpack("%32C*", $t), " ", unpack("%32C*", $u), " ", scalar(keys %h), " ", length($u x 50), "\n";
if (open(my $in, "-|", "echo forked")) { print <$in>; }
"#;

#[test]
fn perl() {
    let Some(perl) = need("perl") else { return };
    same_output(&["perl"], |backend| {
        Run::under(&perl, backend).args(["-e", PERL]).run()
    });
}

const SQL: &str = "
CREATE TABLE t(id INTEGER PRIMARY KEY, k INTEGER, v TEXT);
WITH RECURSIVE c(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM c WHERE i < 60000)
    INSERT INTO t SELECT i, i * 7919 % 1009, substr(hex(i * 123456789), 1, 12) || printf('%.*c', i % 200, 'x') FROM c;
CREATE INDEX tk ON t(k, v);
SELECT k, count(*), sum(length(v)), max(v) FROM t GROUP BY k ORDER BY k LIMIT 50;
DELETE FROM t WHERE id % 3 = 0;
UPDATE t SET v = v || v WHERE k < 300;
VACUUM;
SELECT count(*), sum(length(v)), group_concat(DISTINCT k % 10) FROM t;
PRAGMA integrity_check;
";

#[test]
fn sqlite() {
    let Some(sqlite) = need("sqlite3") else {
        return;
    };
    same_output(&["sqlite3"], |backend| {
        Run::under(&sqlite, backend)
            .arg(fresh_dir("sqlite").join("db"))
            .stdin(SQL.as_bytes())
            .run()
    });
}

#[test]
fn bash_forks_a_thousand_times() {
    let Some(bash) = need("bash") else { return };
    let script = "sum=0; for i in $(seq 1 1000); do x=$(echo $((i * 3))); sum=$((sum + x)); done; (exit 7); echo $sum $? ${#BASH_VERSION}";
    same_output(&["bash"], |backend| {
        Run::under(&bash, backend).args(["-c", script]).run()
    });
}

const AWK: &str = r#"
BEGIN {
    seed = 42
    for (i = 0; i < 300000; i++) { seed = (seed * 16807) % 2147483647; count[seed % 20000]++; text[seed % 3000] = text[seed % 3000] substr("abcdefghijklmnop", seed % 16 + 1, 3) }
    n = asorti(count, keys)
    for (i = 1; i <= n; i += 97) printf "%s=%d\n", keys[i], count[keys[i]]
    for (k in text) { gsub(/a[a-c]+/, "<&>", text[k]); total += length(text[k]) }
    print total
}"#;

#[test]
fn gawk() {
    let Some(gawk) = need("gawk") else { return };
    same_output(&["gawk"], |backend| {
        Run::under(&gawk, backend).arg(AWK).run()
    });
}

#[test]
fn sort() {
    let Some(sort) = need("sort") else { return };
    let mut text = String::new();
    let mut seed = 1u64;
    for _ in 0..300_000 {
        seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        text += &format!(
            "{} {}\n",
            seed >> 33,
            "y".repeat((seed >> 40) as usize % 60)
        );
    }
    let input = fresh_dir("sort").join("input");
    fs::write(&input, text).expect("an input file");
    same_output(&["sort"], |backend| {
        Run::under(&sort, backend)
            .args(["--parallel=4", "-S", "8M", "-k2,2r", "-k1,1n"])
            .arg(&input)
            .run()
    });
}

/// Starts a redis server on a Unix socket, runs redis-benchmark against it and reads back what a
/// fixed list of commands leaves.
fn redis_session(server: &Path, backend: Option<&str>) -> String {
    let directory = fresh_dir("redis");
    // A socket's path is limited to 107 bytes, and the target directory's may be long.
    let sockets = tempfile::tempdir().expect("a short directory");
    let socket = sockets.path().join("redis");
    let mut child = Run::under(server, backend)
        .args([
            "--port",
            "0",
            "--save",
            "",
            "--appendonly",
            "no",
            "--daemonize",
            "no",
            "--logfile",
            "log",
            "--unixsocket",
        ])
        .arg(&socket)
        .args(["--activedefrag", "no"])
        .dir(&directory)
        .spawn();
    let result = std::panic::catch_unwind(|| redis_commands(&socket, child.id(), backend));
    kill_group(&child);
    let _ = child.wait();
    result.unwrap_or_else(|panic| {
        println!(
            "{}",
            fs::read_to_string(directory.join("log")).unwrap_or_default()
        );
        std::panic::resume_unwind(panic)
    })
}

fn redis_commands(socket: &Path, server: u32, backend: Option<&str>) -> String {
    let started = Instant::now();
    while UnixStream::connect(socket).is_err() {
        assert!(
            started.elapsed() < Duration::from_secs(30),
            "the server does not come up"
        );
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(
        common::is_mapped(library(), server),
        backend.is_some(),
        "/proc/{server}/maps"
    );
    let tool = |name: &str| -> PathBuf {
        find_program(name).unwrap_or_else(|| panic!("{name} is not installed"))
    };
    let benchmark = Run::plain(tool("redis-benchmark"))
        .arg("-s")
        .arg(socket)
        .args([
            "-n",
            "20000",
            "-c",
            "20",
            "-r",
            "10000",
            "-d",
            "400",
            "-q",
            "-t",
            "set,get,incr,lpush,lpop,sadd,hset,zadd,lrange_100,mset",
        ])
        .run()
        .expect_success("redis-benchmark");
    assert!(
        !benchmark.stdout_text().contains("ERR"),
        "{}",
        benchmark.stdout_text()
    );
    let mut commands = String::from("FLUSHALL\n");
    for i in 0..5000 {
        commands += &format!(
            "SET key{} {}\nRPUSH list{} {i}\nHSET hash{} field{i} {}\nAPPEND grow xyz\n",
            i % 700,
            "v".repeat(i * 7 % 1500),
            i % 20,
            i % 30,
            i * 3
        );
    }
    commands += "DEL list3\nSORT list1 DESC\nSTRLEN grow\nDBSIZE\nHLEN hash7\nSAVE\nDEBUG RELOAD\nGET key123\nLRANGE list5 0 -1\nBGSAVE\n";
    let replies = Run::plain(tool("redis-cli"))
        .arg("-s")
        .arg(socket)
        .stdin(commands.as_bytes())
        .run()
        .expect_success("redis-cli");
    replies.stdout_text()
}

#[test]
fn redis() {
    let (Some(server), Some(_), Some(_)) = (
        need("redis-server"),
        need("redis-benchmark"),
        need("redis-cli"),
    ) else {
        return;
    };
    let plain = redis_session(&server, None);
    assert!(
        plain.lines().count() > 20_000,
        "the commands were answered: {plain}"
    );
    for backend in [BACKENDS, SECURE].concat() {
        assert_eq!(redis_session(&server, Some(backend)), plain, "{backend}");
    }
}

/// The check itself: a program that ran without the library must not be reported as mapped.
#[test]
fn the_proof_can_fail() {
    let outcome = Run::plain("/bin/sh")
        .args(["-c", "sleep 0.2"])
        .env("LD_PRELOAD", "")
        .run()
        .expect_success("sh");
    assert!(outcome.mapped.is_empty());
    assert!(!common::is_mapped(library(), std::process::id()));
    std::io::stdout().flush().expect("stdout");
}
