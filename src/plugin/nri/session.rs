//! One connection to the runtime: answers its calls, and asks it to change containers. IO: the runtime's socket, the state
//! directory, and which CPUs are online.

use std::{convert::Infallible, future::pending, path::Path, sync::Arc, time::Duration};

use prost::bytes::Bytes;
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};

use super::{
    connection::{Connection, ConnectionError},
    containers::Change,
    hooks::{Hooks, update},
    messages::{RegisterPluginRequest, UpdateContainersRequest},
    reconnect::Settings,
    remembered::RememberedFile,
    sandboxes::Sandboxes,
    ttrpc::{Failure, Incoming},
};
use crate::{
    cpuset::CpuSet,
    drivers::attachment::Attachment,
    host::Host,
    plugin::grants::{Grants, NriStatus},
};

/// The NRI version that the messages are written for.
const NRI_VERSION: &str = "v0.12.3";

/// This plugin's position among the NRI plugins: late, so that it sees what the others change when a container is
/// created.
const PLUGIN_INDEX: &str = "90";

/// The time limit from connecting to the end of Synchronize. The runtime admits plugins one at a time, each with its
/// own timeouts.
const SYNCHRONIZE_TIMEOUT: Duration = Duration::from_mins(1);

/// The time limit for UpdateContainers. The runtime changes one container after the other (about 30 ms each) and
/// handles nothing else of NRI meanwhile.
const UPDATE_TIMEOUT: Duration = Duration::from_mins(1);

/// How many containers are changed in one call. Few, because the runtime creates no container in the meantime.
const BATCH: usize = 16;

/// How long containers wait to get back CPUs that are no longer claimed, because the next claim often takes them again.
const WIDEN_AFTER: Duration = Duration::from_secs(1);

/// The pause before a container that could not be changed is retried.
const RETRY: Duration = Duration::from_secs(10);

/// The timer while the session only waits for events.
const IDLE: Duration = Duration::from_hours(1);

/// Why a session ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum SessionError {
    #[error(transparent)]
    Connection(#[from] ConnectionError),
    #[error("the runtime rejected the plugin: {0}")]
    Refused(String),
    #[error(
        "the runtime did not configure and synchronise the plugin within {SYNCHRONIZE_TIMEOUT:?}: containerd admits no plugin while it is stopping a container, which can take as long as the pod's grace period"
    )]
    NotSynchronized,
    #[error("the runtime did not answer UpdateContainers within {UPDATE_TIMEOUT:?}")]
    NotUpdated,
}

/// One connection, until it ends.
pub(super) async fn serve(
    settings: &Settings,
    grants: &Arc<dyn Grants>,
    attachment: Option<&Arc<dyn Attachment>>,
    status: &watch::Sender<NriStatus>,
    remembered: &mut RememberedFile,
) -> Result<Infallible, SessionError> {
    let mut connection = Connection::open(&settings.socket).await?;
    let registration = RegisterPluginRequest {
        plugin_name: settings.plugin_name.clone(),
        plugin_idx: PLUGIN_INDEX.to_owned(),
        nri_version: NRI_VERSION.to_owned(),
    };
    let registering = connection.call("RegisterPlugin", &registration).await?;
    let mut changes = grants.changes();
    let mut session = Session {
        settings,
        status,
        remembered,
        state: *changes.borrow_and_update(),
        hooks: Hooks::new(
            Arc::clone(grants),
            &settings.plugin_name,
            remembered_before(settings),
            online(&settings.host_root),
        ),
        sandboxes: attachment.map(|attachment| Sandboxes::new(Arc::clone(attachment), Arc::clone(grants))),
        in_flight: None,
        retry_at: None,
        widen_at: None,
        last_failure: String::new(),
        all_claimed: false,
        overlapping: 0,
    };
    session.hooks.follows_sandboxes = session.sandboxes.is_some();

    let deadline = Instant::now() + SYNCHRONIZE_TIMEOUT;
    let mut grants_live = true;
    loop {
        let synchronized = session.hooks.containers.is_some();
        if synchronized {
            session.ask(&mut connection).await?;
            session.report();
        }

        // A single timer, for whichever comes first: a deadline, or the next task.
        let (timer, expired) = match &session.in_flight {
            _ if !synchronized => (deadline, Some(SessionError::NotSynchronized)),
            Some(in_flight) => (in_flight.deadline, Some(SessionError::NotUpdated)),
            None => {
                let next = [session.retry_at, session.widen_at].into_iter().flatten().min();
                (next.unwrap_or_else(|| Instant::now() + IDLE), None)
            }
        };

        tokio::select! {
            incoming = connection.receive() => match incoming? {
                Incoming::Call { stream, service, method, payload } => {
                    if let Some(answer) = session.answer(stream, &service, &method, payload) {
                        connection.answer(stream, answer).await?;
                    }
                }
                Incoming::Answer { stream, result } if stream == registering => {
                    result.map_err(|failure| SessionError::Refused(failure.message))?;
                }
                Incoming::Answer { stream, result } => session.answered(stream, result),
            },
            (stream, answer) = sandbox_answer(&mut session.sandboxes) => connection.answer(stream, answer).await?,
            news = changes.changed(), if grants_live => match news {
                Ok(()) => {
                    session.state = *changes.borrow_and_update();
                    session.refresh();
                }
                Err(_) => grants_live = false,
            },
            () = sleep_until(timer) => match expired {
                Some(error) => return Err(error),
                None => session.retry(),
            },
        }
    }
}

/// The next answer about a pod sandbox. Pending forever for a driver that attaches nothing.
async fn sandbox_answer(sandboxes: &mut Option<Sandboxes>) -> (u32, Result<Vec<u8>, Failure>) {
    match sandboxes {
        Some(sandboxes) => sandboxes.answer().await,
        None => pending().await,
    }
}

/// One connection's state.
struct Session<'a> {
    settings: &'a Settings,
    status: &'a watch::Sender<NriStatus>,
    remembered: &'a mut RememberedFile,
    hooks: Hooks,
    /// Only for a driver that attaches devices to pod sandboxes.
    sandboxes: Option<Sandboxes>,
    /// The number of the claims' state that is being applied to the containers.
    state: u64,
    /// The call that the runtime has not answered yet. There is at most one; later changes are batched into the next.
    in_flight: Option<InFlight>,
    retry_at: Option<Instant>,
    /// When to change the containers that only get more, if there are any.
    widen_at: Option<Instant>,
    last_failure: String,
    /// Whether nothing is left for containers without a claim.
    all_claimed: bool,
    /// How many containers without a claim another component keeps on claimed CPUs.
    overlapping: usize,
}

struct InFlight {
    stream: u32,
    changes: Vec<Change>,
    deadline: Instant,
}

impl Session<'_> {
    /// Answers a call of the runtime; `None` if the answer comes later.
    fn answer(&mut self, stream: u32, service: &str, method: &str, payload: Bytes) -> Option<Result<Vec<u8>, Failure>> {
        if let Some(sandboxes) = &mut self.sandboxes
            && sandboxes.take_call(stream, method, &payload)
        {
            return None;
        }

        if let "Synchronize" | "CreateContainer" = method {
            // The claim may have been prepared after the last change that this session saw.
            self.refresh();
        }
        let answer = self.hooks.answer(service, method, payload);
        tracing::debug!(method, refused = answer.as_ref().err().map(|failure| &failure.message), "NRI call");
        if let Some(containers) = &mut self.hooks.containers
            && containers.take_unsaved()
        {
            self.remembered.save(containers);
        }
        if method == "Synchronize" && self.hooks.containers.is_some() {
            tracing::info!(runtime = self.hooks.runtime, "NRI: synchronised");
            if let Some(sandboxes) = &mut self.sandboxes {
                sandboxes.synchronize(std::mem::take(&mut self.hooks.pods));
            }
        }
        Some(answer)
    }

    /// Applies the current claims.
    fn refresh(&mut self) {
        let moves = self.hooks.refresh(online(&self.settings.host_root));

        let all_claimed = self.hooks.share().is_some_and(|share| share.is_empty());
        if all_claimed && !self.all_claimed {
            tracing::warn!(
                "every CPU is claimed: containers without a claim run on all CPUs, including the claimed ones; keep some \
                 CPUs back with reservedCPUs"
            );
        }
        self.all_claimed = all_claimed;

        if let Some(containers) = self.hooks.containers.as_ref().filter(|_| moves) {
            self.remembered.save(containers);
        }
    }

    /// Asks the runtime for the next changes, unless it has not answered the last.
    async fn ask(&mut self, connection: &mut Connection) -> Result<(), ConnectionError> {
        let (Some(containers), None) = (&mut self.hooks.containers, &self.in_flight) else { return Ok(()) };

        let now = Instant::now();
        self.widen_at = containers.widens_later().then(|| self.widen_at.unwrap_or(now + WIDEN_AFTER));
        let changes = containers.next_changes(BATCH, self.widen_at.is_some_and(|widen_at| widen_at <= now));
        if changes.is_empty() {
            return Ok(());
        }

        let request = UpdateContainersRequest { update: changes.iter().map(|change| update(change, false)).collect() };
        let stream = connection.call("UpdateContainers", &request).await?;
        self.in_flight = Some(InFlight { stream, changes, deadline: Instant::now() + UPDATE_TIMEOUT });
        Ok(())
    }

    /// The runtime answered a call.
    fn answered(&mut self, stream: u32, result: Result<Bytes, Failure>) {
        let (Some(containers), Some(InFlight { changes, .. })) =
            (&mut self.hooks.containers, self.in_flight.take_if(|in_flight| in_flight.stream == stream))
        else {
            return;
        };
        match result {
            Ok(_) => containers.confirm(&changes),
            Err(failure) => {
                if containers.fail(&changes) {
                    let id = changes.first().map_or("", |change| &change.id);
                    tracing::warn!(
                        container = id,
                        "cannot move a container: {}; retrying in {RETRY:?}",
                        failure.message
                    );
                    self.last_failure = format!("container {id}: {}", failure.message);
                    self.retry_at = Some(Instant::now() + RETRY);
                }
            }
        }
    }

    /// Retries what failed, if it is time.
    fn retry(&mut self) {
        let due = self.retry_at.take_if(|retry_at| *retry_at <= Instant::now());
        if let (Some(containers), Some(_)) = (&mut self.hooks.containers, due) {
            containers.retry();
        }
    }

    /// Reports which state of the claims is applied, and what could not be applied.
    fn report(&mut self) {
        let Some(containers) = &self.hooks.containers else { return };
        let last = self.status.borrow().clone();

        // A call in flight may give a container something that it must no longer have.
        let settled = last.applied != self.state && self.in_flight.is_none() && containers.settled();
        if settled {
            self.remembered.save(containers);
            let overlapping = containers.overlapping();
            if overlapping > self.overlapping {
                tracing::warn!(
                    "{overlapping} containers without a claim are on claimed CPUs, where another component or a forgotten \
                     claim put them; leaving them there"
                );
            }
            self.overlapping = overlapping;
        }

        let problem = match (containers.failed(), self.all_claimed, self.overlapping) {
            (0, false, 0) => None,
            (0, true, _) => Some("every CPU is claimed: containers without a claim run on claimed CPUs".to_owned()),
            (0, false, overlapping) => Some(format!(
                "{overlapping} containers without a claim stay on claimed CPUs, where another component put them"
            )),
            (failed, ..) => Some(format!("{failed} containers cannot be moved; last error: {}", self.last_failure)),
        };

        let applied = if settled { self.state } else { last.applied };
        let now = NriStatus { connected: true, applied, problem, ..last };
        self.status.send_if_modified(|status| {
            let changed = *status != now;
            *status = now;
            changed
        });
    }
}

/// What an earlier run remembered about containers.
fn remembered_before(settings: &Settings) -> std::collections::HashMap<String, super::containers::Remembered> {
    RememberedFile::new(settings.state_dir.join("nri.json")).load()
}

/// The CPUs that are online; empty if that cannot be read.
fn online(host_root: &Path) -> CpuSet {
    Host::at(host_root).observe_online().unwrap_or_else(|| {
        tracing::warn!(host_root = %host_root.display(), "cannot read which CPUs are online");
        CpuSet::new()
    })
}

#[cfg(test)]
mod tests;
