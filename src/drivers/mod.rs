//! What a kind of device must answer.
//!
//! A driver turns what the host has into devices, and an allocation into what a container gets. It reads the machine
//! through `host` and calls no API: `plugin` publishes, prepares and enforces. A new kind of device is a new folder here.

pub mod attachment;
pub mod cpu;
pub mod grant;
pub mod kind;
pub mod pinning;

use std::{collections::BTreeMap, sync::Arc};

use futures::future::BoxFuture;
use k8s_openapi::{api::resource::v1::Device, apimachinery::pkg::api::resource::Quantity};
use tokio::sync::watch;

pub use self::grant::Grant;
use self::{attachment::Attachment, pinning::Pinning};

/// The devices of a node, in an order that stays the same, and what could not be read.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Inventory {
    /// What is published.
    pub devices: Vec<Device>,
    /// What is known to be missing or contradictory on this host, for the log: each names the file.
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
    /// The pool it is from.
    pub pool: String,
    /// The device's name in its pool.
    pub device: String,
    /// Which share of a device that several claims may hold.
    pub share_id: Option<String>,
    /// Granted by admin access: other claims may hold the same device.
    pub admin_access: bool,
    /// What of the device's capacity the claim holds, for devices that several claims may share.
    pub consumed_capacity: BTreeMap<String, Quantity>,
    /// Opaque parameters that apply to this request and are for this driver, the class's first, then the claim's: a
    /// later one overrides an earlier one.
    pub parameters: Vec<serde_json::Value>,
}

/// Why an allocation cannot be honoured; fails that claim alone.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum GrantError {
    /// The device is not (or no longer) on this node.
    #[error(
        "device {device:?} is not on this node: it was allocated from an older inventory; delete the pod so that it is scheduled again"
    )]
    UnknownDevice {
        /// The device.
        device: String,
    },
    /// It cannot be used now.
    #[error("{what}: {remedy}, or delete the pod so that it is scheduled again")]
    Unusable {
        /// What cannot be used, such as `CPUs 2-3 are offline on this node`.
        what: String,
        /// What to do about it.
        remedy: String,
    },
    /// The opaque parameters cannot be read.
    #[error("opaque parameters of request {request:?} cannot be read: {message}")]
    Parameters {
        /// The request.
        request: String,
        /// What is wrong, and where.
        message: String,
    },
}

/// What two claims want and cannot both have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// What both want, in the kind's words, such as `CPUs 2-3`.
    pub what: String,
    /// Which of the grants that are held is in the way: its index.
    pub with: usize,
}

/// A kind of device, on one node.
pub trait Driver: Send + Sync {
    /// The devices of this node, as they come and go.
    fn inventory(&self) -> watch::Receiver<Arc<Inventory>>;

    /// What a container that uses the devices of one request gets: `devices` all have the same `request`.
    fn grant(&self, devices: &[AllocatedDevice]) -> Result<Grant, GrantError>;

    /// What keeps a claim from having `wanted` while other claims have what is `held`. Neither side has grants of admin
    /// access: they take nothing from others. That one device is given to one claim, or each share of it to one, is
    /// not asked here: this is for what devices have in common, and for how much several shares may hold together.
    fn conflict(&self, wanted: &Grant, held: &[&Grant]) -> Option<Conflict>;

    /// Whether a grant can be used right now. Called before a claim is prepared and before its container is created, so
    /// it must answer within milliseconds.
    fn check(&self, grant: &Grant) -> Result<(), GrantError>;

    /// What containers with no claim of this driver are kept to while `held` is given away: every grant but those of
    /// admin access. `None` lifts every restriction (nothing is held); an empty grant says that nothing is left.
    fn remainder(&self, held: &[&Grant]) -> Option<Grant>;

    /// The names of the devices that have something in common with what is `held`.
    fn overlapping(&self, held: &[&Grant]) -> Vec<String>;

    /// Resolves once the machine is not the one that the driver was made from, with what changed, for the log: the
    /// driver has to be made again. Pending for a kind whose inventory follows the machine.
    fn changed(&self) -> BoxFuture<'_, String>;

    /// How devices are attached to a pod sandbox; `None` if what containers get is all there is to do.
    fn attachment(&self) -> Option<Arc<dyn Attachment>> {
        None
    }

    /// What of a container's cpuset this kind sets.
    fn pinning(&self) -> Pinning;
}
