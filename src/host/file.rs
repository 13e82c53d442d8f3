//! Reads small files of sysfs and procfs, with a size limit, and parses them. IO: reads below one directory.
//!
//! A missing file is not a problem, because kernels differ. A file that is unreadable, empty or nonsensical is treated
//! as missing, with a warning that names it.

use std::{
    collections::BTreeSet,
    fs::{self, File, OpenOptions},
    io::{self, BufRead, BufReader, Read},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use super::warnings::Warnings;
use crate::cpuset::{CpuSet, CpuSetError};

/// The largest size of a file with one value: a list of 8192 CPUs with gaps has 40 KiB, and sysfs limits most files to
/// a page.
const MAX_FILE: u64 = 64 << 10;

/// How much of a file with many lines (`cpuinfo`) is read. 4096 Arm CPUs need less.
const MAX_LINES_FILE: u64 = 4 << 20;

/// How much of one line is kept. The x86 flags need 2 KiB.
const MAX_LINE: u64 = 16 << 10;

/// Reads files below a root, and collects warnings about them.
#[derive(Debug)]
pub(super) struct Files<'h> {
    root: &'h Path,
    buffer: Vec<u8>,
    pub(super) warnings: Warnings,
}

impl<'h> Files<'h> {
    pub(super) fn below(root: &'h Path) -> Self {
        Self { root, buffer: Vec::new(), warnings: Warnings::default() }
    }

    /// The path of a host file on this machine.
    pub(super) fn path(&self, file: &str) -> PathBuf {
        self.root.join(file)
    }

    /// Records that two files contradict each other.
    pub(super) fn contradiction(&mut self, file: &str, detail: impl Into<String>) {
        let path = self.path(file);
        self.warnings.add(&path, "contradiction", detail);
    }

    /// Records that a file is missing, where that loses information.
    pub(super) fn absent(&mut self, file: &str, detail: impl Into<String>) {
        let path = self.path(file);
        self.warnings.add(&path, "absent", detail);
    }

    /// Parses a file's text, which is trimmed and never empty.
    pub(super) fn value<T>(&mut self, file: &str, parse: impl FnOnce(&str) -> Result<T, String>) -> Option<T> {
        let read = self.read(file)?;
        if read.is_empty() {
            let path = self.path(file);
            self.warnings.add(&path, "empty", "is empty");
            return None;
        }
        self.parsed(file, &read, parse)
    }

    /// A number that is an identifier or a quantity. The kernel writes −1 for unknown, which becomes `None`.
    pub(super) fn number(&mut self, file: &str) -> Option<u32> {
        self.value(file, |text| match text.parse::<i64>() {
            Ok(number) => Ok(u32::try_from(number).ok().filter(|&number| number != u32::MAX)),
            Err(_) => Err("not a number".to_owned()),
        })?
    }

    /// A list such as `0-3,8`; an empty file is the empty set.
    pub(super) fn list(&mut self, file: &str) -> Option<CpuSet> {
        let read = self.read(file)?;
        self.parsed(file, &read, |text| text.parse().map_err(|error: CpuSetError| error.problem().to_owned()))
    }

    /// A mask such as `00000000,000000ff`. Kernels before 2.6.26 wrote only masks; later ones also write lists.
    pub(super) fn mask(&mut self, file: &str) -> Option<CpuSet> {
        self.value(file, |text| CpuSet::from_mask(text).map_err(|error| error.problem().to_owned()))
    }

    /// The numbers of a directory's entries named `<prefix><number>`. `None` if there is no directory.
    pub(super) fn numbered(&mut self, directory: &str, prefix: &str) -> Option<BTreeSet<u32>> {
        let path = self.path(directory);
        match fs::read_dir(&path) {
            Ok(entries) => Some(
                entries
                    .filter_map(|entry| {
                        let name = entry.ok()?.file_name();
                        name.to_str()?.strip_prefix(prefix)?.parse().ok()
                    })
                    .collect(),
            ),
            Err(error) => {
                self.unreadable(&path, &error);
                None
            }
        }
    }

    /// Calls `each` with each line of a file until it returns false. Returns whether the file could be read.
    pub(super) fn lines(&mut self, file: &str, mut each: impl FnMut(&str) -> bool) -> bool {
        let path = self.path(file);
        let mut lines = match open(&path) {
            Ok(file) => BufReader::new(file.take(MAX_LINES_FILE)),
            Err(error) => {
                self.unreadable(&path, &error);
                return false;
            }
        };
        loop {
            self.buffer.clear();
            match lines.by_ref().take(MAX_LINE).read_until(b'\n', &mut self.buffer) {
                Ok(0) => return true,
                Ok(_) => {
                    if !each(String::from_utf8_lossy(&self.buffer).trim_end()) {
                        return true;
                    }
                }
                Err(error) => {
                    self.unreadable(&path, &error);
                    return false;
                }
            }
        }
    }

    fn parsed<T>(&mut self, file: &str, text: &str, parse: impl FnOnce(&str) -> Result<T, String>) -> Option<T> {
        match parse(text) {
            Ok(value) => Some(value),
            Err(problem) => {
                let path = self.path(file);
                let start: String = text.chars().take(40).collect();
                self.warnings.add(&path, "nonsense", format!("says {start:?}: {problem}"));
                None
            }
        }
    }

    fn read(&mut self, file: &str) -> Option<String> {
        let path = self.path(file);
        self.buffer.clear();
        match open(&path).and_then(|file| file.take(MAX_FILE + 1).read_to_end(&mut self.buffer)) {
            Ok(size) if size as u64 > MAX_FILE => {
                self.warnings.add(&path, "large", format!("is larger than {MAX_FILE} bytes and is ignored"));
                None
            }
            Ok(_) => Some(String::from_utf8_lossy(&self.buffer).trim_matches(blank).to_owned()),
            Err(error) => {
                self.unreadable(&path, &error);
                None
            }
        }
    }

    fn unreadable(&mut self, path: &Path, error: &io::Error) {
        if error.kind() != io::ErrorKind::NotFound {
            self.warnings.add(path, "unreadable", format!("cannot be read: {error}"));
        }
    }
}

/// Opens a file for reading without blocking: a pipe in an artificial tree would wait for a writer.
fn open(path: &Path) -> io::Result<File> {
    let nonblocking = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    OpenOptions::new().read(true).custom_flags(nonblocking).open(path)
}

/// White space, and the NUL at the end of a file that some old kernels and recordings have.
fn blank(character: char) -> bool {
    character.is_whitespace() || character == '\0'
}
