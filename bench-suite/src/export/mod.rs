//! What a report looks like in a file: JSON, CSV, Markdown, HTML.

pub mod csv;
pub mod html;
pub mod json;
pub mod markdown;
mod plot;
mod reading;

use std::io::Write;
use std::path::{Path, PathBuf};

/// Writes `text` to `path`. A regular file is replaced as a whole, so that a crash or a full disk leaves the old one;
/// anything else (a device, a pipe) is written in place. Missing directories are made.
pub fn write(path: &Path, text: &str) -> Result<(), String> {
    write_io(path, text).map_err(|e| format!("cannot write {}: {e}", path.display()))
}

fn write_io(path: &Path, text: &str) -> std::io::Result<()> {
    if let Some(parent) = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty())
    {
        std::fs::create_dir_all(parent)?;
    }
    if path.exists() && !path.is_file() {
        return std::fs::OpenOptions::new()
            .write(true)
            .open(path)?
            .write_all(text.as_bytes());
    }
    // Follow a link, so that its target is replaced and not the link.
    let target = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let mut name = target.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.tmp", std::process::id()));
    let temporary: PathBuf = target.with_file_name(name);
    let written = std::fs::File::create(&temporary)
        .and_then(|mut file| {
            file.write_all(text.as_bytes())
                .and_then(|()| file.sync_all())
        })
        .and_then(|()| std::fs::rename(&temporary, &target));
    if written.is_err() {
        // The first error is the one to report.
        let _ = std::fs::remove_file(&temporary);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replaces_whole_files_and_names_what_it_cannot_write() {
        let directory =
            std::env::temp_dir().join(format!("bench-suite-export-{}", std::process::id()));
        let file = directory.join("deep/er/out.txt");
        write(&file, "one").unwrap();
        write(&file, "two").unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "two");
        assert_eq!(
            std::fs::read_dir(file.parent().unwrap()).unwrap().count(),
            1
        );
        std::fs::remove_dir_all(&directory).unwrap();
        assert!(
            write(Path::new("/dev/full"), "x")
                .unwrap_err()
                .contains("cannot write /dev/full")
        );
    }
}
