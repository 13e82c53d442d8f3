//! Small files of sysfs and procfs, read with a cap and given a type. IO: reads below one directory.
//!
//! A file that is absent is no problem here: kernels differ. One that is there and cannot be read, is empty or says
//! what it cannot mean is as good as absent, with a warning that names it.

use std::{
    collections::BTreeSet,
    fs::{self, File, OpenOptions},
    io::{self, BufRead, BufReader, Read},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use super::warnings::Warnings;
use crate::cpuset::{CpuSet, CpuSetError};

/// No file of one value is larger: a list of 8192 CPUs with gaps is 40 KiB, and sysfs itself stops at a page for most.
const MAX_FILE: u64 = 64 << 10;

/// How much of a file of many lines (`cpuinfo`) is read: 4096 Arm CPUs need less.
const MAX_LINES_FILE: u64 = 4 << 20;

/// How much of one line is kept; x86 flags need 2 KiB.
const MAX_LINE: u64 = 16 << 10;

/// Reads files below a root, remembering what was wrong with them.
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

    /// Where a file of the host is on this machine.
    pub(super) fn path(&self, file: &str) -> PathBuf {
        self.root.join(file)
    }

    /// Notes that two files cannot both be right.
    pub(super) fn contradiction(&mut self, file: &str, detail: impl Into<String>) {
        let path = self.path(file);
        self.warnings.add(&path, "contradiction", detail);
    }

    /// Notes that a file is not there, where that takes something away.
    pub(super) fn absent(&mut self, file: &str, detail: impl Into<String>) {
        let path = self.path(file);
        self.warnings.add(&path, "absent", detail);
    }

    /// What `parse` makes of a file's text, trimmed and never empty.
    pub(super) fn value<T>(&mut self, file: &str, parse: impl FnOnce(&str) -> Result<T, String>) -> Option<T> {
        let read = self.read(file)?;
        if read.is_empty() {
            let path = self.path(file);
            self.warnings.add(&path, "empty", "is empty");
            return None;
        }
        self.parsed(file, &read, parse)
    }

    /// A number that is an identifier or a quantity. The kernel's −1 means that it does not know, and so does this.
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

    /// A mask such as `00000000,000000ff`, which kernels before 2.6.26 wrote where later ones also write lists.
    pub(super) fn mask(&mut self, file: &str) -> Option<CpuSet> {
        self.value(file, |text| CpuSet::from_mask(text).map_err(|error| error.problem().to_owned()))
    }

    /// The numbers of a directory's entries named `<prefix><number>`; `None` where there is no directory.
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

    /// Gives each line of a file to `each`, until that returns false. Returns whether there was a file to read.
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
                self.warnings.add(&path, "large", format!("is larger than {MAX_FILE} bytes, and is not read"));
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

/// Opens for reading without ever waiting: a pipe in a made-up tree would wait for a writer.
fn open(path: &Path) -> io::Result<File> {
    let nonblocking = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    OpenOptions::new().read(true).custom_flags(nonblocking).open(path)
}

/// White space, and the NUL that some old kernels and recordings end a file with.
fn blank(character: char) -> bool {
    character.is_whitespace() || character == '\0'
}
