//! The claims of one driver on this node. IO: the checkpoint, CDI files.
//!
//! Memory holds the wanted state and rejects what is already taken. A call is answered only after the checkpoint is
//! written, so a crash loses nothing that was answered. The kubelet repeats calls that got no answer.
//!
//! `prepare` handles the kubelet's calls step by step, `lookup` answers NRI, `takeover` reads the state from disk and
//! gives it up, and `withheld` decides which devices must not be offered.

pub mod allocation;
pub mod cdi;
pub mod checkpoint;
pub mod error;
mod lookup;
mod prepare;
pub mod prepared;
pub mod reader;
mod takeover;
mod wait;
mod withheld;

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::sync::{Notify, RwLock, watch};
use tokio_util::sync::CancellationToken;

use self::{
    cdi::Cdi,
    checkpoint::Checkpoint,
    error::ClaimError,
    prepared::{Arrival, PreparedClaim, PreparedClaims, PreparedRequest},
};
use crate::{drivers::Driver, plugin::grants::NriStatus};

/// Whether claims can be prepared.
#[derive(Clone, Debug)]
pub enum Phase {
    /// Another instance owns the state.
    Passive,
    /// The checkpoint cannot be read. Nothing is changed until it can.
    Broken(Arc<str>),
    /// This instance owns the state.
    Active,
}

/// The claims of one driver on this node.
pub struct Claims {
    driver_name: String,
    pool: String,
    driver: Arc<dyn Driver>,
    checkpoint: Checkpoint,
    cdi: Cdi,
    phase: RwLock<Phase>,
    prepared: Mutex<PreparedClaims>,
    changes: watch::Sender<u64>,
    /// Wakes every Prepare that is waiting for another claim.
    unprepared: Notify,
    /// The last state that was written to the checkpoint. Held locked while writing.
    written: tokio::sync::Mutex<u64>,
    nri: Option<watch::Receiver<NriStatus>>,
    held_timeout: Duration,
    stop: CancellationToken,
}

/// What [`Claims`] needs.
pub struct ClaimsConfig {
    /// The driver's name.
    pub driver_name: String,
    /// This node's pool.
    pub pool: String,
    /// The kind of device.
    pub driver: Arc<dyn Driver>,
    /// The file that stores the claims.
    pub checkpoint: Checkpoint,
    /// The CDI files.
    pub cdi: Cdi,
    /// The connection to NRI, if it enforces the grants.
    pub nri: Option<watch::Receiver<NriStatus>>,
    /// How long Prepare waits for devices that another claim still holds.
    pub held_timeout: Duration,
    /// Once cancelled, Prepare no longer waits for other claims.
    pub stop: CancellationToken,
}

impl Claims {
    /// Starts without claims and inactive: see [`Claims::activate`].
    pub fn new(config: ClaimsConfig) -> Self {
        Self {
            driver_name: config.driver_name,
            pool: config.pool,
            driver: config.driver,
            checkpoint: config.checkpoint,
            cdi: config.cdi,
            phase: RwLock::new(Phase::Passive),
            prepared: Mutex::default(),
            changes: watch::Sender::new(0),
            unprepared: Notify::new(),
            written: tokio::sync::Mutex::new(0),
            nri: config.nri,
            held_timeout: config.held_timeout,
            stop: config.stop,
        }
    }

    /// How many claims are prepared.
    pub fn count(&self) -> usize {
        self.lock().iter().count()
    }

    /// Records that a Prepare call has arrived. Pass the result to [`Claims::prepare`].
    pub fn arrives(&self) -> Arrival {
        self.lock().arrives()
    }

    /// The CDI device of a prepared request.
    pub fn cdi_device(&self, claim: &PreparedClaim, request: &PreparedRequest) -> String {
        self.cdi.device_id(&claim.uid, &request.name)
    }

    async fn active(&self) -> Result<tokio::sync::RwLockReadGuard<'_, Phase>, ClaimError> {
        let phase = self.phase.read().await;
        match &*phase {
            Phase::Active => Ok(phase),
            Phase::Passive => Err(ClaimError::Passive),
            Phase::Broken(reason) => Err(ClaimError::Broken(Arc::clone(reason))),
        }
    }

    fn lock(&self) -> MutexGuard<'_, PreparedClaims> {
        // A panic aborts the process in a release build. In tests the state is still consistent.
        self.prepared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Applies `change`, announces it if the claims changed, and returns the number of the resulting state.
    fn change<T>(&self, change: impl FnOnce(&mut PreparedClaims) -> T) -> (T, u64) {
        let mut prepared = self.lock();
        let done = change(&mut prepared);
        let revision = prepared.revision();
        self.changes.send_if_modified(|state| std::mem::replace(state, revision) != revision);
        (done, revision)
    }
}

#[cfg(test)]
mod tests;
