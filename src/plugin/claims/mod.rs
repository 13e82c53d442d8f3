//! Prepare and Unprepare of one claim: the order in which memory, checkpoint, CDI and NRI learn of it. IO: the
//! checkpoint, CDI files.
//!
//! Memory holds what is wanted, and refuses what is taken. An answer is given only once the checkpoint has it, so a
//! crash at any point loses nothing that was answered: what the kubelet got no answer to, it asks again.

pub mod allocation;
pub mod cdi;
pub mod checkpoint;
pub mod error;
pub mod prepared;
pub mod reader;

use std::{
    collections::{BTreeMap, BTreeSet},
    iter,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use k8s_openapi::api::resource::v1::Device;
use tokio::{
    sync::{Notify, RwLock, watch},
    task::yield_now,
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;

use crate::{
    drivers::{AllocatedDevice, Driver, Grant, GrantError, pinning::Pinning},
    plugin::grants::{ContainerIdentity, Grants, NriStatus, Refusal},
};

use self::{
    allocation::{Allocated, ClaimRef, allocated},
    cdi::{Cdi, CdiError, token_of},
    checkpoint::{Checkpoint, CheckpointError, encode},
    error::ClaimError,
    prepared::{Arrival, HeldError, PreparedClaim, PreparedClaims, PreparedDevice, PreparedRequest, by_request},
    reader::ClaimReader,
};

/// How long Prepare waits for a connection to NRI that is being made.
const NRI_CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

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
    /// Wakes who waits for another claim.
    unprepared: Notify,
    /// The last state that the checkpoint has. Who holds the lock is writing.
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
    /// Once it is cancelled, Prepare waits for no other claim any more.
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

    /// Takes the state over from disk. When it cannot be trusted, calls are answered with the reason, and nothing on
    /// disk is touched; call again to retry.
    pub async fn activate(&self) -> Result<(), CheckpointError> {
        let mut phase = self.phase.write().await;
        match self.read_checkpoint() {
            Ok(claims) => {
                let mut written = self.written.lock().await;
                *written = self.change(|prepared| prepared.reset(claims)).1;
                *phase = Phase::Active;
                Ok(())
            }
            Err(error) => {
                *phase = Phase::Broken(error.to_string().into());
                Err(error)
            }
        }
    }

    /// Gives the state up, once every call in flight has ended or waits for another claim; those that wait end then.
    pub async fn deactivate(&self) {
        *self.phase.write().await = Phase::Passive;
        self.unprepared.notify_waiters();
    }

    /// Makes the CDI files those of the prepared claims, as far as this instance may; `thorough` looks into them too.
    pub async fn restore_cdi(&self, thorough: bool) -> Result<(), CdiError> {
        let phase = self.phase.read().await;
        if !matches!(*phase, Phase::Active) {
            return Ok(());
        }
        let prepared = self.lock();
        if thorough {
            prepared.iter().try_for_each(|claim| self.cdi.write(claim))?;
        }
        self.cdi.restore(prepared.iter())
    }

    /// How many claims are prepared.
    pub fn count(&self) -> usize {
        self.lock().len()
    }

    /// Notes that a Prepare call has come in; give it to [`Claims::prepare`].
    pub fn arrives(&self) -> Arrival {
        self.lock().arrives()
    }

    /// Prepares a claim, or finds it prepared. Afterwards checkpoint and CDI file are there.
    ///
    /// Of a pod that was deleted by force the API server forgets everything at once, and what it held is allocated anew
    /// while its containers still run. What is held like that is waited for: to an error the kubelet comes back only a
    /// minute later.
    pub async fn prepare(
        &self,
        claim: &ClaimRef,
        arrival: Arrival,
        reader: &ClaimReader,
    ) -> Result<PreparedClaim, ClaimError> {
        let done = self.prepare_arrived(claim, arrival, reader).await;
        self.lock().ended(arrival);
        done
    }

    async fn prepare_arrived(
        &self,
        claim: &ClaimRef,
        arrival: Arrival,
        reader: &ClaimReader,
    ) -> Result<PreparedClaim, ClaimError> {
        let until = Instant::now() + self.held_timeout;
        loop {
            // From before the attempt on, so that none is missed.
            let unprepared = self.unprepared.notified();
            let held = match self.try_prepare(claim, arrival, reader).await {
                Err(ClaimError::Held(held)) if held.passes() => held,
                done => return done,
            };
            tracing::info!(claim = format!("{}/{}", claim.namespace, claim.name), uid = claim.uid, "waiting: {held}");
            tokio::select! {
                () = unprepared => {}
                () = sleep_until(until) => return Err(held.into()),
                () = self.stop.cancelled() => return Err(held.into()),
            }
        }
    }

    async fn try_prepare(
        &self,
        claim: &ClaimRef,
        arrival: Arrival,
        reader: &ClaimReader,
    ) -> Result<PreparedClaim, ClaimError> {
        let _active = self.active().await?;
        let object = reader.read(claim).await?;
        let allocated = allocated(&object, claim, &self.driver_name, &self.pool)?;
        let (taken, state) = self.change(|prepared| {
            if prepared.find(claim, arrival, &allocated.devices)?.is_none() {
                prepared.insert(self.build(claim, &allocated)?, self.driver.as_ref())?;
            }
            prepared.reserve(&claim.uid, &allocated.pods);
            Ok::<_, ClaimError>(())
        });
        taken?;
        self.commit(state).await?;
        let done = {
            // Under the lock: an Unprepare that came meanwhile must not find its CDI file written after it.
            let prepared = self.lock();
            let done = prepared.find(claim, arrival, &allocated.devices)?;
            let done = done.ok_or_else(|| HeldError::Unprepared { claim: claim.name.clone() })?;
            self.cdi.write(done)?;
            done.clone()
        };
        self.enforced().await?;
        Ok(done)
    }

    /// Unprepares a claim; that it is not prepared, or is gone from the API, is no error.
    pub async fn unprepare(&self, claim: &ClaimRef) -> Result<(), ClaimError> {
        let _active = self.active().await?;
        let (_, state) = self.change(|prepared| prepared.remove(&claim.uid));
        self.unprepared.notify_waiters();
        self.commit(state).await?;
        let prepared = self.lock();
        if prepared.get(&claim.uid).is_none() {
            self.cdi.remove(&claim.uid)?;
        }
        Ok(())
    }

    /// Which of these devices must not be offered. All of them while the checkpoint cannot be read: no claim could be prepared.
    /// Otherwise those that overlap with a device that a claim holds and that does not exist any more, as after a change
    /// of granularity: the scheduler knows only the old device to be taken.
    pub fn withheld(&self, devices: &[Device]) -> BTreeSet<String> {
        let known: BTreeSet<&str> = devices.iter().map(|device| device.name.as_str()).collect();
        if self.phase.try_read().is_ok_and(|phase| matches!(*phase, Phase::Broken(_))) {
            return known.into_iter().map(str::to_owned).collect();
        }
        let gone = |device: &PreparedDevice| !known.contains(device.device.as_str());
        let prepared = self.lock();
        let requests = || prepared.iter().flat_map(|claim| &claim.requests).filter(|request| !request.admin());
        let held: Vec<&Grant> =
            requests().filter(|request| request.devices.iter().any(gone)).map(|request| &request.grant).collect();
        if held.is_empty() {
            return BTreeSet::new();
        }
        let named: BTreeSet<&str> =
            requests().flat_map(|request| &request.devices).map(|device| device.device.as_str()).collect();
        let overlapping = self.driver.overlapping(&held).into_iter();
        overlapping.filter(|name| !named.contains(name.as_str())).collect()
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

    fn read_checkpoint(&self) -> Result<Vec<PreparedClaim>, CheckpointError> {
        if let Some(claims) = self.checkpoint.read()? {
            return Ok(claims);
        }
        // A lost checkpoint must not pass for an empty node: after a reboot the CDI files are gone too, and a first
        // start has none. That they cannot be listed shows when they are written.
        let path = || self.checkpoint.path().to_owned();
        if let Some(cdi_file) = self.cdi.own_files().unwrap_or_default().into_iter().next() {
            return Err(CheckpointError::Missing { path: path(), cdi_file });
        }
        // From now on there is one: of a first claim whose checkpoint could not be written the CDI file may be there.
        let none = encode(iter::empty());
        self.checkpoint.write(&none.map_err(|error| CheckpointError::Write { path: path(), source: error.into() })?)?;
        Ok(vec![])
    }

    fn build(&self, claim: &ClaimRef, allocated: &Allocated) -> Result<PreparedClaim, ClaimError> {
        let devices = &allocated.devices;
        let mut grouped: BTreeMap<&str, Vec<AllocatedDevice>> = by_request(devices);
        let mut requests = vec![];
        // In the order of the allocation, not of the names.
        for device in devices {
            let Some(devices) = grouped.remove(device.request.as_str()) else { continue };
            requests.push(PreparedRequest {
                name: device.request.clone(),
                token: token()?,
                devices: devices.iter().map(PreparedDevice::of).collect(),
                grant: self.usable(&device.request, self.driver.grant(&devices)?)?,
            });
        }
        Ok(PreparedClaim {
            uid: claim.uid.clone(),
            namespace: claim.namespace.clone(),
            name: claim.name.clone(),
            requests,
            pods: allocated.pods.clone(),
        })
    }

    /// The grant, unless it cannot be used now.
    fn usable(&self, request: &str, grant: Grant) -> Result<Grant, ClaimError> {
        match self.driver.check(&grant) {
            Ok(()) => Ok(grant),
            Err(source) => Err(ClaimError::Unusable { request: request.to_owned(), source }),
        }
    }

    /// Returns once the checkpoint has state `state`. One write takes along all changes that came before it: calls that
    /// are as far along get to make theirs first.
    ///
    /// Blocks the thread, which is the kubelet's own (see [`kubelet`](crate::plugin::kubelet)): that costs less time than
    /// another thread's waking, twice.
    async fn commit(&self, state: u64) -> Result<(), ClaimError> {
        yield_now().await;
        let mut written = self.written.lock().await;
        if *written >= state {
            return Ok(());
        }
        let (state, encoded) = {
            let prepared = self.lock();
            (prepared.revision(), encode(prepared.iter()))
        };
        self.checkpoint.write(&encoded.map_err(|error| ClaimError::Task(error.to_string()))?)?;
        *written = state;
        Ok(())
    }

    /// Waits for a connection to NRI, and not until other containers have left what the claim holds: NRI asks the runtime
    /// for that at once, and before the claim's container is created again for what is not done by then.
    async fn enforced(&self) -> Result<(), ClaimError> {
        let Some(mut nri) = self.nri.clone() else { return Ok(()) };
        let connected = tokio::time::timeout(NRI_CONNECT_TIMEOUT, nri.wait_for(|nri| nri.connected));
        if matches!(connected.await, Ok(Ok(_))) {
            return Ok(());
        }
        let problem = nri.borrow().problem.clone().unwrap_or_else(|| "no answer yet".to_owned());
        Err(ClaimError::Nri { problem })
    }

    fn lock(&self) -> MutexGuard<'_, PreparedClaims> {
        // A panic aborts the process in a release build; in a test the state is still whole between statements.
        self.prepared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Works on the claims, tells who follows if that changed them, and gives the state's number.
    fn change<T>(&self, change: impl FnOnce(&mut PreparedClaims) -> T) -> (T, u64) {
        let mut prepared = self.lock();
        let done = change(&mut prepared);
        let revision = prepared.revision();
        self.changes.send_if_modified(|state| std::mem::replace(state, revision) != revision);
        (done, revision)
    }
}

impl Grants for Claims {
    fn of_container(&self, container: &ContainerIdentity<'_>) -> Result<Option<Grant>, Refusal> {
        let prepared = self.lock();
        let mut whole: Option<Grant> = None;
        for token in container.env.iter().filter_map(|variable| token_of(&self.driver_name, variable)) {
            let (driver, namespace) = (self.driver_name.clone(), container.pod_namespace.to_owned());
            let (pod, named) = (container.pod_name.to_owned(), container.container_name.to_owned());
            let Some((claim, request)) = prepared.by_token(token) else {
                return Err(Refusal::NotPrepared { driver, namespace, pod, container: named });
            };
            if claim.namespace != container.pod_namespace {
                return Err(Refusal::OtherNamespace { driver, namespace, pod, container: named });
            }
            whole.get_or_insert_default().add(&request.grant);
        }
        if whole.is_none() && container.cdi_devices.iter().any(|device| self.cdi.is_own(device)) {
            let (namespace, pod) = (container.pod_namespace.to_owned(), container.pod_name.to_owned());
            let (driver, container) = (self.driver_name.clone(), container.container_name.to_owned());
            return Err(Refusal::NotInjected { driver, namespace, pod, container });
        }
        Ok(whole)
    }

    fn of_pod(&self, pod_uid: &str) -> Vec<Grant> {
        self.lock().of_pod(pod_uid)
    }

    fn pinning(&self) -> Pinning {
        self.driver.pinning()
    }

    fn check(&self, grant: &Grant) -> Result<(), GrantError> {
        self.driver.check(grant)
    }

    fn remainder(&self) -> Option<Grant> {
        self.driver.remainder(&self.lock().held())
    }

    fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }
}

/// 128 random bits in hexadecimal.
fn token() -> Result<String, ClaimError> {
    let high = getrandom::u64().map_err(ClaimError::Random)?;
    let low = getrandom::u64().map_err(ClaimError::Random)?;
    Ok(format!("{high:016x}{low:016x}"))
}

#[cfg(test)]
mod tests;
