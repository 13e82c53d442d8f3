//! Attaches devices to pod sandboxes and detaches them, in the order in which the runtime asks. IO: the driver's.
//!
//! Sandboxes are handled one at a time, concurrently with the other hooks, so a slow driver does not delay containers
//! of other pods. The runtime drops a plugin that does not answer within 2 s, so work that takes longer is aborted and
//! the sandbox fails. The kubelet then creates another one.

use std::{
    collections::{BTreeMap, VecDeque},
    future::pending,
    sync::Arc,
    time::Duration,
};

use futures::future::BoxFuture;
use prost::{Message, bytes::Bytes};
use tokio::time::{Instant, sleep_until};

use super::{
    messages::{ContainerEvent, Empty, Event, PodSandbox, StateChangeEvent},
    ttrpc::{Code, Failure},
};
use crate::{
    drivers::{
        Grant,
        attachment::{AttachError, Attachment, Sandbox},
    },
    plugin::grants::Grants,
};

/// The time limit for answering a call. The runtime waits for 2 s.
const ANSWER_WITHIN: Duration = Duration::from_millis(1500);

/// How long recovery may take. Sandboxes created meanwhile wait, each for as long as the runtime does.
const RECOVER_WITHIN: Duration = Duration::from_secs(10);

/// The pause before a failed recovery is retried.
const RETRY: Duration = Duration::from_secs(10);

/// What the runtime reports about a sandbox.
pub(super) const EVENTS: [Event; 3] = [Event::RunPodSandbox, Event::StopPodSandbox, Event::RemovePodSandbox];

/// The answer to the runtime's call on a stream.
type Answer = (u32, Result<Vec<u8>, Failure>);

/// The sandboxes of one connection, and the work on them.
pub(super) struct Sandboxes {
    attachment: Arc<dyn Attachment>,
    grants: Arc<dyn Grants>,
    /// By their IDs.
    existing: BTreeMap<String, Sandbox>,
    waiting: VecDeque<Job>,
    running: Option<(Job, BoxFuture<'static, Result<(), AttachError>>)>,
    /// Answers to calls that needed no work.
    answers: VecDeque<Answer>,
    /// When to retry recovery.
    recover_at: Option<Instant>,
}

/// A task, and the call that its result answers.
struct Job {
    task: Task,
    stream: Option<u32>,
    deadline: Instant,
}

#[derive(Clone)]
enum Task {
    Attach(Sandbox),
    Detach(Sandbox),
    Recover,
}

impl Sandboxes {
    pub fn new(attachment: Arc<dyn Attachment>, grants: Arc<dyn Grants>) -> Self {
        Self {
            attachment,
            grants,
            existing: BTreeMap::new(),
            waiting: VecDeque::new(),
            running: None,
            answers: VecDeque::new(),
            recover_at: None,
        }
    }

    /// Starts from the sandboxes that the runtime has, discarding earlier knowledge.
    pub fn synchronize(&mut self, pods: impl IntoIterator<Item = PodSandbox>) {
        self.existing = pods.into_iter().map(|pod| (pod.id.clone(), sandbox(pod))).collect();
        self.recover();
    }

    /// Accepts a call if it is about a sandbox. [`Sandboxes::answer`] returns its answer later.
    pub fn take_call(&mut self, stream: u32, method: &str, payload: &Bytes) -> bool {
        let Some((event, pod)) = sandbox_event(method, payload) else { return false };
        let sandbox = sandbox(pod);
        let task = if event == Event::RunPodSandbox {
            self.existing.insert(sandbox.id.clone(), sandbox.clone());
            if self.grants.of_pod(&sandbox.pod_uid).is_empty() {
                self.answers.push_back((stream, Ok(Empty {}.encode_to_vec())));
                return true;
            }
            Task::Attach(sandbox)
        } else {
            // Handle both Stop and Remove, because the plugin may have missed one of them.
            self.existing.remove(&sandbox.id);
            Task::Detach(sandbox)
        };
        self.waiting.push_back(Job { task, stream: Some(stream), deadline: Instant::now() + ANSWER_WITHIN });
        true
    }

    /// Does the work, and returns the next answer. Nothing is lost if the future is dropped.
    pub async fn answer(&mut self) -> Answer {
        loop {
            if let Some(answer) = self.answers.pop_front() {
                return answer;
            }
            self.start_next();
            let deadline = self.next_deadline();
            let done = async {
                match &mut self.running {
                    Some((_, work)) => work.await,
                    None => pending().await,
                }
            };
            let expired = async {
                match deadline {
                    Some(at) => sleep_until(at).await,
                    None => pending().await,
                }
            };

            let answer = tokio::select! {
                biased;
                result = done => match self.running.take() {
                    Some((job, _)) => self.ended(job, result.map_err(|error| error.to_string())),
                    None => None,
                },
                () = expired => self.expire(Instant::now()),
            };
            if let Some(answer) = answer {
                return answer;
            }
        }
    }

    fn recover(&mut self) {
        self.waiting.push_back(Job { task: Task::Recover, stream: None, deadline: Instant::now() + RECOVER_WITHIN });
    }

    fn start_next(&mut self) {
        if self.running.is_some() {
            return;
        }
        if let Some(job) = self.waiting.pop_front() {
            let work = self.work(job.task.clone());
            self.running = Some((job, work));
        }
    }

    /// Runs a task, with what the claims hold when it begins.
    fn work(&self, task: Task) -> BoxFuture<'static, Result<(), AttachError>> {
        let attachment = Arc::clone(&self.attachment);
        let grants = |sandbox: &Sandbox| -> Vec<Grant> { self.grants.of_pod(&sandbox.pod_uid) };
        match task {
            Task::Attach(sandbox) => {
                let grants = grants(&sandbox);
                Box::pin(async move { attachment.attach(&sandbox, &grants).await })
            }
            Task::Detach(sandbox) => {
                let grants = grants(&sandbox);
                Box::pin(async move { attachment.detach(&sandbox, &grants).await })
            }
            Task::Recover => {
                let existing: Vec<_> =
                    self.existing.values().map(|sandbox| (sandbox.clone(), grants(sandbox))).collect();
                Box::pin(async move { attachment.recover(&existing).await })
            }
        }
    }

    /// When [`Sandboxes::expire`] has something to do.
    fn next_deadline(&self) -> Option<Instant> {
        let running = self.running.iter().map(|(job, _)| job.deadline);
        let waiting = self.waiting.iter().map(|job| job.deadline);
        running.chain(waiting).chain(self.recover_at).min()
    }

    /// Aborts work that takes too long, and retries recovery if it is time.
    fn expire(&mut self, now: Instant) -> Option<Answer> {
        if self.recover_at.take_if(|at| *at <= now).is_some() {
            self.recover();
        }

        let is_late = |job: &Job| job.deadline <= now;
        let late = match self.running.take_if(|(job, _)| is_late(job)) {
            Some((job, _)) => Some(job),
            None => self.waiting.iter().position(is_late).and_then(|index| self.waiting.remove(index)),
        };
        self.ended(late?, Err("timed out".to_owned()))
    }

    /// Reports the result of a job, and cleans up after a failed one.
    fn ended(&mut self, job: Job, result: Result<(), String>) -> Option<Answer> {
        let result = result.map_err(|problem| {
            let message = match &job.task {
                Task::Attach(sandbox) => format!(
                    "cannot attach the devices of pod {}/{}: {problem}; the kubelet retries",
                    sandbox.pod_namespace, sandbox.pod_name
                ),
                Task::Detach(sandbox) => format!(
                    "cannot detach the devices of pod {}/{}: {problem}",
                    sandbox.pod_namespace, sandbox.pod_name
                ),
                Task::Recover => format!("cannot recover the devices attached to pod sandboxes: {problem}; retrying"),
            };
            tracing::warn!("{message}");
            Failure::new(Code::FailedPrecondition, message)
        });

        if result.is_err() {
            match job.task {
                // The runtime sends no further events for a sandbox that failed.
                Task::Attach(sandbox) => {
                    self.existing.remove(&sandbox.id);
                    let deadline = Instant::now() + ANSWER_WITHIN;
                    self.waiting.push_front(Job { task: Task::Detach(sandbox), stream: None, deadline });
                }
                Task::Recover => self.recover_at = Some(Instant::now() + RETRY),
                Task::Detach(_) => {}
            }
        }
        Some((job.stream?, result.map(|()| Empty {}.encode_to_vec())))
    }
}

/// The sandbox event that a call reports, with the sandbox's pod. Runtimes before NRI 0.12 have one method for all
/// events.
fn sandbox_event(method: &str, payload: &Bytes) -> Option<(Event, PodSandbox)> {
    let (event, pod) = match method {
        "RunPodSandbox" => (Event::RunPodSandbox, ContainerEvent::decode(payload.clone()).ok()?.pod),
        "StopPodSandbox" => (Event::StopPodSandbox, ContainerEvent::decode(payload.clone()).ok()?.pod),
        "RemovePodSandbox" => (Event::RemovePodSandbox, ContainerEvent::decode(payload.clone()).ok()?.pod),
        "StateChange" => {
            let change = StateChangeEvent::decode(payload.clone()).ok()?;
            (change.event(), change.pod)
        }
        _ => return None,
    };
    Some((event, pod.unwrap_or_default())).filter(|(event, _)| EVENTS.contains(event))
}

fn sandbox(pod: PodSandbox) -> Sandbox {
    let namespaces = pod.linux.map(|linux| linux.namespaces).unwrap_or_default();
    let network = namespaces.into_iter().find(|namespace| namespace.r#type == "network");
    Sandbox {
        id: pod.id,
        pod_uid: pod.uid,
        pod_namespace: pod.namespace,
        pod_name: pod.name,
        network_namespace: network.map(|network| network.path.into()).filter(|path: &std::path::PathBuf| {
            // The host's network namespace has no path.
            !path.as_os_str().is_empty()
        }),
    }
}

#[cfg(test)]
mod tests;
