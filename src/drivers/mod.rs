//! The interface that every kind of device implements.
//!
//! A driver turns the host's hardware into devices, and an allocation into what a container gets. It reads the machine
//! through `host` and calls no API: `plugin` publishes, prepares and enforces. A new kind of device is a new folder
//! here.

pub mod attachment;
pub mod cpu;
pub mod cpuset_fields;
pub mod grant;
pub mod kind;

use std::{collections::BTreeMap, sync::Arc};

use futures::future::BoxFuture;
use k8s_openapi::{api::resource::v1::Device, apimachinery::pkg::api::resource::Quantity};
use tokio::sync::watch;

pub use self::grant::Grant;
use self::{attachment::Attachment, cpuset_fields::CpusetFields};

/// The devices of a node, in a stable order, and what could not be read.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Inventory {
    /// The devices to publish.
    pub devices: Vec<Device>,
    /// What is missing or contradictory on this host, for the log. Each entry names a file.
    pub warnings: Vec<String>,
}

impl AsRef<[Device]> for Inventory {
    fn as_ref(&self) -> &[Device] {
        &self.devices
    }
}

/// One device that a claim was given: one `status.allocation.devices.results` entry, with its configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct AllocatedDevice {
    /// The base request's name, without `/subrequest`.
    pub request: String,
    /// The device's pool.
    pub pool: String,
    /// The device's name in its pool.
    pub device: String,
    /// Which share of the device, if several claims may hold it.
    pub share_id: Option<String>,
    /// Granted with admin access: other claims may hold the same device.
    pub admin_access: bool,
    /// What of the device's capacity the claim holds, for devices that several claims may share.
    pub consumed_capacity: BTreeMap<String, Quantity>,
    /// Opaque parameters for this driver that apply to this request: first those of the class, then those of the claim.
    /// Later ones override earlier ones.
    pub parameters: Vec<serde_json::Value>,
}

/// Why an allocation cannot be honoured. Only that claim fails.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum GrantError {
    /// The device is not (or no longer) on this node.
    #[error(
        "device {device:?} does not exist on this node: it was allocated from an outdated inventory; delete the pod so that it is rescheduled"
    )]
    UnknownDevice {
        /// The device.
        device: String,
    },
    /// The device cannot be used at the moment.
    #[error("{what}: {remedy}, or delete the pod so that it is rescheduled")]
    Unusable {
        /// What cannot be used, such as `CPUs 2-3 are offline on this node`.
        what: String,
        /// What to do about it.
        remedy: String,
    },
    /// The opaque parameters cannot be read.
    #[error("invalid opaque parameters for request {request:?}: {message}")]
    Parameters {
        /// The request.
        request: String,
        /// What is wrong, and where.
        message: String,
    },
}

/// A conflict: something that two claims want but cannot both have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// What both want, as the kind describes it, such as `CPUs 2-3`.
    pub what: String,
    /// The index of the conflicting grant among those that are held.
    pub with: usize,
}

/// A kind of device, on one node.
pub trait Driver: Send + Sync {
    /// The devices of this node, as they come and go.
    fn inventory(&self) -> watch::Receiver<Arc<Inventory>>;

    /// What a container that uses the devices of one request gets: `devices` all have the same `request`.
    fn grant(&self, devices: &[AllocatedDevice]) -> Result<Grant, GrantError>;

    /// What prevents a claim from getting `wanted` while other claims hold `held`. Grants with admin access are on
    /// neither side, because they take nothing from others. The caller ensures that a device, or a share of it, goes to
    /// one claim only. This method covers resources that devices have in common, and how much several shares may hold
    /// together.
    fn conflict(&self, wanted: &Grant, held: &[&Grant]) -> Option<Conflict>;

    /// Whether a grant can be used right now. Called before a claim is prepared and before its container is created, so
    /// it must answer within milliseconds.
    fn check(&self, grant: &Grant) -> Result<(), GrantError>;

    /// What containers without a claim of this driver are restricted to while claims hold `held` (all grants except
    /// those with admin access). `None` lifts every restriction, because nothing is held. An empty grant means that
    /// nothing is left.
    fn remainder(&self, held: &[&Grant]) -> Option<Grant>;

    /// The names of the devices that have something in common with what is `held`.
    fn overlapping(&self, held: &[&Grant]) -> Vec<String>;

    /// Resolves when the machine no longer matches the one that the driver was built from, with a description of the
    /// change for the log. The driver must then be rebuilt. Pending forever for a kind whose inventory follows the
    /// machine.
    fn changed(&self) -> BoxFuture<'_, String>;

    /// How devices are attached to a pod sandbox. `None` if it is enough to change containers.
    fn attachment(&self) -> Option<Arc<dyn Attachment>> {
        None
    }

    /// Which parts of a container's cpuset this kind sets.
    fn cpuset_fields(&self) -> CpusetFields;
}
