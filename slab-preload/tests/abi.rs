//! The C and C++ functions at their edges: sizes, alignments, errno, exceptions, reports.

mod common;

use common::{BACKENDS, Run, compile};

/// Every result and every errno, in one C program.
#[test]
fn results_and_errno() {
    // Linked to the library, as libc has no C23 names yet.
    let program = compile("c/errno.c", &[common::library().to_str().expect("UTF-8")]);
    for backend in BACKENDS {
        Run::under(&program, Some(backend))
            .run()
            .expect_success(backend);
    }
}

/// A failed `new` throws std::bad_alloc, after the program's handlers ran, and the nothrow forms
/// return null. (libstdc++ on glibc fails this: its aligned forms wrap a size near SIZE_MAX to
/// 0.)
#[test]
fn operators() {
    for flags in [
        &["-std=c++17"][..],
        &["-std=c++17", "-O2", "-fno-plt", "-static-libgcc"],
    ] {
        let program = compile("c/operators.cpp", flags);
        for backend in BACKENDS {
            Run::under(&program, Some(backend))
                .run()
                .expect_success(backend);
        }
    }
}

/// `malloc_info` writes well-formed XML with figures in it; `malloc_stats` writes text.
#[test]
fn information() {
    let program = compile("c/info.c", &[]);
    for backend in BACKENDS {
        let outcome = Run::under(&program, Some(backend))
            .run()
            .expect_success(backend);
        let xml = outcome.stdout_text();
        assert!(
            xml.starts_with("<malloc version=\"1\">\n") && xml.ends_with("</malloc>\n"),
            "{backend}: {xml}"
        );
        balanced(&xml);
        let in_use: u64 = attribute(&xml, "<system type=\"current\" size=\"")
            .expect("the bytes taken from the system");
        assert!(in_use > 10 << 20, "{backend}: {xml}");
        assert!(
            outcome.stderr.contains("in use bytes"),
            "{backend}: {}",
            outcome.stderr
        );
    }
}

fn attribute(xml: &str, before: &str) -> Option<u64> {
    let (_, rest) = xml.rsplit_once(before)?;
    rest.split_once('"')?.0.parse().ok()
}

/// Each element of `xml` is closed, in order.
fn balanced(xml: &str) {
    let mut open = Vec::new();
    for tag in xml.split('<').skip(1) {
        let (tag, _) = tag.split_once('>').expect("a tag ends");
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name), "{xml}");
        } else if !tag.ends_with('/') {
            open.push(tag.split_whitespace().next().expect("a name"));
        }
    }
    assert!(open.is_empty(), "{open:?} stay open: {xml}");
}
