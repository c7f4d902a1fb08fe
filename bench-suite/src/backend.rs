//! Backends: the allocators that take part in a comparison, by the names the command line knows.

use std::path::{Path, PathBuf};

use crate::workloads::pages;

/// What is valid, for error messages.
pub fn valid() -> String {
    format!(
        "slab, slub, unified, each also with :plain (placement off), unified:v4 (the design of 2010), system, so:PATH, floor; for pages: {}",
        pages::NAMES.join(", ")
    )
}

/// An allocator under test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Backend {
    /// One of the three object allocators of this project, by name.
    Own(&'static str),
    /// The malloc this process was started with.
    System,
    /// Any malloc, preloaded into the worker.
    Shared(PathBuf),
    /// The allocator that does next to nothing: see [`crate::floor`].
    Floor,
    /// The same backend once more, under the name `NAME#N`: two columns that differ by chance alone.
    Again(Box<Backend>, u8),
    /// A page allocator, by name: for the page workloads.
    Page(&'static str),
}

/// Names of this project's own backends, in the order of a table's columns.
pub const OWN: [&str; 3] = ["slab", "slub", "unified"];

/// The same over a plain buddy: no placement by migratetype.
pub const PLAIN: [&str; 3] = ["slab:plain", "slub:plain", "unified:plain"];

/// The unified allocator as it was in 2010: to be compared with the default, so in no list by itself.
pub const V4: &str = "unified:v4";

/// Whether `name` is one of this project's allocators, in any of its variants.
pub fn is_own(name: &str) -> bool {
    OWN.contains(&name) || PLAIN.contains(&name) || name == V4
}

/// Forgets every sixteenth object that it is given back: what the drift detection of contest is tested with. Not
/// among the names that are shown.
pub const LEAK: &str = "test:leak";

impl Backend {
    /// The backend called `name`; the error says what is valid.
    pub fn parse(name: &str) -> Result<Self, String> {
        let mut own = OWN.iter().chain(&PLAIN).chain([&V4, &LEAK]);
        if let Some(own) = own.find(|own| **own == name) {
            return Ok(Self::Own(own));
        }
        if name == "system" {
            return Ok(Self::System);
        }
        if name == crate::floor::NAME {
            return Ok(Self::Floor);
        }
        if let Some((of, number)) = name.rsplit_once('#')
            && let Ok(number) = number.parse()
        {
            return match Self::parse(of)? {
                Self::Again(..) => Err(format!("backend '{name}' has two numbers")),
                backend => Ok(Self::Again(Box::new(backend), number)),
            };
        }
        if let Some(path) = name.strip_prefix("so:") {
            let path = Path::new(path);
            // LD_PRELOAD splits its value at colons and blanks.
            if path.to_string_lossy().contains([':', ' ']) {
                return Err(format!(
                    "backend so:{}: LD_PRELOAD takes no path with a colon or a blank",
                    path.display()
                ));
            }
            // Absolute for the dynamic linker, which looks in its own directories otherwise; links stay as they are named.
            let full = std::path::absolute(path)
                .map_err(|e| format!("backend so:{}: {e}", path.display()))?;
            let metadata = full
                .metadata()
                .map_err(|e| format!("backend so:{}: {e}", path.display()))?;
            if !metadata.is_file() {
                return Err(format!("backend so:{}: not a file", path.display()));
            }
            return Ok(Self::Shared(full));
        }
        if let Some(page) = pages::NAMES.iter().find(|page| **page == name) {
            return Ok(Self::Page(page));
        }
        if let Some(why) = pages::why_missing(name) {
            return Err(format!("backend '{name}': {why}"));
        }
        Err(format!("unknown backend '{name}'; valid: {}", valid()))
    }

    /// The name under which the backend is reported.
    pub fn name(&self) -> String {
        match self {
            Self::Own(name) | Self::Page(name) => (*name).to_owned(),
            Self::System => "system".to_owned(),
            // Results are read elsewhere: no more of this machine's paths than it takes.
            Self::Shared(path) => {
                let here = std::env::current_dir().unwrap_or_default();
                let short = path.strip_prefix(here).unwrap_or(path);
                format!("so:{}", short.display())
            }
            Self::Floor => crate::floor::NAME.to_owned(),
            Self::Again(of, number) => format!("{}#{number}", of.name()),
        }
    }

    /// The name by which a worker knows it: without a number.
    pub fn plain_name(&self) -> String {
        match self {
            Self::Again(of, _) => of.plain_name(),
            _ => self.name(),
        }
    }

    /// Is it one of this project's object allocators?
    pub fn is_own(&self) -> bool {
        match self {
            Self::Own(_) => true,
            Self::Again(of, _) => of.is_own(),
            _ => false,
        }
    }

    /// The library to preload into the worker, if any.
    pub fn preload(&self) -> Option<&Path> {
        match self {
            Self::Shared(path) => Some(path),
            Self::Again(of, _) => of.preload(),
            _ => None,
        }
    }
}

/// The backends of a comma-separated list; the error names the one that is wrong.
pub fn parse_list(list: &str) -> Result<Vec<Backend>, String> {
    let mut backends = Vec::new();
    for name in list.split(',') {
        let backend = Backend::parse(name.trim())?;
        if backends.contains(&backend) {
            return Err(format!("backend '{}' is listed twice", name.trim()));
        }
        backends.push(backend);
    }
    Ok(backends)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placement_off_is_a_backend_of_its_own() {
        let all = parse_list("unified,unified:plain").unwrap();
        assert_ne!(all[0], all[1]);
        assert_eq!(all[1].name(), "unified:plain");
        assert!(Backend::parse("system:plain").is_err());
        assert_eq!(Backend::parse("unified:v4"), Ok(Backend::Own(V4)));
        assert!(is_own(V4) && is_own("slub:plain") && !is_own("so:/x.so") && valid().contains(V4));
        assert!(!valid().contains(LEAK));
    }

    #[test]
    fn names_and_errors() {
        let all = parse_list("slab,slub, unified,system").unwrap();
        assert_eq!(
            all.iter().map(Backend::name).collect::<Vec<_>>(),
            ["slab", "slub", "unified", "system"]
        );
        assert!(
            Backend::parse("slob")
                .unwrap_err()
                .contains("'slob'; valid: slab, slub")
        );
        assert!(
            Backend::parse("so:/nonexistent.so")
                .unwrap_err()
                .contains("/nonexistent.so")
        );
        let file = std::env::current_dir().unwrap().join("Cargo.toml");
        let shared = Backend::parse(&format!("so:{}", file.display())).unwrap();
        assert_eq!(shared.name(), "so:Cargo.toml", "no path of this machine");
        assert_eq!(Backend::parse(&shared.name()), Ok(shared));
        assert!(parse_list("slab,slab").unwrap_err().contains("twice"));
        let again = Backend::parse("slab#2").unwrap();
        assert_eq!(
            (again.name(), again.plain_name()),
            ("slab#2".into(), "slab".into())
        );
        assert!(Backend::parse("slab#2#3").is_err());
        assert!(Backend::parse("slob#2").unwrap_err().contains("'slob'"));
        assert!(parse_list("").is_err());
    }
}
