//! The value of `--granularity`. Pure.

use crate::api::Granularity;

/// Reads `Core` or `Thread`, in any case.
pub(super) fn parse(text: &str) -> Result<Granularity, String> {
    match text.to_ascii_lowercase().as_str() {
        "core" => Ok(Granularity::Core),
        "thread" => Ok(Granularity::Thread),
        _ => Err("write Core or Thread".to_owned()),
    }
}
