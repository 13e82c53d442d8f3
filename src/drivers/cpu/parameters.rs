//! A claim's opaque parameters for CPUs. Pure.
//!
//! There are none yet. An empty object is taken, so that a claim can be written before there are; a field is refused by
//! name, so that it does not seem to have an effect.

use serde_json::Value;

/// Checks one opaque configuration; the error says what is wrong.
pub(super) fn check(parameters: &Value) -> Result<(), String> {
    const NONE: &str = "the CPU driver takes no parameters: write {} or remove the configuration";
    match parameters {
        Value::Object(fields) => match fields.keys().next() {
            None => Ok(()),
            Some(field) => Err(format!("{NONE}; there is a field {field:?}")),
        },
        Value::Null => Err(format!("{NONE}; they are null, not an object")),
        Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            Err(format!("{NONE}; they are not an object"))
        }
    }
}
