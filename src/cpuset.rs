//! Sets of CPUs or NUMA nodes in the kernel's list format. Pure.

use std::{collections::BTreeSet, fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// A set of CPU numbers or NUMA node numbers, written as the kernel does: `0-3,8`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct CpuSet(BTreeSet<u32>);

/// A CPU number above this is taken for a mistake: it is well above the kernel's largest `CONFIG_NR_CPUS` (8192).
const MAX_CPU: u32 = 65_535;

/// The text is not a valid CPU list or CPU mask.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{text:?} is not a {form}: {problem}; write {example}")]
pub struct CpuSetError {
    text: String,
    problem: String,
    form: &'static str,
    example: &'static str,
}

impl CpuSetError {
    /// What is wrong, without the text itself.
    pub fn problem(&self) -> &str {
        &self.problem
    }
}

impl CpuSet {
    /// The empty set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Parses a mask as sysfs writes it: 32-bit words in hexadecimal, highest first (`00000001,000000ff`).
    pub fn from_mask(text: &str) -> Result<Self, CpuSetError> {
        let error = |problem: String| CpuSetError {
            text: text.chars().take(80).collect(),
            problem,
            form: "CPU mask",
            example: "words such as 00000000,000000ff",
        };
        let mut cpus = BTreeSet::new();
        for (first, word) in (0..=MAX_CPU).step_by(32).zip(text.trim().rsplit(',')) {
            let bits = u32::from_str_radix(word, 16).map_err(|_| error(format!("{word:?} is not a 32-bit word")))?;
            cpus.extend((0..32).filter(|bit| bits >> bit & 1 == 1).map(|bit| first + bit));
        }
        Ok(Self(cpus))
    }

    /// Whether no CPU is in the set.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many CPUs are in the set.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The CPUs, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter().copied()
    }

    /// Whether `cpu` is in the set.
    pub fn contains(&self, cpu: u32) -> bool {
        self.0.contains(&cpu)
    }

    /// The lowest CPU.
    pub fn first(&self) -> Option<u32> {
        self.0.first().copied()
    }

    /// Adds one CPU.
    pub fn insert(&mut self, cpu: u32) {
        self.0.insert(cpu);
    }

    /// CPUs in either.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        Self(self.0.union(&other.0).copied().collect())
    }

    /// CPUs in `self` and not in `other`.
    #[must_use]
    pub fn difference(&self, other: &Self) -> Self {
        Self(self.0.difference(&other.0).copied().collect())
    }

    /// CPUs in both.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        Self(self.0.intersection(&other.0).copied().collect())
    }

    /// Whether no CPU is in both.
    pub fn is_disjoint(&self, other: &Self) -> bool {
        self.0.is_disjoint(&other.0)
    }

    /// Whether every CPU of `self` is in `other`.
    pub fn is_subset(&self, other: &Self) -> bool {
        self.0.is_subset(&other.0)
    }
}

impl FromIterator<u32> for CpuSet {
    fn from_iter<I: IntoIterator<Item = u32>>(cpus: I) -> Self {
        Self(cpus.into_iter().collect())
    }
}

impl Extend<u32> for CpuSet {
    fn extend<I: IntoIterator<Item = u32>>(&mut self, cpus: I) {
        self.0.extend(cpus);
    }
}

impl FromStr for CpuSet {
    type Err = CpuSetError;

    fn from_str(text: &str) -> Result<Self, CpuSetError> {
        let error = |problem: String| CpuSetError {
            text: text.chars().take(80).collect(),
            problem,
            form: "CPU list",
            example: "numbers and ranges such as 0-3,8",
        };
        let number = |part: &str| match part.trim().parse::<u32>() {
            Ok(cpu) if cpu <= MAX_CPU => Ok(cpu),
            Ok(cpu) => Err(error(format!("{cpu} is larger than {MAX_CPU}"))),
            Err(_) => Err(error(format!("{part:?} is not a number"))),
        };
        let mut cpus = BTreeSet::new();
        for part in text.trim().split(',').filter(|_| !text.trim().is_empty()) {
            match part.split_once('-') {
                None => {
                    cpus.insert(number(part)?);
                }
                Some((low, high)) => {
                    let (low, high) = (number(low)?, number(high)?);
                    if low > high {
                        return Err(error(format!("the range {low}-{high} runs backwards")));
                    }
                    cpus.extend(low..=high);
                }
            }
        }
        Ok(Self(cpus))
    }
}

impl TryFrom<String> for CpuSet {
    type Error = CpuSetError;

    fn try_from(text: String) -> Result<Self, CpuSetError> {
        text.parse()
    }
}

impl From<CpuSet> for String {
    fn from(set: CpuSet) -> Self {
        set.to_string()
    }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut cpus = self.iter().peekable();
        let mut separator = "";
        while let Some(low) = cpus.next() {
            let mut high = low;
            while let Some(next) = cpus.next_if(|&next| next == high + 1) {
                high = next;
            }
            match high - low {
                0 => write!(f, "{separator}{low}")?,
                _ => write!(f, "{separator}{low}-{high}")?,
            }
            separator = ",";
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_written_is_read_back(cpus in proptest::collection::btree_set(0u32..9000, 0..200)) {
            let set: CpuSet = cpus.into_iter().collect();
            prop_assert_eq!(set.to_string().parse::<CpuSet>().unwrap(), set);
        }

        #[test]
        fn no_text_causes_a_panic(text in ".{0,40}") {
            let _: Result<CpuSet, _> = text.parse();
            let _: Result<CpuSet, _> = CpuSet::from_mask(&text);
        }
    }

    #[test]
    fn lists_are_written_as_the_kernel_writes_them() {
        let set: CpuSet = "3,0-1,2,8,10-11".parse().unwrap();
        assert_eq!(set.to_string(), "0-3,8,10-11");
        assert_eq!("\n".parse::<CpuSet>().unwrap(), CpuSet::new());
    }

    #[test]
    fn masks_are_read_from_the_highest_word_down() {
        assert_eq!(CpuSet::from_mask("00000001,80000003\n").unwrap().to_string(), "0-1,31-32");
        assert_eq!(CpuSet::from_mask("f").unwrap().to_string(), "0-3");
        assert_eq!(CpuSet::from_mask("0000,00000000,00000010").unwrap().to_string(), "4");
        assert!(CpuSet::from_mask("1,,2").unwrap_err().to_string().contains("not a 32-bit word"));
    }

    #[test]
    fn a_bad_list_says_what_is_wrong_with_it() {
        for (text, problem) in [
            ("3-1", "runs backwards"),
            ("1,,2", "not a number"),
            ("99999999", "larger than"),
            ("a", "not a number"),
            ("-1", "not a number"),
        ] {
            let message = text.parse::<CpuSet>().unwrap_err().to_string();
            assert!(message.contains(problem) && message.contains(text), "{message}");
        }
    }
}
