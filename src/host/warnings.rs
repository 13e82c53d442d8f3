//! Warnings about unreadable or contradictory files, one per kind of file. Pure.
//!
//! 512 unreadable `core_id` files are one problem, not 512. Files that differ only in their numbers and have the same
//! problem get a single warning, which names the first.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use crate::shorten::more_like_it;

/// Collects warnings; each names a file.
#[derive(Debug, Default)]
pub struct Warnings(BTreeMap<(String, &'static str), Warning>);

#[derive(Debug)]
struct Warning {
    file: PathBuf,
    detail: String,
    /// How many files have the problem.
    count: usize,
}

impl Warnings {
    /// Records that `file` has `problem`. `detail` is the message (`cannot be read: Permission denied`).
    ///
    /// `problem` groups the warnings and is not shown.
    pub fn add(&mut self, file: &Path, problem: &'static str, detail: impl Into<String>) {
        let kind = (without_numbers(&file.to_string_lossy()), problem);
        self.0.entry(kind).and_modify(|warning| warning.count += 1).or_insert_with(|| Warning {
            file: file.to_owned(),
            detail: detail.into(),
            count: 1,
        });
    }

    /// The warnings as sentences, in a stable order.
    pub fn into_sentences(self) -> Vec<String> {
        self.0
            .into_values()
            .map(|Warning { file, detail, count }| format!("{} {detail}{}", file.display(), more_like_it(count)))
            .collect()
    }
}

/// `path` with each run of digits replaced by one `0`.
fn without_numbers(path: &str) -> String {
    let mut kind = String::with_capacity(path.len());
    for character in path.chars() {
        match character.is_ascii_digit() {
            true if kind.ends_with('0') => {}
            true => kind.push('0'),
            false => kind.push(character),
        }
    }
    kind
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_differ_only_in_their_numbers_get_one_warning() {
        let mut warnings = Warnings::default();
        for cpu in [9, 10, 11] {
            warnings.add(Path::new(&format!("/sys/cpu{cpu}/core_id")), "empty", "is empty");
        }
        warnings.add(Path::new("/sys/cpu9/core_id"), "unreadable", "cannot be read");
        warnings.add(Path::new("/sys/online"), "empty", "is empty");
        assert_eq!(
            warnings.into_sentences(),
            [
                "/sys/cpu9/core_id is empty (and 2 more like it)",
                "/sys/cpu9/core_id cannot be read",
                "/sys/online is empty"
            ]
        );
    }
}
