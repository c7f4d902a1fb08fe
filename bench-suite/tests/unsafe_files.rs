//! Unsafe code is only in the files that docs/design.md names.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

const CRATES: [&str; 7] = [
    "page-alloc",
    "slab-api",
    "slab-classic",
    "slub",
    "slab-unified",
    "slab-preload",
    "bench-suite",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("the workspace")
        .to_owned()
}

fn sources(folder: &Path, out: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a source folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            sources(&path, out);
        } else if path.extension().is_some_and(|e| e == "rs") {
            out.push(path);
        }
    }
}

/// Whether a file has the keyword outside line comments.
fn has_unsafe(text: &str) -> bool {
    text.lines()
        .map(|line| line.split("//").next().unwrap_or_default())
        .flat_map(|code| code.split(|c: char| !c.is_alphanumeric() && c != '_'))
        .any(|word| word == "unsafe")
}

#[test]
fn the_table_names_every_file_with_unsafe_code() {
    let design = fs::read_to_string(root().join("docs/design.md")).expect("docs/design.md");
    let mut named = BTreeSet::new();
    let mut found = BTreeSet::new();
    for name in CRATES {
        let prefix = format!("| {name} | ");
        for file in design
            .lines()
            .filter_map(|line| line.strip_prefix(&prefix)?.strip_suffix(" |"))
            .flat_map(|files| files.split(", "))
        {
            named.insert(format!("{name}/src/{file}.rs"));
        }
        let mut files = Vec::new();
        sources(&root().join(name).join("src"), &mut files);
        for file in files {
            if has_unsafe(&fs::read_to_string(&file).expect("a source file")) {
                let path = file.strip_prefix(root()).expect("inside the workspace");
                found.insert(path.to_string_lossy().into_owned());
            }
        }
    }
    assert!(found.len() > 20, "the search finds files");
    assert_eq!(
        named, found,
        "docs/design.md (left) and the tree (right) differ"
    );
}
