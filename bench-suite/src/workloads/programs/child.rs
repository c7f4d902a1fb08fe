//! A program that runs to its end: its time, its memory, what it wrote.

use super::super::die;
use crate::preload::CHILD_VARIABLE;
use std::ffi::OsString;
use std::fs::File;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// The malloc that programs run on: the library of the worker's order.
pub fn library() -> Option<PathBuf> {
    std::env::var_os(CHILD_VARIABLE).map(PathBuf::from)
}

/// `program` in `directory`, with an environment that makes its output repeat. Without `library` it runs on the malloc
/// it is linked to.
pub fn command(program: &Path, directory: &Path, library: Option<&Path>) -> Command {
    let mut command = Command::new(program);
    command
        .current_dir(directory)
        .env_remove("LD_PRELOAD")
        .env_remove(CHILD_VARIABLE)
        .env("LC_ALL", "C")
        .env("PATH", path())
        .env("HOME", directory)
        .env("TMPDIR", directory)
        .stdin(Stdio::null());
    if let Some(library) = library {
        command.env("LD_PRELOAD", library);
    }
    command
}

/// The search path of programs: as [`find`] looks.
fn path() -> OsString {
    let mut path = OsString::from("/usr/bin:/bin:");
    path.push(std::env::var_os("PATH").unwrap_or_default());
    path
}

/// What became of a program.
pub struct Ended {
    /// From before its start to after its end.
    pub time: Duration,
    /// The largest resident set, of it or of a descendant it waited for.
    pub peak_kib: u64,
    /// Its standard output.
    pub output: Vec<u8>,
}

/// Runs `command` to its end. An error when it cannot start, ends with another status than 0, or the dynamic linker
/// could not preload the library.
pub fn run(mut command: Command, directory: &Path) -> Result<Ended, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let (out, errors) = (directory.join("stdout"), directory.join("stderr"));
    let create = |path: &Path| File::create(path).map_err(|e| format!("{}: {e}", path.display()));
    // Files and not pipes: nobody has to read while the program runs.
    command.stdout(create(&out)?).stderr(create(&errors)?);
    let began = Instant::now();
    let child = command.spawn().map_err(|e| format!("{name}: {e}"))?;
    let (status, peak_kib) = wait(child.id() as libc::pid_t);
    let time = began.elapsed();
    let said = read(&errors)?;
    check(&name, status, &said)?;
    Ok(Ended {
        time,
        peak_kib,
        output: read(&out)?,
    })
}

/// The reason why a program's run does not count.
pub fn check(name: &str, status: ExitStatus, stderr: &[u8]) -> Result<(), String> {
    let said = String::from_utf8_lossy(stderr);
    // The dynamic linker only warns, and the program would run on another malloc.
    if let Some(line) = said
        .lines()
        .find(|line| line.contains("cannot be preloaded"))
    {
        return Err(format!("{name}: {line}"));
    }
    if status.success() {
        return Ok(());
    }
    let last = said.lines().rfind(|line| !line.trim().is_empty());
    Err(format!(
        "{name}: {status}: {}",
        last.unwrap_or("no message")
    ))
}

/// A whole file.
pub fn read(path: &Path) -> Result<Vec<u8>, String> {
    std::fs::read(path).map_err(|e| format!("{}: {e}", path.display()))
}

/// Waits for a child and returns its status and its largest resident set.
fn wait(pid: libc::pid_t) -> (ExitStatus, u64) {
    let mut status = 0;
    // SAFETY: an all-zero rusage is valid, and the kernel overwrites it.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    loop {
        // SAFETY: a child of this process that nobody has waited for; both places are valid for writing.
        if unsafe { libc::wait4(pid, &mut status, 0, &mut usage) } == pid {
            let peak = u64::try_from(usage.ru_maxrss).unwrap_or(0);
            return (ExitStatus::from_raw(status), peak);
        }
        let error = std::io::Error::last_os_error();
        if error.kind() != std::io::ErrorKind::Interrupted {
            die(&format!("cannot wait for a program: {error}"));
        }
    }
}

/// A directory for a job's files, removed at the end.
pub struct Scratch(PathBuf);

impl Scratch {
    /// A fresh directory.
    pub fn new(job: &str) -> Result<Self, String> {
        let name = format!(
            "bench-suite-{}-{}",
            job.replace('/', "-"),
            std::process::id()
        );
        let path = std::env::temp_dir().join(name);
        // What a killed worker with the same number left.
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        Ok(Self(path))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Looks a program up, system directories first: what version managers put in front is a shell script.
pub fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    ["/usr/bin".into(), "/bin".into()]
        .into_iter()
        .chain(std::env::split_paths(&path))
        .map(|directory: PathBuf| directory.join(name))
        .find(|candidate| candidate.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, library: Option<&Path>) -> Result<Ended, String> {
        let scratch = Scratch::new(&format!("child-{}", script.len()))?;
        let mut command = command(Path::new("/bin/sh"), scratch.path(), library);
        command.arg("-c").arg(script);
        run(command, scratch.path())
    }

    #[test]
    fn a_program_yields_output_time_and_memory() {
        let ended = shell("echo hello; echo aside >&2", None).unwrap();
        assert_eq!(ended.output, b"hello\n");
        assert!(ended.peak_kib > 100 && ended.time > Duration::ZERO);
    }

    #[test]
    fn what_does_not_count_is_named() {
        let error = shell("echo first >&2; echo why >&2; exit 3", None)
            .err()
            .unwrap();
        assert!(error.contains("exit status: 3: why"), "{error}");
        let error = shell("true", Some(Path::new("/nonexistent/malloc.so")))
            .err()
            .unwrap();
        assert!(error.contains("/nonexistent/malloc.so"), "{error}");
        let missing = command(Path::new("/nonexistent/program"), Path::new("/"), None);
        let scratch = Scratch::new("child").unwrap();
        assert!(
            run(missing, scratch.path())
                .err()
                .unwrap()
                .contains("/nonexistent/program")
        );
    }
}
