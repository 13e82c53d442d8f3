//! What each class offers, grouped by type of machine. Pure.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, HashSet},
};

use k8s_openapi::api::resource::v1::{Device, DeviceAttribute, DeviceClass, ResourceClaim, ResourceSlice};
use serde::Serialize;

use crate::{
    policy::preview::Matcher,
    slices::{
        device::{self, Hold, is_tainted},
        pool::{Pool, PoolId, PoolState, pools},
    },
};

/// What the cluster offers.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Menu {
    /// By name.
    pub(super) classes: Vec<Class>,
    /// Pools from which nothing can be allocated.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) broken_pools: Vec<BrokenPool>,
}

/// What a class offers.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Class {
    pub(super) name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) extended_resource_name: Option<String>,
    /// The largest machines first.
    pub(super) machines: Vec<Machines>,
    /// Why, for some devices, it is unknown whether they are in the class.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) unknown: Option<String>,
}

/// Machines of one type, with their devices in the class.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Machines {
    pub(super) driver: String,
    #[serde(flatten)]
    pub(super) machine_type: MachineType,
    pub(super) devices: Devices,
    /// Names of the nodes; empty for devices that belong to no single node.
    pub(super) nodes: BTreeSet<String>,
}

/// Device counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Devices {
    pub(super) total: usize,
    /// Neither allocated nor tainted.
    pub(super) free: usize,
    pub(super) allocated: usize,
    /// With a taint that keeps claims away.
    pub(super) tainted: usize,
}

/// The properties by which users choose a machine, if its devices publish them.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct MachineType {
    // Machines are sorted by these, in this order.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) cores: Option<i64>,
    #[serde(rename = "memoryGB", skip_serializing_if = "Option::is_none")]
    pub(super) memory_gb: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) generation: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) family: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) vendor: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) model: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) architecture: Option<String>,
}

/// A pool from which nothing can be allocated.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct BrokenPool {
    pub(super) driver: String,
    pub(super) pool: String,
    pub(super) reason: String,
}

/// The menu of a cluster.
pub(super) fn menu(classes: &[DeviceClass], slices: &[ResourceSlice], claims: &[ResourceClaim]) -> Menu {
    let (complete, broken): (Vec<Pool<'_>>, Vec<Pool<'_>>) = pools(slices).into_iter().partition(Pool::is_complete);
    let taken = taken(claims);
    let mut classes: Vec<Class> = classes.iter().map(|one| class(one, &complete, &taken)).collect();
    classes.sort_by(|a, b| a.name.cmp(&b.name));
    Menu { classes, broken_pools: broken.iter().map(broken_pool).collect() }
}

fn class(class: &DeviceClass, pools: &[Pool<'_>], taken: &Taken<'_>) -> Class {
    let spec = class.spec.clone().unwrap_or_default();
    let matcher = Matcher::new(&spec);
    let mut groups: BTreeMap<(Reverse<MachineType>, &str), Machines> = BTreeMap::new();
    let mut unknown = None;
    for pool in pools {
        let mut offered = Vec::new();
        for device in pool.devices() {
            match matcher.matches(pool.id.driver, device) {
                Ok(true) => offered.push(device),
                Ok(false) => {}
                Err(error) => unknown = unknown.or(Some(error.to_string())),
            }
        }
        let Some(first) = offered.first() else { continue };
        let machine_type = MachineType::of(pool.id.driver, first);
        let machines = groups.entry((Reverse(machine_type.clone()), pool.id.driver)).or_insert_with(|| Machines {
            driver: pool.id.driver.to_owned(),
            machine_type,
            ..Machines::default()
        });
        machines.nodes.extend(pool.node().map(str::to_owned));
        for device in offered {
            machines.devices.count(device, taken.contains(&(pool.id, device.name.as_str())));
        }
    }
    Class {
        name: class.metadata.name.clone().unwrap_or_default(),
        extended_resource_name: spec.extended_resource_name,
        machines: groups.into_values().collect(),
        unknown,
    }
}

impl Devices {
    fn count(&mut self, device: &Device, taken: bool) {
        let tainted = is_tainted(device);
        self.total += 1;
        self.allocated += usize::from(taken);
        self.tainted += usize::from(tainted);
        self.free += usize::from(!taken && !tainted);
    }
}

impl MachineType {
    fn of(driver: &str, device: &Device) -> Self {
        let text = |name| attribute(driver, device, name).and_then(device::text);
        let int = |name| attribute(driver, device, name).and_then(|attribute| attribute.int);
        Self {
            cores: int("cores"),
            memory_gb: int("memoryGB"),
            generation: int("generation"),
            family: text("family"),
            vendor: text("vendor"),
            model: text("model").or_else(|| text("productName")),
            architecture: text("architecture"),
        }
    }
}

/// The attribute in the driver's own domain, or else one with that name in any domain.
fn attribute<'a>(driver: &str, device: &'a Device, name: &str) -> Option<&'a DeviceAttribute> {
    let attributes = device.attributes.as_ref()?;
    let own = attributes.get(name).or_else(|| attributes.get(&format!("{driver}/{name}")));
    own.or_else(|| {
        attributes.iter().find(|(key, _)| key.split_once('/').is_some_and(|(_, id)| id == name)).map(|(_, value)| value)
    })
}

/// The devices that no further claim can get.
type Taken<'a> = HashSet<(PoolId<'a>, &'a str)>;

fn taken(claims: &[ResourceClaim]) -> Taken<'_> {
    let allocations = claims.iter().filter_map(|claim| claim.status.as_ref()?.allocation.as_ref()?.devices.as_ref());
    let results = allocations.flat_map(|devices| devices.results.iter().flatten());
    device::taken(results.map(|result| {
        let pool = PoolId { driver: &result.driver, pool: &result.pool };
        (pool, result.device.as_str(), Hold::of(result))
    }))
}

fn broken_pool(pool: &Pool<'_>) -> BrokenPool {
    let reason = match &pool.state {
        PoolState::Complete => String::new(),
        PoolState::Incomplete { have, want } => {
            format!("{have} of {want} slices of generation {} exist", pool.generation)
        }
        PoolState::Invalid { reason } => reason.clone(),
    };
    BrokenPool { driver: pool.id.driver.to_owned(), pool: pool.id.pool.to_owned(), reason }
}
