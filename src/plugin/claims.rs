//! Prepare and Unprepare of one claim: the order in which memory, checkpoint, CDI and NRI learn of it. IO: the API
//! (reads claims), the checkpoint, CDI files.
//!
//! Memory holds what is wanted, and refuses what is taken. An answer is given only once the checkpoint has it, so a
//! crash at any point loses nothing that was answered: what the kubelet got no answer to, it asks again.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::{Api, Client};
use tokio::sync::{RwLock, Semaphore, watch};

use crate::{
    drivers::{AllocatedDevice, Driver, Grant, GrantError},
    plugin::{
        allocation::{AllocationError, ClaimRef, own_devices},
        cdi::{Cdi, CdiError, token_of},
        checkpoint::{Checkpoint, CheckpointError, encode},
        grants::{ContainerIdentity, Grants, NriStatus, Refusal},
        prepared::{Arrival, HeldError, PreparedClaim, PreparedClaims, PreparedDevice, PreparedRequest, by_request},
    },
};

/// How long one read of a claim may take; the kubelet gives the whole call 45 s.
const READ_TIMEOUT: Duration = Duration::from_secs(10);
/// Reads at a time: each is a connection with its TLS buffers, and the API server answers in a millisecond or two.
const PARALLEL_READS: usize = 4;
/// How long Prepare waits for a connection to NRI that is being made.
const NRI_CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Why a claim was not prepared or unprepared; the kubelet shows it as the pod's event and tries again.
#[derive(Debug, thiserror::Error)]
pub enum ClaimError {
    /// Another instance of the plugin has taken over.
    #[error("this instance of the node plugin is not the active one: another is taking over; the kubelet tries again")]
    Passive,
    /// The checkpoint cannot be trusted.
    #[error("{0}")]
    Broken(Arc<str>),
    /// The claim is gone.
    #[error("claim {namespace}/{name} does not exist: its pod is being deleted")]
    Gone {
        /// Namespace.
        namespace: String,
        /// Name.
        name: String,
    },
    /// The API server did not give the claim.
    #[error("claim {namespace}/{name} could not be read from the API server: {problem}; the kubelet tries again")]
    Read {
        /// Namespace.
        namespace: String,
        /// Name.
        name: String,
        /// Why.
        problem: String,
    },
    /// It is not for this node as it is.
    #[error(transparent)]
    Allocation(#[from] AllocationError),
    /// The driver cannot honour it.
    #[error(transparent)]
    Grant(#[from] GrantError),
    /// It may not be had now.
    #[error(transparent)]
    Held(#[from] HeldError),
    /// The checkpoint could not be written.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The CDI file could not be written.
    #[error(transparent)]
    Cdi(#[from] CdiError),
    /// No random bytes.
    #[error("no random bytes for a token: {0}")]
    Random(getrandom::Error),
    /// Not connected to NRI: the container would not be kept to its devices.
    #[error(
        "not connected to the container runtime's NRI ({problem}): the container would start without its CPUs; see the node plugin's readiness; the kubelet tries again"
    )]
    Nri {
        /// Why there is no connection.
        problem: String,
    },
    /// A defect.
    #[error("a task of the node plugin died: {0}")]
    Task(String),
}

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
    client: Client,
    checkpoint: Checkpoint,
    cdi: Cdi,
    reads: Semaphore,
    phase: RwLock<Phase>,
    prepared: Mutex<PreparedClaims>,
    changes: watch::Sender<u64>,
    /// The last state that the checkpoint has. Who holds the lock is writing.
    written: tokio::sync::Mutex<u64>,
    nri: Option<watch::Receiver<NriStatus>>,
}

/// What [`Claims`] works on.
pub struct ClaimsConfig {
    /// The driver's name.
    pub driver_name: String,
    /// This node's pool.
    pub pool: String,
    /// The kind of device.
    pub driver: Arc<dyn Driver>,
    /// Reads claims.
    pub client: Client,
    /// Where claims are kept.
    pub checkpoint: Checkpoint,
    /// The CDI files.
    pub cdi: Cdi,
    /// The connection to NRI, if it enforces the grants.
    pub nri: Option<watch::Receiver<NriStatus>>,
}

impl Claims {
    /// No claims yet, and not active: see [`Claims::activate`].
    pub fn new(config: ClaimsConfig) -> Self {
        Self {
            driver_name: config.driver_name,
            pool: config.pool,
            driver: config.driver,
            client: config.client,
            checkpoint: config.checkpoint,
            cdi: config.cdi,
            reads: Semaphore::new(PARALLEL_READS),
            phase: RwLock::new(Phase::Passive),
            prepared: Mutex::default(),
            changes: watch::Sender::new(0),
            written: tokio::sync::Mutex::new(0),
            nri: config.nri,
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

    /// Gives the state up, once every call in flight has ended.
    pub async fn deactivate(&self) {
        *self.phase.write().await = Phase::Passive;
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
    pub async fn prepare(&self, claim: &ClaimRef, arrival: Arrival) -> Result<PreparedClaim, ClaimError> {
        let done = self.prepare_arrived(claim, arrival).await;
        self.lock().ended(arrival);
        done
    }

    async fn prepare_arrived(&self, claim: &ClaimRef, arrival: Arrival) -> Result<PreparedClaim, ClaimError> {
        let _active = self.active().await?;
        let object = self.read(claim).await?;
        let devices = own_devices(&object, claim, &self.driver_name, &self.pool)?;
        let (taken, state) = self.change(|prepared| {
            if prepared.find(claim, arrival, &devices)?.is_none() {
                prepared.insert(self.build(claim, &devices)?)?;
            }
            Ok::<_, ClaimError>(())
        });
        taken?;
        self.commit(state).await?;
        let done = {
            // Under the lock: an Unprepare that came meanwhile must not find its CDI file written after it.
            let prepared = self.lock();
            let done = prepared.find(claim, arrival, &devices)?;
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
        self.commit(state).await?;
        let prepared = self.lock();
        if prepared.get(&claim.uid).is_none() {
            self.cdi.remove(&claim.uid)?;
        }
        Ok(())
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
        match self.cdi.own_files().unwrap_or_default().into_iter().next() {
            Some(cdi_file) => Err(CheckpointError::Missing { path: self.checkpoint.path().to_owned(), cdi_file }),
            None => Ok(vec![]),
        }
    }

    async fn read(&self, claim: &ClaimRef) -> Result<ResourceClaim, ClaimError> {
        let (namespace, name) = (claim.namespace.clone(), claim.name.clone());
        // Never closed, so an error cannot come; a permit only bounds connections.
        let _permit = self.reads.acquire().await.ok();
        let api: Api<ResourceClaim> = Api::namespaced(self.client.clone(), &claim.namespace);
        match tokio::time::timeout(READ_TIMEOUT, api.get_opt(&claim.name)).await {
            Ok(Ok(Some(object))) => Ok(object),
            Ok(Ok(None)) => Err(ClaimError::Gone { namespace, name }),
            Ok(Err(error)) => Err(ClaimError::Read { namespace, name, problem: error.to_string() }),
            Err(_) => {
                let problem = format!("no answer in {} s", READ_TIMEOUT.as_secs());
                Err(ClaimError::Read { namespace, name, problem })
            }
        }
    }

    fn build(&self, claim: &ClaimRef, devices: &[AllocatedDevice]) -> Result<PreparedClaim, ClaimError> {
        let mut grouped: BTreeMap<&str, Vec<AllocatedDevice>> = by_request(devices);
        let mut requests = vec![];
        // In the order of the allocation, not of the names.
        for device in devices {
            let Some(devices) = grouped.remove(device.request.as_str()) else { continue };
            requests.push(PreparedRequest {
                name: device.request.clone(),
                token: token()?,
                devices: devices.iter().map(PreparedDevice::of).collect(),
                grant: self.driver.grant(&devices)?,
            });
        }
        Ok(PreparedClaim {
            uid: claim.uid.clone(),
            namespace: claim.namespace.clone(),
            name: claim.name.clone(),
            requests,
        })
    }

    /// Returns once the checkpoint has state `state`. Who waits for a write that others began after their own change
    /// gets it for free: one write takes along all that came before it.
    async fn commit(&self, state: u64) -> Result<(), ClaimError> {
        let mut written = self.written.lock().await;
        if *written >= state {
            return Ok(());
        }
        let (state, encoded) = {
            let prepared = self.lock();
            (prepared.revision(), encode(prepared.iter()))
        };
        let encoded = encoded.map_err(|error| ClaimError::Task(error.to_string()))?;
        let checkpoint = self.checkpoint.clone();
        tokio::task::spawn_blocking(move || checkpoint.write(&encoded))
            .await
            .map_err(|error| ClaimError::Task(error.to_string()))??;
        *written = state;
        Ok(())
    }

    /// Waits for a connection to NRI. That others leave the claim's CPUs is not waited for: NRI asks the runtime for it
    /// at once, and for what is not done by then again before the claim's container is created.
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
            let whole = whole.get_or_insert_default();
            whole.cpus = whole.cpus.union(&request.grant.cpus);
            whole.memory_nodes = whole.memory_nodes.union(&request.grant.memory_nodes);
            whole.env.extend(request.grant.env.clone());
        }
        Ok(whole)
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
