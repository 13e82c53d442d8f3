//! The claims of one driver on this node. IO: the checkpoint, CDI files.
//!
//! Memory holds what is wanted, and refuses what is taken. An answer is given only once the checkpoint has it, so a
//! crash at any point loses nothing that was answered: what the kubelet got no answer to, it asks again.
//!
//! `prepare` has the calls of the kubelet, step by step; `lookup` answers NRI; `takeover` is how an instance takes the
//! state over from disk and gives it up; `withheld` says which devices must not be offered.

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
    /// The checkpoint cannot be read; nothing is touched until it can.
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
    /// Wakes every Prepare that waits for another claim.
    unprepared: Notify,
    /// The last state that the checkpoint has. Whoever holds the lock is writing.
    written: tokio::sync::Mutex<u64>,
    nri: Option<watch::Receiver<NriStatus>>,
    held_timeout: Duration,
    stop: CancellationToken,
}

/// What [`Claims`] works on.
pub struct ClaimsConfig {
    /// The driver's name.
    pub driver_name: String,
    /// This node's pool.
    pub pool: String,
    /// The kind of device.
    pub driver: Arc<dyn Driver>,
    /// Where claims are kept.
    pub checkpoint: Checkpoint,
    /// The CDI files.
    pub cdi: Cdi,
    /// The connection to NRI, if it enforces the grants.
    pub nri: Option<watch::Receiver<NriStatus>>,
    /// How long Prepare waits for what another claim still holds.
    pub held_timeout: Duration,
    /// Once it is cancelled, Prepare does not wait for other claims any more.
    pub stop: CancellationToken,
}

impl Claims {
    /// No claims yet, and not active: see [`Claims::activate`].
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
        self.lock().len()
    }

    /// Notes that a Prepare call has come in; give it to [`Claims::prepare`].
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
        // A panic aborts the process in a release build; in a test the state is still whole between statements.
        self.prepared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Works on the claims, announces it if that changed them, and returns the state's number.
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
