//! Other mallocs: `bench-suite rivals` builds those in the directory `rivals`, `--against` finds them and Debian's.

use crate::backend::Backend;
use crate::preload::root;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// A malloc that the directory `rivals` builds.
struct Rival {
    name: &'static str,
    needs: &'static str,
}

const RIVALS: [Rival; 4] = [
    Rival {
        name: "jemalloc",
        needs: "a C compiler and make",
    },
    Rival {
        name: "mimalloc",
        needs: "a C compiler",
    },
    Rival {
        name: "rpmalloc",
        needs: "a C compiler",
    },
    Rival {
        name: "snmalloc",
        needs: "a C++20 compiler",
    },
];

/// Debian's mallocs: package and file.
pub const DEBIAN: [(&str, &str); 3] = [
    ("libmimalloc2.0", "libmimalloc.so.2"),
    ("libjemalloc2", "libjemalloc.so.2"),
    ("libtcmalloc-minimal4", "libtcmalloc_minimal.so.4"),
];

const DEBIAN_DIRECTORIES: [&str; 4] = [
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
];

/// `bench-suite rivals`: builds each rival; the exit status is 1 when none could be built.
pub fn main() -> ExitCode {
    let Some(directory) = root().map(|root| root.join("rivals")) else {
        return crate::cli::bad_arguments("rivals: the workspace is not where it was built");
    };
    if !directory.join("Cargo.toml").is_file() {
        return crate::cli::bad_arguments(&format!(
            "rivals: no {}: run this from the workspace it was built in",
            directory.join("Cargo.toml").display()
        ));
    }
    let mut built = 0;
    for rival in &RIVALS {
        match build(&directory, rival) {
            Ok(path) => {
                built += 1;
                crate::cli::print(&format!("built {}\n", path.display()));
            }
            Err(why) => crate::cli::print(&format!(
                "cannot build {}, which needs {}: {why}\n",
                rival.name, rival.needs
            )),
        }
    }
    crate::cli::print(&format!(
        "{built} of {} built; compare with them by: bench-suite compare classic --against rivals\n",
        RIVALS.len()
    ));
    if built == 0 {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    }
}

/// Where a rival's library is.
fn library(directory: &Path, name: &str) -> PathBuf {
    directory.join(format!("target/release/lib{name}.so"))
}

fn build(directory: &Path, rival: &Rival) -> Result<PathBuf, String> {
    let output = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["build", "--release", "--package"])
        .arg(format!("rival-{}", rival.name))
        .arg("--manifest-path")
        .arg(directory.join("Cargo.toml"))
        .arg("--target-dir")
        .arg(directory.join("target"))
        .env_remove("RUSTFLAGS")
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .env_remove("CARGO_BUILD_TARGET")
        .output()
        .map_err(|e| format!("cargo: {e}"))?;
    if !output.status.success() {
        return Err(cause(&String::from_utf8_lossy(&output.stderr)));
    }
    let path = library(directory, rival.name);
    works(&path)?;
    Ok(path)
}

/// The line of a failed build that says why: a build script's own words before cargo's.
fn cause(stderr: &str) -> String {
    let mut lines = stderr.lines().map(str::trim);
    let own = lines.clone().find(|line| {
        [
            "error occurred",
            "fatal error",
            " error: ",
            "not installed",
            "failed to find tool",
        ]
        .iter()
        .any(|part| line.contains(part))
    });
    own.or_else(|| lines.find(|line| line.starts_with("error")))
        .unwrap_or("no message")
        .to_owned()
}

/// Does a program run on the library?
fn works(path: &Path) -> Result<(), String> {
    let output = Command::new("/bin/true")
        .env("LD_PRELOAD", path)
        .output()
        .map_err(|e| format!("/bin/true: {e}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.success() && said.is_empty() {
        return Ok(());
    }
    Err(format!(
        "{} is built, but under it /bin/true ends with {}: {}",
        path.display(),
        output.status,
        said.lines().next().unwrap_or("no message")
    ))
}

/// The backends that `--against` names: `debian`, `rivals` or both, separated by a comma.
pub fn against(list: &str) -> Result<Vec<Backend>, String> {
    let mut all = Vec::new();
    for name in list.split(',') {
        let found = match name.trim() {
            "debian" => debian(&DEBIAN_DIRECTORIES.map(Path::new))?,
            "rivals" => built(
                &root()
                    .ok_or("--against rivals: the workspace is not where it was built")?
                    .join("rivals"),
            )?,
            other => {
                return Err(format!(
                    "--against '{other}': not known; valid: debian, rivals (for any other library: --backends so:PATH)"
                ));
            }
        };
        for path in found {
            let backend = Backend::parse(&format!("so:{}", path.display()))?;
            if !all.contains(&backend) {
                all.push(backend);
            }
        }
    }
    Ok(all)
}

fn debian(directories: &[&Path]) -> Result<Vec<PathBuf>, String> {
    let find = |file: &str| {
        let mut paths = directories.iter().map(|directory| directory.join(file));
        paths.find(|path| path.is_file())
    };
    let found: Vec<PathBuf> = DEBIAN.iter().filter_map(|(_, file)| find(file)).collect();
    if found.is_empty() {
        let packages: Vec<&str> = DEBIAN.iter().map(|(package, _)| *package).collect();
        return Err(format!(
            "--against debian: none of its mallocs is here; run: apt-get install {}",
            packages.join(" ")
        ));
    }
    Ok(found)
}

fn built(directory: &Path) -> Result<Vec<PathBuf>, String> {
    let all = RIVALS.iter().map(|rival| library(directory, rival.name));
    let found: Vec<PathBuf> = all.filter(|path| path.is_file()).collect();
    if found.is_empty() {
        return Err(
            "--against rivals: none is built; run: cargo run --release -p bench-suite -- rivals"
                .to_owned(),
        );
    }
    Ok(found)
}

/// Which of the mallocs that `--against` asked for are not there.
pub fn missing(list: &str) -> Vec<String> {
    let mut lines = Vec::new();
    for name in list.split(',').map(str::trim) {
        if name == "debian" {
            let absent = |file: &str| {
                !DEBIAN_DIRECTORIES
                    .iter()
                    .any(|directory| Path::new(directory).join(file).is_file())
            };
            lines.extend(
                DEBIAN
                    .iter()
                    .filter(|(_, file)| absent(file))
                    .map(|(package, file)| {
                        format!("{file} is not here; run: apt-get install {package}")
                    }),
            );
        } else if let ("rivals", Some(root)) = (name, root()) {
            let absent = |rival: &&Rival| !library(&root.join("rivals"), rival.name).is_file();
            lines.extend(RIVALS.iter().filter(absent).map(|rival| {
                format!("{} is not built; `bench-suite rivals` says why", rival.name)
            }));
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_that_are_there_are_found_in_order() {
        let directory = std::env::temp_dir().join(format!("bench-rivals-{}", std::process::id()));
        let release = directory.join("target/release");
        std::fs::create_dir_all(&release).unwrap();
        assert!(built(&directory).unwrap_err().contains("-- rivals"));
        assert!(
            debian(&[&release])
                .unwrap_err()
                .contains("apt-get install libmimalloc2.0 libjemalloc2")
        );
        for file in ["libsnmalloc.so", "libjemalloc.so", "libjemalloc.so.2"] {
            std::fs::write(release.join(file), "").unwrap();
        }
        assert_eq!(
            built(&directory).unwrap(),
            ["libjemalloc.so", "libsnmalloc.so"].map(|file| release.join(file))
        );
        assert_eq!(
            debian(&[Path::new("/nonexistent"), &release]).unwrap(),
            [release.join("libjemalloc.so.2")]
        );
        std::fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn unknown_shorthands_are_named() {
        let error = against("fedora").unwrap_err();
        assert!(
            error.contains("'fedora'") && error.contains("debian, rivals"),
            "{error}"
        );
    }

    #[test]
    fn the_cause_of_a_failed_build_is_the_compilers() {
        let text = "   Compiling snmalloc-sys\nerror: failed to run custom build command for `snmalloc-sys`\n\
                    --- stderr\nerror occurred in cc-rs: failed to find tool \"c++\"\n";
        assert!(cause(text).contains("failed to find tool"));
        assert_eq!(
            cause("warning: x\nerror: no such crate\n"),
            "error: no such crate"
        );
    }

    #[test]
    fn a_library_that_cannot_be_preloaded_does_not_work() {
        let file = std::env::temp_dir().join(format!("bench-rival-{}.so", std::process::id()));
        std::fs::write(&file, "text").unwrap();
        assert!(works(&file).is_err());
        std::fs::remove_file(&file).unwrap();
    }
}
