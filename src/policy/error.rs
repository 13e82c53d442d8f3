//! Why a policy cannot be translated into a DeviceClass. Pure.

/// An error in a policy: the field, and what to write instead.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {message}")]
pub struct PolicyError {
    /// The field's path, such as `spec.deviceClasses[2].matchAttributes[0].value`.
    pub field: String,
    /// What is wrong, and what to write.
    pub message: String,
}

impl PolicyError {
    pub(super) fn new(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self { field: field.into(), message: message.into() }
    }

    /// The same error, with the field's path prefixed by `holder`.
    #[must_use]
    pub fn within(mut self, holder: &str) -> Self {
        self.field = if self.field.is_empty() { holder.to_owned() } else { format!("{holder}.{}", self.field) };
        self
    }
}
