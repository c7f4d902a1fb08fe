//! The preload library of this project: where it is, and how a worker is started under a malloc.
//!
//! ```text
//!  backend      LD_PRELOAD              SLABMALLOC_CONF
//!  slab …       libslab_preload.so      …,backend=slab
//!  system       -                       -
//!  so:PATH      PATH                    -
//! ```

use crate::backend::Backend;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

const FILE: &str = "libslab_preload.so";
/// Names a library to use instead of building one.
pub const LIBRARY_VARIABLE: &str = "SLAB_PRELOAD_LIB";
/// Tells a worker what to preload into the programs it starts.
pub const CHILD_VARIABLE: &str = "BENCH_SUITE_CHILD_PRELOAD";
const CONF: &str = "SLABMALLOC_CONF";

/// How the malloc under test reaches what a workload measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// Own backends run in the worker, as typed caches; other mallocs are preloaded into it.
    Caches,
    /// Every malloc, own ones too, is preloaded into the worker.
    Worker,
    /// Every malloc is preloaded into the programs that the worker starts.
    Programs,
}

/// The environment of a worker.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Setting {
    /// The library that must be in the worker's memory.
    pub worker: Option<PathBuf>,
    /// Variables to set.
    pub variables: Vec<(&'static str, OsString)>,
}

/// What to start a worker with, so that it measures `backend` by `route`.
pub fn setting(backend: &Backend, route: Route) -> Result<Setting, String> {
    let own = backend.is_own() && route != Route::Caches;
    let library = match backend.preload() {
        Some(path) => Some(path.to_owned()),
        None if own => Some(library()?.to_owned()),
        None => None,
    };
    let Some(library) = library else {
        return Ok(Setting::default());
    };
    let mut setting = Setting::default();
    if route == Route::Programs {
        setting
            .variables
            .push((CHILD_VARIABLE, library.clone().into_os_string()));
    } else {
        setting
            .variables
            .push(("LD_PRELOAD", library.clone().into_os_string()));
        setting.worker = Some(library);
    }
    if own {
        // What the caller set stays in force; the last word on the backend is the column's.
        let mut conf = std::env::var_os(CONF).unwrap_or_default();
        if !conf.is_empty() {
            conf.push(",");
        }
        conf.push(format!("backend={}", backend.plain_name()));
        setting.variables.push((CONF, conf));
    }
    Ok(setting)
}

/// The library, built by cargo when it is missing or older than its sources; found once for a process.
pub fn library() -> Result<&'static Path, String> {
    static LIBRARY: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    match LIBRARY.get_or_init(find) {
        Ok(path) => Ok(path),
        Err(error) => Err(error.clone()),
    }
}

fn find() -> Result<PathBuf, String> {
    if let Some(path) = std::env::var_os(LIBRARY_VARIABLE).map(PathBuf::from) {
        return path
            .canonicalize()
            .map_err(|e| format!("{LIBRARY_VARIABLE}={}: {e}", path.display()));
    }
    let target = target_directory();
    let built = build(&target).map_err(|why| {
        format!(
            "cannot build {FILE} ({why}); run: cargo build --release -p slab-preload, and name the file in {LIBRARY_VARIABLE}"
        )
    })?;
    // LD_PRELOAD splits its value at colons and blanks.
    if built.to_string_lossy().contains([':', ' ']) {
        return Err(format!(
            "{}: LD_PRELOAD takes no path with a colon or a blank; copy the file and name it in {LIBRARY_VARIABLE}",
            built.display()
        ));
    }
    Ok(built)
}

/// The workspace this program was built from.
pub fn root() -> Option<&'static Path> {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent()
}

/// `preload-lib` beside the profile's directory that this program runs from, where cargo may write; the tests of
/// slab-preload use the same.
fn target_directory() -> PathBuf {
    let beside = std::env::current_exe().ok().and_then(|exe| {
        let target = exe
            .ancestors()
            .find(|dir| dir.join("CACHEDIR.TAG").is_file())?;
        Some(target.join("preload-lib"))
    });
    beside.unwrap_or_else(|| root().unwrap_or(Path::new(".")).join("target/preload-lib"))
}

fn build(target: &Path) -> Result<PathBuf, String> {
    let root = root().ok_or("the workspace is not where it was built")?;
    let output = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["build", "--release", "--package", "slab-preload", "--lib"])
        .arg("--manifest-path")
        .arg(root.join("Cargo.toml"))
        .arg("--target-dir")
        .arg(target)
        .env_remove("RUSTFLAGS")
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .env_remove("CARGO_BUILD_TARGET")
        .output()
        .map_err(|e| format!("cargo: {e}"))?;
    if !output.status.success() {
        return Err(format!("cargo: {}", first_error(&output.stderr)));
    }
    let path = target.join("release").join(FILE);
    if path.is_file() {
        Ok(path)
    } else {
        Err(format!("cargo left no {}", path.display()))
    }
}

/// The line of a compiler's output that says what is wrong.
pub fn first_error(stderr: &[u8]) -> String {
    let text = String::from_utf8_lossy(stderr);
    let mut lines = text.lines().map(str::trim);
    let line = lines
        .clone()
        .find(|line| line.starts_with("error"))
        .or_else(|| lines.rfind(|line| !line.is_empty()));
    line.unwrap_or("no message").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_own_backends_need_the_library_and_only_through_malloc() {
        let own = Backend::parse("slub").unwrap();
        assert_eq!(setting(&own, Route::Caches), Ok(Setting::default()));
        for route in [Route::Caches, Route::Worker, Route::Programs] {
            assert_eq!(setting(&Backend::System, route), Ok(Setting::default()));
        }
    }

    #[test]
    fn peers_are_preloaded_where_the_route_says() {
        let peer = Backend::Shared("/lib/peer.so".into());
        for route in [Route::Caches, Route::Worker] {
            let setting = setting(&peer, route).unwrap();
            assert_eq!(setting.worker.as_deref(), Some(Path::new("/lib/peer.so")));
            assert_eq!(setting.variables, [("LD_PRELOAD", "/lib/peer.so".into())]);
        }
        let setting = setting(&peer, Route::Programs).unwrap();
        assert_eq!(setting.worker, None);
        assert_eq!(setting.variables, [(CHILD_VARIABLE, "/lib/peer.so".into())]);
    }

    #[test]
    fn the_error_is_the_line_that_says_so() {
        assert_eq!(
            first_error(b"   Compiling x\nerror: linker `cc` not found\n  note: y\n"),
            "error: linker `cc` not found"
        );
        assert_eq!(first_error(b"one\ntwo\n\n"), "two");
        assert_eq!(first_error(b""), "no message");
    }
}
