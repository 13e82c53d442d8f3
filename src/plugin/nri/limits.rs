//! The memory and huge page limits that a claim sets for its container. Pure.

use super::messages::{HugepageLimit, LinuxMemory, LinuxResources, OptionalInt64};
use crate::drivers::Grant;

/// The limits of a grant as sent to the runtime; empty if it has none. They are set when the container is created.
pub(super) fn limits(grant: &Grant) -> LinuxResources {
    let memory = grant.memory_limit.map(|limit| LinuxMemory {
        // No machine has more memory than an i64 can count.
        limit: Some(OptionalInt64 { value: i64::try_from(limit).unwrap_or(i64::MAX) }),
    });
    let hugepage = |(size, limit): (&String, &u64)| HugepageLimit { page_size: size.clone(), limit: *limit };
    LinuxResources { memory, cpu: None, hugepage_limits: grant.huge_page_limits.iter().map(hugepage).collect() }
}
