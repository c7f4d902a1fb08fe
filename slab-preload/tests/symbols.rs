//! What the library exports, and what it needs.

mod common;

use std::collections::BTreeSet;
use std::process::Command;

const C: &str = "malloc calloc realloc free cfree reallocarray posix_memalign aligned_alloc memalign valloc pvalloc \
    malloc_usable_size malloc_trim mallopt mallinfo mallinfo2 malloc_info malloc_stats free_sized free_aligned_sized \
    slabmalloc_validate slabmalloc_shrink";

const CXX: &str = "_Znwm _Znam _ZnwmRKSt9nothrow_t _ZnamRKSt9nothrow_t _ZnwmSt11align_val_t _ZnamSt11align_val_t \
    _ZnwmSt11align_val_tRKSt9nothrow_t _ZnamSt11align_val_tRKSt9nothrow_t \
    _ZdlPv _ZdaPv _ZdlPvm _ZdaPvm _ZdlPvRKSt9nothrow_t _ZdaPvRKSt9nothrow_t _ZdlPvSt11align_val_t _ZdaPvSt11align_val_t \
    _ZdlPvmSt11align_val_t _ZdaPvmSt11align_val_t _ZdlPvSt11align_val_tRKSt9nothrow_t _ZdaPvSt11align_val_tRKSt9nothrow_t";

fn output(program: &str, args: &[&str]) -> String {
    let output = Command::new(program)
        .args(args)
        .arg(common::library())
        .output()
        .unwrap_or_else(|error| panic!("{program}: {error}"));
    assert!(
        output.status.success(),
        "{program}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// Every symbol that a program may take from its malloc, and no other.
#[test]
fn exported() {
    let text = output("nm", &["-D", "--defined-only"]);
    let exported: BTreeSet<&str> = text
        .lines()
        .filter_map(|line| line.split_whitespace().nth(2))
        .collect();
    let wanted: BTreeSet<&str> = C.split_whitespace().chain(CXX.split_whitespace()).collect();
    assert_eq!(wanted.len(), 42);
    assert_eq!(exported, wanted);
}

/// The header declares what the library exports.
#[test]
fn declared() {
    let header = std::fs::read_to_string(common::crate_dir().join("include/slabmalloc.h"))
        .expect("the header");
    for name in C.split_whitespace() {
        assert!(
            header.contains(&format!("{name}(")),
            "{name} is not in slabmalloc.h"
        );
    }
    let source = common::fresh_dir("header").join("header.c");
    std::fs::write(
        &source,
        "#include <stdlib.h>\n#include <malloc.h>\n#include \"slabmalloc.h\"\n",
    )
    .expect("a file");
    let include = common::crate_dir().join("include");
    for language in ["c", "c++"] {
        let output = Command::new("gcc")
            .args([
                "-x",
                language,
                "-Wall",
                "-Wextra",
                "-Werror",
                "-pedantic",
                "-fsyntax-only",
                "-I",
            ])
            .args([&include, &source])
            .output()
            .expect("gcc");
        assert!(
            output.status.success(),
            "as {language}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
}

/// The library stays when it is closed, resolves nothing lazily, and needs libc alone.
#[test]
fn linked_as_a_malloc_must_be() {
    let dynamic = output("readelf", &["-d", "-W"]);
    assert!(dynamic.contains("NODELETE"), "{dynamic}");
    assert!(dynamic.contains("NOW"), "{dynamic}");
    let needed: BTreeSet<&str> = dynamic
        .lines()
        .filter(|line| line.contains("(NEEDED)"))
        .filter_map(|line| line.split(['[', ']']).nth(1))
        .collect();
    let allowed = ["libc.so.6", "ld-linux-x86-64.so.2"];
    assert!(
        needed.iter().all(|name| allowed.contains(name)),
        "{needed:?}"
    );
}

/// Thread-local storage is reached by an offset from the thread pointer: `__tls_get_addr` may
/// allocate. (std has thread-locals of the dynamic model, which the allocator must not come
/// near.)
#[test]
fn no_dynamic_tls() {
    const CRATES: [&str; 6] = [
        "page_alloc",
        "slab_api",
        "slab_classic",
        "slub",
        "slab_unified",
        "slab_preload",
    ];
    let text = output("objdump", &["-d", "--no-show-raw-insn", "--no-addresses"]);
    let mut function = "";
    let mut functions = 0;
    for line in text.lines() {
        if let Some(name) = line.strip_prefix('<') {
            function = name;
            functions += 1;
        } else if CRATES.iter().any(|name| function.contains(name)) {
            assert!(!line.contains("__tls_get_addr"), "{function} {line}");
        }
    }
    assert!(functions > 100, "the code was read");
}

/// malloc and free are one jump to the backend, and the backend's functions have no prologue on
/// the way to a return.
#[test]
fn hot_symbols_are_one_jump() {
    let text = output("objdump", &["-d", "--no-show-raw-insn", "--no-addresses"]);
    for name in ["malloc", "free", "calloc", "realloc", "_ZdlPv", "_ZdlPvm"] {
        let (_, body) = text
            .split_once(&format!("<{name}>:\n"))
            .unwrap_or_else(|| panic!("{name} is not in the code"));
        let first = body.lines().next().unwrap_or_default().trim();
        assert!(
            first.starts_with("jmp") && first.contains("*0x") && first.contains("(%rip)"),
            "{name} begins with {first}"
        );
    }
}

/// What a running program uses lies side by side, and nothing beside it that it does not: the patterns of order.ld match.
#[test]
fn ordered() {
    let sections = output("readelf", &["-SW"]);
    let used = sections
        .lines()
        .find_map(|line| line.split_once("] .text.used "))
        .expect("the section that order.ld makes");
    let fields: Vec<usize> = (used.1.split_whitespace().skip(1))
        .map_while(|field| usize::from_str_radix(field, 16).ok())
        .collect();
    let range = fields[0]..fields[0] + fields[2];
    let symbols = output("nm", &["-C"]);
    let windows = symbols
        .lines()
        .find_map(|line| line.strip_suffix(" text_in_use"))
        .and_then(|line| usize::from_str_radix(line.split(' ').next()?, 16).ok())
        .expect("the symbol that order.ld makes");
    assert!(range.contains(&windows));
    let windows = windows..range.end;
    let mut inside = 0;
    for line in symbols.lines() {
        let mut fields = line.splitn(3, ' ');
        let (Some(address), Some("t" | "T"), Some(name)) =
            (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        let address = usize::from_str_radix(address, 16).expect("an address");
        let is_in = range.contains(&address);
        let begins = |names: &[&str]| names.iter().any(|begin| name.starts_with(begin));
        if begins(&[
            "page_alloc::pcp::",
            "page_alloc::zone::",
            "page_alloc::buddy::",
            "slab_api::heap::",
            "slab_api::large::",
            "slab_classic::",
            "slab_preload::entry::",
            "slab_unified::cache::",
            "slub::cache::",
        ]) {
            assert!(is_in, "{name} is not in .text.used");
            inside += 1;
        }
        let is_at_hand = windows.contains(&address);
        if begins(&["<gimli::", "<addr2line::", "slab_unified::v4::", "std::"]) {
            assert!(
                !is_at_hand || name.contains("ARGV"),
                "{name} lies among what is used"
            );
        }
        if begins(&["slab_preload::start::at_exit", "slab_api::percpu::drain"]) {
            assert!(!is_at_hand, "{name} lies among what is used");
        }
        if begins(&[
            "page_alloc::pcp::refill",
            "slab_api::registry::register",
            "slab_preload::entry::malloc",
        ]) {
            assert!(is_at_hand, "{name} lies apart");
        }
    }
    assert!(inside > 100, "{inside} functions");
}
