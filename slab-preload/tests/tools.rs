//! More real programs under the library, as in `programs.rs`: compilers and run-times, archivers,
//! editors, a debugger, a database. What is not installed is skipped with a word.

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use common::{BACKENDS, Run, find_program, fresh_dir, library, same_output};

/// As `common::need`, for programs that CI does not install.
fn look_for(name: &str) -> Option<PathBuf> {
    let found = find_program(name);
    if found.is_none() {
        println!("skipped: {name} not installed");
    }
    found
}

/// A file of that name in a directory of its own.
fn file(name: &str, text: &str) -> PathBuf {
    let path = fresh_dir("file").join(name);
    fs::write(&path, text).expect("a file");
    path
}

/// Some text that is worth compressing, searching and sorting.
fn text(lines: u64) -> String {
    let mut seed = 7u64;
    (0..lines)
        .map(|line| {
            seed = seed
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            format!(
                "{line} {} {}\n",
                seed >> 40,
                "word ".repeat((seed >> 33) as usize % 20)
            )
        })
        .collect()
}

/// A shell script in an empty directory; the programs named must have had the library mapped.
fn script(needed: &[&str], workers: &[&str], text: &str) {
    let Some(bash) = look_for("bash") else { return };
    if !needed.iter().all(|name| look_for(name).is_some()) {
        return;
    }
    same_output(workers, |backend| {
        Run::under(&bash, backend)
            .args(["-c", text])
            .dir(fresh_dir("script"))
            .env("HOME", fresh_dir("home"))
            .run()
    });
}

const CTYPES: &str = r#"
import ctypes, random
libc = ctypes.CDLL(None)
libc.malloc.restype = libc.calloc.restype = libc.realloc.restype = ctypes.c_void_p
libc.realloc.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
libc.free.argtypes = libc.malloc_usable_size.argtypes = [ctypes.c_void_p]
random.seed(5)
blocks, total = [], 0
for i in range(20000):
    n = random.choice([random.randrange(1, 300), random.randrange(1, 100000)])
    p = libc.calloc(1, n) if i % 2 else libc.malloc(n)
    ctypes.memset(p, i % 251, n)
    p = libc.realloc(p, n * 2)
    assert ctypes.string_at(p, n) == bytes([i % 251]) * n
    blocks.append(p)
    if len(blocks) > 500:
        libc.free(blocks.pop(random.randrange(len(blocks))))
    total += n
@ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_int), ctypes.POINTER(ctypes.c_int))
def compare(a, b):
    return a[0] - b[0]
values = (ctypes.c_int * 5000)(*[random.randrange(1 << 20) for _ in range(5000)])
libc.qsort(values, 5000, 4, compare)
print(total, len(blocks), list(values)[::500])
"#;

#[test]
fn python_ctypes() {
    let Some(python) = look_for("python3") else {
        return;
    };
    same_output(&["python3"], |backend| {
        Run::under(&python, backend).args(["-c", CTYPES]).run()
    });
}

const RUST: &str = r#"
use std::collections::{BTreeMap, HashMap};
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Tree { Leaf(u32), Node(Box<Tree>, Box<Tree>) }
fn grow(depth: u32, seed: &mut u32) -> Tree {
    *seed = seed.wrapping_mul(1664525).wrapping_add(1013904223);
    if depth == 0 || *seed >> 29 == 0 { Tree::Leaf(*seed >> 16) } else { Tree::Node(Box::new(grow(depth - 1, seed)), Box::new(grow(depth - 1, seed))) }
}
fn main() {
    let mut seed = 1;
    let trees: Vec<Tree> = (0..200).map(|_| grow(9, &mut seed)).collect();
    let mut by: BTreeMap<usize, HashMap<String, Vec<Tree>>> = BTreeMap::new();
    for tree in &trees { let text = format!("{tree:?}"); by.entry(text.len() % 17).or_default().entry(text.chars().take(12).collect()).or_default().push(tree.clone()); }
    let sums: Vec<usize> = std::thread::scope(|s| { let h: Vec<_> = by.values().map(|m| s.spawn(|| m.values().map(Vec::len).sum())).collect(); h.into_iter().map(|h| h.join().unwrap()).collect() });
    println!("{sums:?} {}", trees.iter().map(|t| format!("{t:?}").len()).sum::<usize>());
}
"#;

/// rustc builds a crate, and the program that it built runs. (rustc brings a malloc of its own for
/// most of what it does; LLVM and the linker use ours.)
#[test]
fn rustc() {
    // Not the shim of rustup, but the compiler beside the cargo that runs this test.
    let beside = std::env::var_os("CARGO").map(|cargo| Path::new(&cargo).with_file_name("rustc"));
    let Some(rustc) = beside
        .filter(|path| path.is_file())
        .or_else(|| look_for("rustc"))
    else {
        return;
    };
    let source = file("main.rs", RUST);
    same_output(&["rustc"], |backend| {
        let program = fresh_dir("rustc").join("program");
        Run::under(&rustc, backend)
            .args([
                "--edition",
                "2021",
                "-C",
                "opt-level=2",
                "-C",
                "codegen-units=4",
                "-o",
            ])
            .arg(&program)
            .arg(&source)
            .run()
            .expect_success("rustc");
        let ran = Run::under(&program, backend).run();
        let mut again = Run::under(&rustc, backend)
            .args([
                "--edition",
                "2021",
                "--crate-type",
                "lib",
                "--emit",
                "metadata",
                "-o",
            ])
            .arg(program.with_file_name("metadata"))
            .arg(&source)
            .run()
            .expect_success("rustc");
        again.stdout = ran.stdout;
        again
    });
}

const NODE: &str = r#"
const { Worker, isMainThread, parentPort, workerData } = require("worker_threads");
const crypto = require("crypto"), zlib = require("zlib");
if (isMainThread) {
    const results = [];
    let left = 4;
    for (let i = 0; i < 4; i++) new Worker(__filename, { workerData: i }).on("message", (m) => { results[i] = m; if (--left === 0) console.log(JSON.stringify(results)); });
} else {
    const table = new Map();
    for (let i = 0; i < 60000; i++) { const k = (i * 7919 + workerData) % 5003; table.set(k, (table.get(k) || "") + String.fromCharCode(97 + i % 26)); }
    const text = JSON.stringify([...table]), packed = zlib.deflateSync(Buffer.from(text.repeat(5)));
    const buffers = Array.from({ length: 300 }, (_, i) => Buffer.alloc(i * 997, i));
    const hash = crypto.createHash("sha256").update(text).update(zlib.inflateSync(packed)).update(Buffer.concat(buffers));
    parentPort.postMessage(hash.digest("hex") + packed.length);
}
"#;

#[test]
fn node() {
    let Some(node) = look_for("node") else { return };
    let source = file("main.js", NODE);
    same_output(&["node"], |backend| {
        Run::under(&node, backend).arg(&source).run()
    });
}

const JAVA: &str = r#"
import java.util.*;
import java.util.stream.*;
import java.util.zip.*;
public class Main {
    public static void main(String[] args) throws Exception {
        Map<Integer, List<String>> map = IntStream.range(0, 200000).parallel().boxed().collect(Collectors.groupingBy(i -> i * 7919 % 1009, TreeMap::new, Collectors.mapping(i -> "v" + i, Collectors.toList())));
        byte[] bytes = map.toString().getBytes("UTF-8");
        Deflater deflater = new Deflater(6);
        deflater.setInput(bytes); deflater.finish();
        byte[] out = new byte[bytes.length + 1000];
        int n = deflater.deflate(out);
        Thread[] threads = new Thread[20];
        long[] sums = new long[20];
        for (int i = 0; i < 20; i++) { int k = i; threads[i] = new Thread(() -> { java.nio.ByteBuffer b = java.nio.ByteBuffer.allocateDirect(100000 + k); for (int j = 0; j < 1000; j++) sums[k] += b.get(j) + j; }); threads[i].start(); }
        for (Thread t : threads) t.join();
        System.out.println(bytes.length + " " + Arrays.hashCode(bytes) + " " + (n > 0) + " " + Arrays.stream(sums).sum());
    }
}
"#;

#[test]
fn java() {
    let Some(java) = look_for("java") else { return };
    let source = file("Main.java", JAVA);
    if !Run::plain(&java).arg(&source).limit(60).run().success() {
        println!("skipped: this java does not run source files (no compiler)");
        return;
    }
    same_output(&["java"], |backend| {
        Run::under(&java, backend).arg(&source).run()
    });
}

#[test]
fn openssl() {
    script(
        &["openssl"],
        &["openssl"],
        "seq 1 400000 > plain
         openssl enc -aes-256-cbc -pbkdf2 -iter 20000 -S 0011223344556677 -pass pass:word -in plain -out secret
         openssl dgst -sha512 -hex secret && openssl enc -d -aes-256-cbc -pbkdf2 -iter 20000 -pass pass:word -in secret -S 0011223344556677 | cmp - plain
         openssl genrsa -out key 2048 2>/dev/null && openssl req -x509 -key key -subj /CN=test -days 9 -out cert
         openssl dgst -sha256 -sign key -out signature plain && openssl rsa -in key -pubout -out public 2>/dev/null
         openssl dgst -sha256 -verify public -signature signature plain && openssl x509 -in cert -noout -subject
         openssl speed -seconds 1 -bytes 64 sha256 2>/dev/null | wc -l",
    );
}

#[test]
fn archivers() {
    script(
        &["tar", "xz", "zstd", "gzip", "sha256sum"],
        &["xz", "zstd"],
        "mkdir d && for i in $(seq 1 60); do seq $i $((i * 700)) > d/$i; done
         tar --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -cf t.tar d && sha256sum t.tar
         cat t.tar t.tar > big
         xz -T4 --block-size=1MiB -3 -k -c big | tee big.xz | sha256sum && xz -T4 -dc big.xz | cmp - big
         zstd -q -T4 -6 -c big | tee big.zst | sha256sum && zstd -q -dc big.zst | cmp - big
         gzip -9 -n -c big | sha256sum
         mkdir out && tar -xf t.tar -C out && diff -r d out/d && echo same",
    );
}

#[test]
fn gdb() {
    let source = file(
        "main.c",
        "#include <stdlib.h>\nint deep(int n) { return n ? deep(n - 1) + 1 : abs(-3); }\nint main(void) { char *p = malloc(10); p[0] = 7; return deep(20) + p[0]; }\n",
    );
    let directory = source.parent().expect("a directory").display().to_string();
    script(
        &["gdb", "gcc"],
        &["gdb"],
        &format!(
            "gcc -g -O0 -o {directory}/main {directory}/main.c
             gdb -q -nx -batch -ex 'break deep if n == 0' -ex run -ex bt -ex finish -ex 'info locals' -ex continue {directory}/main 2>&1 | grep -v -i 'thread\\|warning\\|debuginfo\\|process'"
        ),
    );
}

#[test]
fn vim() {
    let input = file("text", &text(20_000));
    script(
        &["vim"],
        &["vim"],
        &format!(
            "vim -Nu NONE -n -i NONE -es -c '%s/word word/WORD/g' -c 'g/7 /m0' -c '%sort n' -c 'w! out' -c 'qa!' {} && cksum out",
            input.display()
        ),
    );
}

#[test]
fn emacs() {
    script(
        &["emacs"],
        &["emacs"],
        r#"emacs -Q -batch --eval '(let ((table (make-hash-table :test (quote equal))) (sum 0)) (dotimes (i 30000) (puthash (format "%d" (% (* i 7919) 5003)) (make-string (% i 50) ?x) table)) (maphash (lambda (k v) (setq sum (+ sum (length v) (length k)))) table) (garbage-collect) (princ (format "%d %d\n" sum (hash-table-count table))))'"#,
    );
}

#[test]
fn curl() {
    let input = file("text", &text(100_000));
    script(
        &["curl", "cksum"],
        &["curl"],
        &format!(
            "for i in 1 2 3; do curl -sS --limit-rate 20M --fail file://{0} | cksum; done; curl -sS -Z file://{0} -o a file://{0} -o b 2>/dev/null && cmp a b && echo same",
            input.display()
        ),
    );
}

#[test]
fn imagemagick() {
    let works = look_for("convert")
        .is_some_and(|convert| Run::plain(convert).arg("-version").run().success());
    if !works {
        println!("skipped: imagemagick not installed");
        return;
    }
    script(
        &["convert", "cksum"],
        &["convert"],
        "convert -size 300x300 plasma:fractal -seed 5 null: ; convert -size 300x300 gradient:red-blue -swirl 90 -blur 0x4 -rotate 30 -resize 150% -depth 8 ppm:out.ppm
         cksum < out.ppm; convert out.ppm -quality 90 out.jpg && convert out.jpg -format '%w %h %m' info:",
    );
}

#[test]
fn ffmpeg() {
    script(
        &["ffmpeg"],
        &["ffmpeg"],
        "ffmpeg -nostdin -v error -threads 4 -f lavfi -i testsrc=duration=3:size=320x240:rate=25 -vf hue=s=0,scale=200:150 -f md5 -",
    );
}

#[test]
fn ruby() {
    let source = file(
        "main.rb",
        "h = Hash.new { |t, k| t[k] = [] }\n200000.times { |i| h[i * 7919 % 5003] << 'v' * (i % 9) }\nt = 4.times.map { |n| Thread.new { h.select { |k, _| k % 4 == n }.sum { |_, v| v.join.length } } }\nputs t.map(&:value).inspect, h.to_a.flatten.join.hash.class, h.keys.sort.each_slice(100).map(&:sum).inspect\n",
    );
    script(&["ruby"], &["ruby"], &format!("ruby {}", source.display()));
}

#[test]
fn cmake() {
    let source = file(
        "script.cmake",
        "set(n 0)\nforeach(i RANGE 20000)\n  math(EXPR n \"(${n} * 31 + ${i}) % 1000003\")\n  list(APPEND all \"item-${n}\")\nendforeach()\nlist(SORT all)\nlist(REMOVE_DUPLICATES all)\nlist(LENGTH all count)\nstring(SHA256 hash \"${all}\")\nexecute_process(COMMAND ${CMAKE_COMMAND} -E echo \"${count} ${hash}\")\n",
    );
    script(
        &["cmake"],
        &["cmake"],
        &format!("cmake -P {}", source.display()),
    );
}

#[test]
fn chromium() {
    let page = file(
        "page.html",
        "<html><body><script>let t = []; for (let i = 0; i < 3000; i++) { const e = document.createElement('p'); e.textContent = 'n' + i * 7919 % 1009; t.push(e); } t.sort((a, b) => a.textContent < b.textContent ? -1 : 1).forEach((e) => document.body.append(e));</script></body></html>",
    );
    let name = ["chromium", "chromium-browser", "google-chrome"]
        .into_iter()
        .find(|name| find_program(name).is_some());
    let Some(name) = name else {
        println!("skipped: chromium not installed");
        return;
    };
    script(
        &[name],
        &["chrom"],
        &format!(
            "{name} --headless --no-sandbox --disable-gpu --disable-dev-shm-usage --user-data-dir=$PWD/profile --dump-dom file://{} 2>/dev/null",
            page.display()
        ),
    );
}

const POSTGRES: &str = r#"
set -e
export PGDATA=$1/data PGHOST=$1 PGUSER=me LC_ALL=C
cd "$1"
initdb -U me -A trust --no-sync > initdb.log
pg_ctl -w -s -l server.log -o "-k $1 -c listen_addresses='' -c fsync=off -c max_connections=20" start
trap 'pg_ctl -w -s -m fast stop' EXIT
createdb bench
pgbench -i -q -s 2 bench 2> /dev/null > /dev/null
pgbench -n -t 150 -c 4 -j 2 bench 2> /dev/null | grep 'actually processed'
psql -qAt bench -c "select count(*), sum(bbalance) - (select sum(tbalance) from pgbench_tellers) from pgbench_branches" \
    -c "create table t as select i, md5(i::text) m, repeat('x', i % 300) r from generate_series(1, 40000) i; create index on t(m)" \
    -c "select count(*), sum(length(r)), max(m), string_agg(left(m, 1), '' order by m) filter (where i % 4000 = 0) from t" \
    -c "select md5(string_agg(m, ',' order by i desc)) from t where i % 3 = 0"
"#;

/// A cluster is made and served, with several clients at work.
#[test]
fn postgres() {
    let installed = find_program("initdb").or_else(|| {
        let versions = fs::read_dir("/usr/lib/postgresql").ok()?;
        let mut found: Vec<PathBuf> = versions
            .flatten()
            .map(|version| version.path().join("bin/initdb"))
            .filter(|path| path.is_file())
            .collect();
        found.sort();
        found.pop()
    });
    // /usr/bin has Debian's wrappers of the clients alone; what initdb is beside has all.
    let Some(programs) = installed
        .and_then(|initdb| fs::canonicalize(initdb).ok())
        .and_then(|initdb| initdb.parent().map(Path::to_owned))
    else {
        println!("skipped: postgres not installed");
        return;
    };
    let (Some(bash), Some(setpriv)) = (look_for("bash"), look_for("setpriv")) else {
        return;
    };
    // The server refuses to run as root, and whoever runs it must be able to read the library.
    let public = tempfile::tempdir().expect("a directory");
    let copy = public.path().join("libslab_preload.so");
    fs::copy(library(), &copy).expect("a copy of the library");
    let open = |path: &Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("permissions");
    };
    open(public.path(), 0o755);
    open(&copy, 0o755);
    let root = find_program("id").is_some_and(|id| Run::plain(id).arg("-u").run().stdout == b"0\n");
    let path = format!(
        "{}:{}",
        programs.display(),
        std::env::var("PATH").unwrap_or_default()
    );
    let run = |backend: Option<&str>| {
        let directory = tempfile::tempdir().expect("a short directory");
        open(directory.path(), 0o777);
        let mut run = Run::under(if root { &setpriv } else { &bash }, backend);
        if backend.is_some() {
            run = run.env("LD_PRELOAD", &copy);
        }
        if root {
            run = run
                .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
                .arg(&bash);
        }
        let outcome = run
            .args(["-c", POSTGRES, "bash"])
            .arg(directory.path())
            .env("PATH", &path)
            .run();
        if !outcome.success() {
            println!(
                "{}",
                fs::read_to_string(directory.path().join("server.log")).unwrap_or_default()
            );
        }
        // Left by another user: root removes it, others own it.
        outcome
    };
    let plain = run(None);
    if !plain.success() {
        println!("skipped: postgres does not run here: {}", plain.stderr);
        return;
    }
    for backend in BACKENDS {
        let outcome = run(Some(backend)).expect_success(backend);
        assert_eq!(outcome.stdout_text(), plain.stdout_text(), "{backend}");
        assert!(
            outcome
                .mapped
                .iter()
                .any(|name| name.starts_with("postgres")),
            "{backend}: {:?}",
            outcome.mapped
        );
    }
}
