//! Replaces a file atomically: readers see either the old content or the new. IO: files.

use std::{
    ffi::OsString,
    fs::{self, File, OpenOptions},
    io::{self, Write},
    path::{Path, PathBuf},
};

use rustix::fs::{CWD, RenameFlags, renameat_with};

/// What kind of crash the new content survives once [`replace`] has returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// A crash of this process. Enough for content that a reboot invalidates anyway, and never waits for the disk to
    /// sync.
    Process,
    /// A crash of the machine: before [`replace`] returns the old content survives, afterwards the new. For content
    /// that cannot be recomputed. The previous file is kept beside the current one and overwritten: as long as the
    /// length stays the same, no block is allocated or freed, so syncing is a single write to the disk. A new file
    /// would also wait for the file system's journal.
    Machine,
}

/// Replaces the content of the file at `path` with `content`, through the file at [`temporary`]. The directory must
/// exist.
pub fn replace(path: &Path, content: &[u8], durability: Durability) -> io::Result<()> {
    let temporary = temporary(path);
    match durability {
        Durability::Process => {
            fs::write(&temporary, content)?;
            fs::rename(&temporary, path)
        }
        Durability::Machine => {
            write_over(&temporary, content)?;
            if renameat_with(CWD, &temporary, CWD, path, RenameFlags::EXCHANGE).is_err() {
                // The first write, or a file system that cannot exchange two files.
                fs::rename(&temporary, path)?;
            }

            // The rename is durable only once the directory is synced.
            File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()
        }
    }
}

/// The path where the new content is written first: `<path>.tmp`.
pub fn temporary(path: &Path) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(".tmp");
    name.into()
}

/// Writes and syncs the content, in the blocks that the file already has.
fn write_over(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create(true).truncate(false).open(path)?;
    if file.metadata()?.len() != content.len() as u64 {
        file.set_len(content.len() as u64)?;
    }
    file.write_all(content)?;
    file.sync_data()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_content_may_be_longer_or_shorter_than_the_old() {
        for durability in [Durability::Process, Durability::Machine] {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("state.json");
            // Content both longer and shorter than two writes ago, because that file is overwritten.
            for content in ["long content", "x", "longer content", "", "the longest content"] {
                replace(&path, content.as_bytes(), durability).unwrap();
                assert_eq!(fs::read_to_string(&path).unwrap(), content, "{durability:?}");
            }
        }
    }

    #[test]
    fn the_file_is_replaced_atomically() {
        for durability in [Durability::Process, Durability::Machine] {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("state.json");
            replace(&path, b"old", durability).unwrap();
            let mut reader = File::open(&path).unwrap();
            replace(&path, b"new", durability).unwrap();
            // A reader that opened the old file still sees all of it.
            assert_eq!(io::read_to_string(&mut reader).unwrap(), "old", "{durability:?}");
        }
    }

    #[test]
    fn a_partial_file_left_by_a_crash_is_overwritten() {
        for durability in [Durability::Process, Durability::Machine] {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("state.json");
            fs::write(temporary(&path), "half a longer cont").unwrap();
            replace(&path, b"whole", durability).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), "whole", "{durability:?}");
        }
    }

    #[test]
    fn a_missing_directory_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        for durability in [Durability::Process, Durability::Machine] {
            let error = replace(&directory.path().join("gone/state.json"), b"", durability).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::NotFound, "{durability:?}");
        }
    }
}
