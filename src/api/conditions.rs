//! Condition types and their reasons. Pure.

/// The condition types on a `DraDriverConfig`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ConditionType {
    /// Everything asked for is there and serves.
    Ready,
    /// Work towards it goes on; only present while true.
    Reconciling,
    /// A person must mend something; only present while true.
    Stalled,
    /// Every node that should publishes a complete pool of healthy devices.
    ResourcesHealthy,
    /// The cluster has what the driver needs.
    PreflightPassed,
}

impl ConditionType {
    /// The word in `conditions[].type`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ready => "Ready",
            Self::Reconciling => "Reconciling",
            Self::Stalled => "Stalled",
            Self::ResourcesHealthy => "ResourcesHealthy",
            Self::PreflightPassed => "PreflightPassed",
        }
    }
}
