//! `spec.driver.cpu`. Pure.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Fault;
use crate::cpuset::CpuSet;

/// Serves the node's CPUs as devices.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CpuSpec {
    // The API server writes this default into the object, so that `cpu` is never empty: when the last field of an
    // object is removed, server-side apply turns the object into null, which the schema rejects.
    /// What each device represents. `Core`: a physical core with all its hardware threads. `Thread`: one hardware
    /// thread (a CPU as numbered by the kernel).
    #[serde(default)]
    pub granularity: Granularity,

    /// CPUs that are never allocated to a claim, as a kernel CPU list such as `0-1,8`. They are left to the system and to
    /// pods without claims. Default: none.
    #[serde(default, rename = "reservedCPUs", skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    #[x_kube(validation = Rule::new("self.matches('^[0-9]{1,4}(-[0-9]{1,4})?(,[0-9]{1,4}(-[0-9]{1,4})?)*$') && self.split(',').all(r, !r.contains('-') || int(r.split('-')[0]) <= int(r.split('-')[1]))")
        .message("spec.driver.cpu.reservedCPUs is not a CPU list: write CPU numbers up to 9999 and ascending ranges without spaces, such as 0-1,8"))]
    pub reserved_cpus: Option<String>,

    /// How containers get the CPUs of their claims. Default `NRI`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pinning: Option<Pinning>,
}

/// What each device represents.
#[derive(JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Granularity {
    /// A physical core with all its hardware threads.
    #[default]
    Core,
    /// One hardware thread (a CPU as numbered by the kernel).
    Thread,
}

/// How containers get the CPUs of their claims. `NRI`, the default: the container runtime pins the claim's containers
/// to exactly its CPUs and keeps all other containers off them. `None`: the CPUs are only listed in the containers'
/// environment.
#[derive(JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Pinning {
    /// Through the container runtime's NRI socket: the claim's containers run on exactly its CPUs, and no other
    /// containers do.
    #[default]
    #[serde(rename = "NRI")]
    Nri,
    /// CPUs are only listed in the containers' environment; nothing is pinned. For runtimes without NRI.
    None,
}

/// A [`CpuSpec`] after parsing, with every default resolved.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuSettings {
    /// What each device represents.
    pub granularity: Granularity,
    /// CPUs that are never allocated to a claim; empty for none.
    pub reserved_cpus: CpuSet,
    /// How containers get the CPUs of their claims.
    pub pinning: Pinning,
}

impl CpuSettings {
    /// Driver name if the admin does not set one.
    pub const DEFAULT_NAME: &'static str = "dra.cpu";
}

impl TryFrom<&CpuSpec> for CpuSettings {
    type Error = Fault;

    fn try_from(spec: &CpuSpec) -> Result<Self, Fault> {
        const FIELD: &str = "spec.driver.cpu.reservedCPUs";
        let list = spec.reserved_cpus.as_deref().unwrap_or_default();
        let reserved_cpus = list.parse::<CpuSet>().map_err(|error| {
            let message =
                format!("{FIELD} is not a CPU list: {}; write CPU numbers and ranges, such as 0-1,8", error.problem());
            Fault { path: FIELD.into(), message }
        })?;
        Ok(Self { granularity: spec.granularity, reserved_cpus, pinning: spec.pinning.unwrap_or_default() })
    }
}

impl Granularity {
    /// The word in the API and on the command line.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Core => "Core",
            Self::Thread => "Thread",
        }
    }
}

impl Pinning {
    /// The word in the API and on the command line.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Nri => "NRI",
            Self::None => "None",
        }
    }
}
