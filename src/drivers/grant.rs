//! What a claim gives a container or its pod, for any kind of device. Pure.
//!
//! Each effect is applied in one place: `env`, `device_nodes` and `mounts` by CDI (`plugin/claims/cdi.rs`), the cpuset
//! and the limits by NRI (`plugin/nri`), `net_devices` by the kind's [`Attachment`](super::attachment::Attachment).

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde::{Deserialize, Serialize};

use crate::cpuset::CpuSet;

/// What a container gets for the devices of one request. Stored in the checkpoint, so fields may be added but never
/// removed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Grant {
    /// CPUs that the container runs on; empty if the device provides none.
    pub cpus: CpuSet,
    /// NUMA nodes whose memory the container may use; empty for no change.
    pub memory_nodes: CpuSet,
    /// Environment variables.
    pub env: BTreeMap<String, String>,
    /// Device nodes that appear in it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub device_nodes: Vec<DeviceNode>,
    /// Directories or files of the host that are mounted into it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub mounts: Vec<Mount>,
    /// The memory limit in bytes, replacing the limit in the pod's spec.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_limit: Option<u64>,
    /// The limits for huge pages in bytes, by page size as control groups name it: `2MB`, `1GB`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub huge_page_limits: BTreeMap<String, u64>,
    /// Network devices that are moved into the pod.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub net_devices: Vec<NetDevice>,
    /// What the claim holds of devices that several claims share.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub shares: Vec<Share>,
}

/// A device node in a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeviceNode {
    /// Its path in the container.
    pub path: String,
    /// Its path on the host.
    pub host_path: String,
    /// What the container may do with it: `r`, `w` and `m` (mknod).
    pub permissions: String,
}

/// A mount in a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Mount {
    /// The path on the host.
    pub host_path: String,
    /// The path in the container.
    pub container_path: String,
    /// Mount options, such as `ro` and `bind`.
    pub options: Vec<String>,
}

/// A network device in a pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NetDevice {
    /// Its name on the host.
    pub host_name: String,
    /// Its name in the pod.
    pub pod_name: String,
}

/// A claim's share of a device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Share {
    /// The device.
    pub device: String,
    /// How much of each of the device's capacities the claim consumes.
    pub consumed: BTreeMap<String, Quantity>,
}

impl Grant {
    /// Adds what another request of the same container provides.
    pub fn add(&mut self, other: &Self) {
        let Self { cpus, memory_nodes, env, device_nodes, mounts, memory_limit, huge_page_limits, net_devices, shares } =
            other.clone();
        self.cpus.extend(cpus.iter());
        self.memory_nodes.extend(memory_nodes.iter());
        self.env.extend(env);
        self.device_nodes.extend(device_nodes);
        self.mounts.extend(mounts);
        self.net_devices.extend(net_devices);
        self.shares.extend(shares);

        // Limits of several requests add up. A request without a limit does not affect the others.
        if let Some(limit) = memory_limit {
            self.memory_limit = Some(self.memory_limit.unwrap_or_default().saturating_add(limit));
        }
        for (size, limit) in huge_page_limits {
            let sum = self.huge_page_limits.entry(size).or_default();
            *sum = sum.saturating_add(limit);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_container_gets_the_sum_of_all_its_requests() {
        let node = |path: &str| DeviceNode { path: path.into(), host_path: path.into(), permissions: "rw".into() };
        let mut whole = Grant {
            cpus: "0-1".parse().unwrap(),
            device_nodes: vec![node("/dev/a")],
            huge_page_limits: [("2MB".to_owned(), 4 << 20)].into(),
            ..Grant::default()
        };
        whole.add(&Grant {
            cpus: "4".parse().unwrap(),
            memory_nodes: "1".parse().unwrap(),
            device_nodes: vec![node("/dev/b")],
            memory_limit: Some(1 << 30),
            huge_page_limits: [("2MB".to_owned(), 2 << 20), ("1GB".to_owned(), 1 << 30)].into(),
            ..Grant::default()
        });
        whole.add(&Grant { memory_limit: Some(1 << 20), ..Grant::default() });
        assert_eq!((whole.cpus.to_string(), whole.memory_nodes.to_string()), ("0-1,4".into(), "1".into()));
        assert_eq!(whole.device_nodes, [node("/dev/a"), node("/dev/b")]);
        assert_eq!(whole.memory_limit, Some((1 << 30) + (1 << 20)));
        assert_eq!(whole.huge_page_limits, [("1GB".to_owned(), 1 << 30), ("2MB".to_owned(), 6 << 20)].into());
    }
}
