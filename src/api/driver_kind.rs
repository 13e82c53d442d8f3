//! `spec.driver` after parsing: only kinds that this release supports, with every default resolved. Pure.

use super::{CpuSettings, DriverSpec, Fault};

/// The kind of devices that a driver serves, and its settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DriverKind {
    /// The node's CPUs.
    Cpu(CpuSettings),
}

/// The CRD's message for a union with none or several members.
pub(super) const EXACTLY_ONE: &str =
    "spec.driver must have exactly one kind, such as `cpu: {}`: create a second DraDriverConfig for another kind";
/// The CRD's message for a member that is reserved for a later release.
pub(super) const SERVED: &str =
    "this release only serves spec.driver.cpu: memory, network and external are reserved for later";

impl DriverKind {
    /// The kind of that member of `spec.driver`, with nothing but defaults; none of a kind that is not served.
    pub fn of_member(name: &str) -> Option<Self> {
        match name {
            "cpu" => Some(Self::Cpu(CpuSettings::default())),
            _ => None,
        }
    }
}

impl TryFrom<&DriverSpec> for DriverKind {
    type Error = Fault;

    /// Returns the same messages as the CRD's rules. The CRD in the cluster may be from another release and accept what
    /// this one does not support.
    fn try_from(spec: &DriverSpec) -> Result<Self, Fault> {
        let fault = |message: &str| Fault { path: "spec.driver".into(), message: message.into() };
        let reserved = [spec.memory.is_some(), spec.network.is_some(), spec.external.is_some()];
        match (&spec.cpu, reserved.into_iter().filter(|there| *there).count()) {
            (Some(cpu), 0) => Ok(Self::Cpu(cpu.try_into()?)),
            (None, 1) => Err(fault(SERVED)),
            _ => Err(fault(EXACTLY_ONE)),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::api::{Granularity, Pinning};

    fn parse(driver: &Value) -> Result<DriverKind, String> {
        let spec: DriverSpec = serde_json::from_value(driver.clone()).unwrap();
        DriverKind::try_from(&spec).map_err(|fault| fault.to_string())
    }

    #[test]
    fn defaults_are_resolved() {
        let DriverKind::Cpu(cpu) = parse(&json!({"cpu": {}})).unwrap();
        assert_eq!((cpu.granularity, cpu.pinning), (Granularity::Core, Pinning::Nri));
        assert!(cpu.reserved_cpus.is_empty());

        let DriverKind::Cpu(cpu) = parse(&json!({"cpu": {"reservedCPUs": "8,0-1", "pinning": "None"}})).unwrap();
        assert_eq!((cpu.reserved_cpus.to_string().as_str(), cpu.pinning), ("0-1,8", Pinning::None));
    }

    #[test]
    fn no_other_kind_becomes_cpu() {
        for kind in ["memory", "network", "external"] {
            assert_eq!(parse(&json!({kind: {}})), Err(format!("spec.driver: {SERVED}")));
            assert_eq!(parse(&json!({"cpu": {}, kind: {}})), Err(EXACTLY_ONE.into()));
        }
        assert_eq!(parse(&json!({})), Err(EXACTLY_ONE.into()));
    }

    #[test]
    fn reserved_cpus_that_are_not_a_list_are_rejected() {
        for bad in ["3-1", "all", "0;1", "0-99999"] {
            let error = parse(&json!({"cpu": {"reservedCPUs": bad}})).unwrap_err();
            assert!(error.starts_with("spec.driver.cpu.reservedCPUs is not a CPU list: "), "{error}");
        }
    }
}
