//! Replaces a file in one step: readers see the old content or the new, never a part. IO: files.

use std::{
    ffi::OsString,
    fs::{self, File, OpenOptions},
    io::{self, Write},
    path::{Path, PathBuf},
};

use rustix::fs::{CWD, RenameFlags, renameat_with};

/// What the new content survives once [`replace`] has returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// A crash of this process. Enough for what a reboot makes void anyway, and it never waits for the disk to sync.
    Process,
    /// A crash of the machine: until the return the old content survives, after it the new. For what cannot be worked out
    /// again. The file of the write before the last is kept beside it and written over: while the length stays the same
    /// no block is allocated or freed, so that syncing is one write to the disk, where a new file also waits for the
    /// file system's journal.
    Machine,
}

/// Makes `content` the content of the file at `path`, by way of [`temporary`]; its directory must exist.
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

            // The rename is durable only once the directory is.
            File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()
        }
    }
}

/// Where the new content is written first: `<path>.tmp`.
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
    fn the_new_content_takes_the_place_of_a_longer_and_of_a_shorter_one() {
        for durability in [Durability::Process, Durability::Machine] {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("state.json");
            // Longer and shorter than the one before the last too: that file is written over.
            for content in ["long content", "x", "longer content", "", "the longest content"] {
                replace(&path, content.as_bytes(), durability).unwrap();
                assert_eq!(fs::read_to_string(&path).unwrap(), content, "{durability:?}");
            }
        }
    }

    #[test]
    fn the_file_changes_in_one_step() {
        for durability in [Durability::Process, Durability::Machine] {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("state.json");
            replace(&path, b"old", durability).unwrap();
            let mut reader = File::open(&path).unwrap();
            replace(&path, b"new", durability).unwrap();
            // A reader of the old file still has it whole.
            assert_eq!(io::read_to_string(&mut reader).unwrap(), "old", "{durability:?}");
        }
    }

    #[test]
    fn what_a_crash_left_of_a_write_is_written_over() {
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
