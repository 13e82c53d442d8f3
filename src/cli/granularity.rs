//! The value of `--granularity`. Pure.

use clap::builder::{PossibleValuesParser, TypedValueParser};

use crate::api::Granularity;

/// Parses `Core` or `Thread`. Case matters unless the argument sets `ignore_case`.
pub(super) fn parser() -> impl TypedValueParser<Value = Granularity> {
    PossibleValuesParser::new(["Core", "Thread"]).map(|text| match text.to_ascii_lowercase().as_str() {
        "thread" => Granularity::Thread,
        _ => Granularity::Core,
    })
}
