//! Finds what this driver must prepare for a ResourceClaim. Pure.

use std::fmt;

use k8s_openapi::api::resource::v1::{
    DeviceAllocationConfiguration, DeviceRequestAllocationResult, ResourceClaim, ResourceClaimConsumerReference,
};

use crate::{drivers::AllocatedDevice, plugin::claims::prepared::PodRef};

/// The claim that the kubelet names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimRef {
    /// The claim's namespace.
    pub namespace: String,
    /// The claim's name.
    pub name: String,
    /// The claim's UID: a new claim may have the name of a deleted one.
    pub uid: String,
}

impl fmt::Display for ClaimRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// Why a claim cannot be prepared in its current state on the API server. Only that claim fails.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum AllocationError {
    /// The claim was deleted and recreated.
    #[error(
        "claim {namespace}/{name} was deleted and recreated: its UID is now {found:?}, not {wanted:?}; the kubelet retries for the pod that uses the new claim"
    )]
    OtherUid {
        /// Namespace.
        namespace: String,
        /// Name.
        name: String,
        /// The UID that the kubelet asked for.
        wanted: String,
        /// The UID that the claim has now.
        found: String,
    },
    /// The claim is not allocated.
    #[error("claim {namespace}/{name} is not allocated: its pod is being rescheduled or is gone")]
    NotAllocated {
        /// Namespace.
        namespace: String,
        /// Name.
        name: String,
    },
    /// The claim is not reserved for any pod.
    #[error("claim {namespace}/{name} is not reserved for any pod: the pod that used it is gone")]
    NotReserved {
        /// Namespace.
        namespace: String,
        /// Name.
        name: String,
    },
    /// All its devices belong to other drivers.
    #[error("claim {namespace}/{name} has no device from driver {driver}")]
    NoDevice {
        /// Namespace.
        namespace: String,
        /// Name.
        name: String,
        /// This driver.
        driver: String,
    },
    /// It has a device from another node's pool.
    #[error(
        "claim {namespace}/{name} is allocated to another node: device {device} is in pool {pool:?}, and this node's pool is {own:?}"
    )]
    OtherPool {
        /// Namespace.
        namespace: String,
        /// Name.
        name: String,
        /// The device.
        device: String,
        /// The device's pool.
        pool: String,
        /// This node's pool.
        own: String,
    },
}

/// The part of a claim that matters here.
#[derive(Clone, Debug, PartialEq)]
pub struct Allocated {
    /// This driver's devices, in the order of the allocation, each with the parameters that apply to it.
    pub devices: Vec<AllocatedDevice>,
    /// The pods that the claim is reserved for.
    pub pods: Vec<PodRef>,
}

/// Reads what this driver must prepare for a claim.
///
/// `wanted` is what the kubelet asked for, `pool` this node's pool.
pub fn allocated(
    claim: &ResourceClaim,
    wanted: &ClaimRef,
    driver: &str,
    pool: &str,
) -> Result<Allocated, AllocationError> {
    let (namespace, name) = (wanted.namespace.clone(), wanted.name.clone());
    let found = claim.metadata.uid.as_deref().unwrap_or_default();
    if found != wanted.uid {
        return Err(AllocationError::OtherUid { namespace, name, wanted: wanted.uid.clone(), found: found.to_owned() });
    }
    let Some((status, allocation)) =
        claim.status.as_ref().and_then(|status| status.allocation.as_ref().map(|allocation| (status, allocation)))
    else {
        return Err(AllocationError::NotAllocated { namespace, name });
    };
    let consumers = status.reserved_for.as_deref().unwrap_or_default();
    if consumers.is_empty() {
        return Err(AllocationError::NotReserved { namespace, name });
    }
    let devices = allocation.devices.as_ref();
    let configs = devices.and_then(|devices| devices.config.as_deref()).unwrap_or_default();
    let own: Vec<_> = devices
        .and_then(|devices| devices.results.as_deref())
        .unwrap_or_default()
        .iter()
        .filter(|result| result.driver == driver)
        .map(|result| device(result, configs))
        .collect();
    if let Some(other) = own.iter().find(|device| device.pool != pool) {
        return Err(AllocationError::OtherPool {
            namespace,
            name,
            device: other.device.clone(),
            pool: other.pool.clone(),
            own: pool.to_owned(),
        });
    }
    if own.is_empty() {
        return Err(AllocationError::NoDevice { namespace, name, driver: driver.to_owned() });
    }
    Ok(Allocated { devices: own, pods: consumers.iter().filter_map(pod).collect() })
}

/// The pod that a claim is reserved for. Other kinds of consumer have no sandbox.
fn pod(consumer: &ResourceClaimConsumerReference) -> Option<PodRef> {
    let is_pod = consumer.resource == "pods" && consumer.api_group.as_deref().unwrap_or_default().is_empty();
    is_pod.then(|| PodRef { uid: consumer.uid.clone(), name: consumer.name.clone() })
}

fn device(result: &DeviceRequestAllocationResult, configs: &[DeviceAllocationConfiguration]) -> AllocatedDevice {
    AllocatedDevice {
        request: base(&result.request).to_owned(),
        pool: result.pool.clone(),
        device: result.device.clone(),
        share_id: result.share_id.clone(),
        admin_access: result.admin_access.unwrap_or(false),
        consumed_capacity: result.consumed_capacity.clone().unwrap_or_default(),
        parameters: parameters(result, configs),
    }
}

/// The opaque parameters for one result, the least specific first: those of the class, then those of the claim.
fn parameters(
    result: &DeviceRequestAllocationResult,
    configs: &[DeviceAllocationConfiguration],
) -> Vec<serde_json::Value> {
    let of = |from_class: bool| {
        configs
            .iter()
            .filter(move |config| (config.source == "FromClass") == from_class)
            .filter(|config| applies(config, &result.request))
            .filter_map(|config| config.opaque.as_ref())
            .filter(|opaque| opaque.driver == result.driver)
            .map(|opaque| opaque.parameters.0.clone())
    };
    of(true).chain(of(false)).collect()
}

/// A configuration that lists no requests applies to all of them. A request is listed by its full name (`main/big`) or
/// its base name (`main`).
fn applies(config: &DeviceAllocationConfiguration, request: &str) -> bool {
    let requests = config.requests.as_deref().unwrap_or_default();
    requests.is_empty() || requests.iter().any(|named| named == request || named == base(request))
}

/// The base name, `main` in `main/big`. Containers, CDI and the kubelet refer to a request by it.
fn base(request: &str) -> &str {
    request.split_once('/').map_or(request, |(base, _)| base)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn wanted() -> ClaimRef {
        ClaimRef { namespace: "apps".into(), name: "cores".into(), uid: "u1".into() }
    }

    fn claim(allocation: &serde_json::Value) -> ResourceClaim {
        serde_json::from_value(json!({
            "metadata": {"namespace": "apps", "name": "cores", "uid": "u1"},
            "status": {"allocation": {"devices": allocation}, "reservedFor": [{"resource": "pods", "name": "p", "uid": "p1"}]},
        }))
        .unwrap()
    }

    fn result(driver: &str, request: &str, device: &str) -> serde_json::Value {
        json!({"driver": driver, "pool": "node-1", "device": device, "request": request})
    }

    #[test]
    fn only_this_drivers_results_count_and_they_have_the_base_name_of_their_request() {
        let claim = claim(&json!({"results": [
            result("dra.cpu", "main/big", "core-0-1"), result("gpu.example.com", "gpu", "gpu-0"), result("dra.cpu", "side", "core-0-2"),
        ]}));
        let devices = allocated(&claim, &wanted(), "dra.cpu", "node-1").unwrap().devices;
        let named: Vec<_> = devices.iter().map(|d| (d.request.as_str(), d.device.as_str())).collect();
        assert_eq!(named, [("main", "core-0-1"), ("side", "core-0-2")]);
    }

    #[test]
    fn parameters_of_the_class_come_before_those_of_the_claim_in_any_order_of_the_allocation() {
        let config = |source: &str, driver: &str, requests: &[&str], n: u32| json!({"source": source, "requests": requests, "opaque": {"driver": driver, "parameters": {"n": n}}});
        let claim = claim(&json!({
            "results": [result("dra.cpu", "main/big", "core-0-1"), result("dra.cpu", "side", "core-0-2")],
            "config": [
                config("FromClaim", "dra.cpu", &[], 1),
                config("FromClass", "dra.cpu", &["main/big"], 2),
                config("FromClaim", "dra.cpu", &["main"], 3),
                config("FromClaim", "dra.cpu", &["main/small"], 4),
                config("FromClaim", "gpu.example.com", &[], 5),
                config("FromClass", "dra.cpu", &["side"], 6),
            ],
        }));
        let devices = allocated(&claim, &wanted(), "dra.cpu", "node-1").unwrap().devices;
        assert_eq!(devices[0].parameters, [json!({"n": 2}), json!({"n": 1}), json!({"n": 3})]);
        assert_eq!(devices[1].parameters, [json!({"n": 6}), json!({"n": 1})]);
    }

    #[test]
    fn the_pods_are_those_that_the_claim_is_reserved_for() {
        let mut claim = claim(&json!({"results": [result("dra.cpu", "main", "core-0-1")]}));
        claim.status.as_mut().unwrap().reserved_for = serde_json::from_value(json!([
            {"resource": "pods", "name": "web-1", "uid": "p1"},
            {"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": "web", "uid": "g1"},
            {"apiGroup": "example.com", "resource": "pods", "name": "other", "uid": "x1"},
            {"resource": "pods", "name": "web-2", "uid": "p2"},
        ]))
        .unwrap();
        let pods = allocated(&claim, &wanted(), "dra.cpu", "node-1").unwrap().pods;
        let named: Vec<_> = pods.iter().map(|pod| (pod.uid.as_str(), pod.name.as_str())).collect();
        assert_eq!(named, [("p1", "web-1"), ("p2", "web-2")]);
    }

    #[test]
    fn a_recreated_claim_or_one_for_another_node_is_rejected_with_the_reason() {
        let good = claim(&json!({"results": [result("dra.cpu", "main", "core-0-1")]}));
        let refuse = |claim: &ResourceClaim, wanted: &ClaimRef, driver: &str, pool: &str| {
            allocated(claim, wanted, driver, pool).unwrap_err().to_string()
        };
        let other = ClaimRef { uid: "u0".into(), ..wanted() };
        assert!(refuse(&good, &other, "dra.cpu", "node-1").contains("\"u1\", not \"u0\""));
        assert!(refuse(&good, &wanted(), "dra.mem", "node-1").contains("no device from driver dra.mem"));
        assert!(refuse(&good, &wanted(), "dra.cpu", "node-2").contains("another node"));
        let mut unreserved = good.clone();
        unreserved.status.as_mut().unwrap().reserved_for = None;
        assert!(refuse(&unreserved, &wanted(), "dra.cpu", "node-1").contains("not reserved for any pod"));
        let mut unallocated = good;
        unallocated.status.as_mut().unwrap().allocation = None;
        assert!(refuse(&unallocated, &wanted(), "dra.cpu", "node-1").contains("is not allocated"));
    }
}
