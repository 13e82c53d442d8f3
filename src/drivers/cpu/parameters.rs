//! A claim's opaque parameters for CPUs. Pure.
//!
//! There are none yet. An empty object is accepted, so that claims can already contain one. Any field is rejected by
//! name, because it would have no effect.

use serde_json::Value;

/// Checks one opaque configuration; the error says what is wrong.
pub(super) fn check(parameters: &Value) -> Result<(), String> {
    const NONE: &str = "the CPU driver takes no parameters: write {} or remove the configuration";
    match parameters {
        Value::Object(fields) => match fields.keys().next() {
            None => Ok(()),
            Some(field) => Err(format!("unknown field {field:?}; {NONE}")),
        },
        Value::Null => Err(format!("null is not an object; {NONE}")),
        Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => Err(format!("not an object; {NONE}")),
    }
}
