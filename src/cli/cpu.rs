//! Value parsers for the CPU arguments. Pure. Case matters unless the argument sets `ignore_case`.

use clap::builder::{PossibleValuesParser, TypedValueParser};

use crate::api::{Granularity, Pinning};

/// Parses the value of `--granularity`.
pub(super) fn granularity() -> impl TypedValueParser<Value = Granularity> {
    one_of(&[Granularity::Core, Granularity::Thread], Granularity::as_str)
}

/// Parses the value of `--pinning`.
pub(super) fn pinning() -> impl TypedValueParser<Value = Pinning> {
    one_of(&[Pinning::Nri, Pinning::None], Pinning::as_str)
}

fn one_of<T>(values: &'static [T], word: fn(T) -> &'static str) -> impl TypedValueParser<Value = T>
where
    T: Copy + Send + Sync + 'static,
{
    PossibleValuesParser::new(values.iter().map(|value| word(*value))).try_map(move |text| {
        let found = values.iter().find(|value| word(**value).eq_ignore_ascii_case(&text));
        found.copied().ok_or("not one of the possible values")
    })
}
