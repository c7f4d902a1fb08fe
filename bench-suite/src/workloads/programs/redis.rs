//! redis-server under the malloc under test, loaded by redis-benchmark over a Unix socket.
//!
//! ```text
//!  start ─ known keys, read back (the output) ─ redis-benchmark (the time) ─ peak ─ FLUSHALL ─ a rest ─ resting set ─ stop
//! ```
//! Debian links the server to jemalloc. For `system` the C library is preloaded, whose malloc then comes first.

use super::Size;
use super::child::{check, command, find, read, run};
use crate::worker::process_kib;
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Child;
use std::time::{Duration, Instant};

/// The file name of the C library: the dynamic linker knows where it is.
const C_LIBRARY: &str = "libc.so.6";
const SOCKET: &str = "redis.sock";
/// How long a server may take to listen.
const PATIENCE: Duration = Duration::from_secs(20);

/// What a run brings home.
pub struct Measured {
    pub time: Duration,
    pub peak_kib: u64,
    pub rest_kib: u64,
    pub output: Vec<u8>,
}

/// A server that ends with this value.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// One server's life. Without `load` only the known keys are written and read.
pub fn measure(
    directory: &Path,
    library: Option<&Path>,
    size: Size,
    load: bool,
) -> Result<Measured, String> {
    let mut server = start(directory, library)?;
    let pid = server.0.id().to_string();
    let mut client = connect(&mut server, directory)?;
    preloaded(&pid, library)?;
    let output = known_keys(&mut client)?;
    let mut time = Duration::ZERO;
    if load {
        let tool = find("redis-benchmark").ok_or("redis-benchmark is gone")?;
        let mut benchmark = command(&tool, directory, None);
        let requests = size.count(40_000).to_string();
        benchmark
            .args(["-s", SOCKET, "-c", "20", "-P", "16", "-r", "100000", "-q"])
            .args(["-d", "200", "-t", "set,get,lpush,hset", "-n", &requests]);
        time = run(benchmark, directory)?.time;
    }
    let peak_kib = process_kib(&pid, "VmHWM:");
    ask(&mut client, &["FLUSHALL"], b"+OK\r\n")?;
    if load {
        std::thread::sleep(Duration::from_millis(if size.quick { 600 } else { 1500 }));
        // A server that looks idle still serves: its malloc gets its chance to give memory back.
        ask(&mut client, &["PING"], b"+PONG\r\n")?;
    }
    let rest_kib = process_kib(&pid, "VmRSS:");
    drop(server);
    Ok(Measured {
        time,
        // The kernel's counters lag by some dozens of pages.
        peak_kib: peak_kib.max(rest_kib),
        rest_kib,
        output,
    })
}

fn start(directory: &Path, library: Option<&Path>) -> Result<Server, String> {
    let program = find("redis-server").ok_or("redis-server is gone")?;
    let library = library.unwrap_or(Path::new(C_LIBRARY));
    let mut server = command(&program, directory, Some(library));
    // What the server before left.
    let _ = std::fs::remove_file(directory.join(SOCKET));
    let create = |name: &str| {
        File::create(directory.join(name)).map_err(|e| format!("redis-server's {name}: {e}"))
    };
    server
        .args([
            "--port",
            "0",
            "--unixsocket",
            SOCKET,
            "--save",
            "",
            "--appendonly",
            "no",
        ])
        .stdout(create("server.out")?)
        .stderr(create("server.err")?);
    server
        .spawn()
        .map(Server)
        .map_err(|e| format!("redis-server: {e}"))
}

fn connect(server: &mut Server, directory: &Path) -> Result<UnixStream, String> {
    let end = Instant::now() + PATIENCE;
    loop {
        // The path of a socket is short; the worker's own directory does not matter to it.
        if let Ok(client) = UnixStream::connect(directory.join(SOCKET)) {
            client
                .set_read_timeout(Some(PATIENCE))
                .map_err(|e| format!("redis: {e}"))?;
            return Ok(client);
        }
        if let Ok(Some(status)) = server.0.try_wait() {
            check(
                "redis-server",
                status,
                &read(&directory.join("server.err"))?,
            )?;
            return Err("redis-server ended before it listened".to_owned());
        }
        if Instant::now() > end {
            return Err(format!("redis-server does not listen after {PATIENCE:?}"));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Is the library in the server's memory?
fn preloaded(pid: &str, library: Option<&Path>) -> Result<(), String> {
    let Some(library) = library else {
        return Ok(());
    };
    let real = library
        .canonicalize()
        .map_err(|e| format!("{}: {e}", library.display()))?;
    let maps = read(Path::new(&format!("/proc/{pid}/maps")))?;
    let maps = String::from_utf8_lossy(&maps);
    if maps
        .lines()
        .any(|line| line.ends_with(&*real.to_string_lossy()))
    {
        return Ok(());
    }
    Err(format!(
        "redis-server: {} was not loaded: LD_PRELOAD had no effect",
        real.display()
    ))
}

/// A command as the protocol writes it.
fn encode(words: &[&str]) -> Vec<u8> {
    let mut text = format!("*{}\r\n", words.len());
    for word in words {
        text.push_str(&format!("${}\r\n{word}\r\n", word.len()));
    }
    text.into_bytes()
}

/// Sends a command and demands the answer.
fn ask(client: &mut UnixStream, words: &[&str], answer: &[u8]) -> Result<(), String> {
    let failed = |e: std::io::Error| format!("redis: {}: {e}", words[0]);
    client.write_all(&encode(words)).map_err(failed)?;
    let mut got = vec![0; answer.len()];
    client.read_exact(&mut got).map_err(failed)?;
    if got == answer {
        Ok(())
    } else {
        Err(format!(
            "redis: {} answered '{}'",
            words[0],
            String::from_utf8_lossy(&got).trim_end()
        ))
    }
}

/// Writes keys with values of 1 to 3,000 bytes, overwrites and grows some, and returns all that is read back.
fn known_keys(client: &mut UnixStream) -> Result<Vec<u8>, String> {
    let mut all = Vec::new();
    for i in 0..300 {
        let key = format!("known:{i}");
        let value = format!("{i};").repeat(1 + i * 7 % 600);
        ask(client, &["SET", &key, &value], b"+OK\r\n")?;
        let grown = value.len() + 5;
        let answer = format!(":{grown}\r\n");
        ask(client, &["APPEND", &key, "grown"], answer.as_bytes())?;
    }
    for i in (0..300).rev() {
        client
            .write_all(&encode(&["GET", &format!("known:{i}")]))
            .map_err(|e| format!("redis: GET: {e}"))?;
        let length = format!("{i};").len() * (1 + i * 7 % 600) + 5;
        let mut got = vec![0; format!("${length}\r\n").len() + length + 2];
        client
            .read_exact(&mut got)
            .map_err(|e| format!("redis: GET: {e}"))?;
        all.extend(got);
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_written_as_the_protocol_has_them() {
        assert_eq!(
            encode(&["SET", "k", "va"]),
            b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$2\r\nva\r\n"
        );
    }
}
