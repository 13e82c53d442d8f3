//! A scripted container runtime for tests: the other end of the socket. IO: a unix socket.

use std::{collections::HashMap, path::PathBuf, time::Duration};

use prost::{
    Message,
    bytes::{Bytes, BytesMut},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{UnixListener, UnixStream},
    time::timeout,
};

use super::{
    messages::{
        ConfigureRequest, ConfigureResponse, Container, ContainerEvent, ContainerState, CreateContainerRequest,
        CreateContainerResponse, Empty, LinuxContainer, LinuxCpu, LinuxResources, PLUGIN_SERVICE, PodSandbox,
        RUNTIME_SERVICE, RegisterPluginRequest, SynchronizeRequest, SynchronizeResponse, UpdateContainerRequest,
        UpdateContainerResponse, UpdateContainersRequest,
    },
    mux::{self, Lane},
    ttrpc::{self, Failure, Incoming},
};

/// How long the plugin may take for anything.
const PATIENCE: Duration = Duration::from_secs(10);

/// The runtime's socket.
pub struct FakeRuntime {
    listener: UnixListener,
}

/// A plugin that connected.
pub struct FakePlugin {
    socket: UnixStream,
    read: BytesMut,
    lanes: [BytesMut; 2],
    stream: u32,
    /// Calls of the plugin that no test has read yet.
    calls: Vec<(u32, String, Bytes)>,
    /// Answers of the plugin that no test has waited for yet.
    answers: HashMap<u32, Result<Bytes, Failure>>,
    /// The events that the plugin subscribes to, one bit each.
    pub events: i32,
}

/// `pod/name` in a namespace, as pods and containers are named here.
pub fn pod(name: &str, namespace: &str) -> PodSandbox {
    PodSandbox {
        id: name.into(),
        name: name.into(),
        uid: format!("uid-{name}"),
        namespace: namespace.into(),
        linux: None,
    }
}

/// A container with one variable in its environment.
pub fn container(id: &str, pod: &str, env: &str, cpus: &str) -> Container {
    Container {
        id: id.into(),
        pod_sandbox_id: pod.into(),
        name: format!("name-{id}"),
        state: ContainerState::Running.into(),
        env: vec!["PATH=/bin".into(), env.into()],
        linux: Some(LinuxContainer { resources: Some(resources(cpus)) }),
        cdi_devices: vec![],
    }
}

pub fn resources(cpus: &str) -> LinuxResources {
    LinuxResources { cpu: Some(LinuxCpu { cpus: cpus.into(), mems: String::new() }), ..LinuxResources::default() }
}

/// `id cpus` of each update.
pub fn updates(updates: &[super::messages::ContainerUpdate]) -> Vec<String> {
    let cpus = |update: &super::messages::ContainerUpdate| {
        update.linux.as_ref()?.resources.as_ref()?.cpu.as_ref().map(|cpu| cpu.cpus.clone())
    };
    updates.iter().map(|update| format!("{} {}", update.container_id, cpus(update).unwrap_or_default())).collect()
}

impl FakeRuntime {
    pub fn listen(path: &PathBuf) -> Self {
        let _ = std::fs::remove_file(path);
        Self { listener: UnixListener::bind(path).unwrap() }
    }

    /// Accepts the next connection.
    pub async fn accept(&self) -> UnixStream {
        timeout(PATIENCE, self.listener.accept()).await.expect("the plugin connects").unwrap().0
    }

    /// The next plugin, registered and configured.
    pub async fn plugin(&self) -> FakePlugin {
        let socket = self.accept().await;
        let lanes = [BytesMut::new(), BytesMut::new()];
        let mut plugin = FakePlugin {
            socket,
            read: BytesMut::new(),
            lanes,
            stream: 1,
            calls: vec![],
            answers: HashMap::new(),
            events: 0,
        };
        let (stream, registration): (_, RegisterPluginRequest) = plugin.expect("RegisterPlugin").await;
        assert_eq!((&*registration.plugin_name, registration.plugin_idx.len()), ("dra.cpu", 2));
        plugin.reply(stream, Ok(Empty {}.encode_to_vec())).await;
        let configure = ConfigureRequest { runtime_name: "fake".into(), ..Default::default() };
        let ConfigureResponse { events } = plugin.call("Configure", &configure).await.unwrap();
        plugin.events = events;
        plugin
    }
}

impl FakePlugin {
    pub async fn synchronize(
        &mut self,
        pods: Vec<PodSandbox>,
        containers: Vec<Container>,
        more: bool,
    ) -> SynchronizeResponse {
        let containers = containers.iter().map(|container| container.encode_to_vec().into()).collect();
        self.call("Synchronize", &SynchronizeRequest { pods, containers, more }).await.unwrap()
    }

    /// Creates a container. Returns what it gets, and the changes to others.
    pub(super) async fn create(
        &mut self,
        pod: PodSandbox,
        container: Container,
    ) -> Result<(String, Vec<String>), Failure> {
        let request = CreateContainerRequest { pod: Some(pod), container: Some(container) };
        let CreateContainerResponse { adjust, update } = self.call("CreateContainer", &request).await?;
        let cpu = adjust.and_then(|adjust| adjust.linux?.resources?.cpu);
        Ok((cpu.unwrap_or_default().cpus, updates(&update)))
    }

    /// Creates a container. Returns the CPUs and the memory nodes it gets.
    pub(super) async fn create_placed(
        &mut self,
        pod: PodSandbox,
        container: Container,
    ) -> Result<(String, String), Failure> {
        let request = CreateContainerRequest { pod: Some(pod), container: Some(container) };
        let CreateContainerResponse { adjust, .. } = self.call("CreateContainer", &request).await?;
        let cpu = adjust.and_then(|adjust| adjust.linux?.resources?.cpu).unwrap_or_default();
        Ok((cpu.cpus, cpu.mems))
    }

    /// Creates a container. Returns the CPUs it gets, or why it is refused.
    pub async fn creates(&mut self, pod: PodSandbox, container: Container) -> Result<String, String> {
        self.create(pod, container).await.map(|(cpus, _)| cpus).map_err(|failure| failure.message)
    }

    /// Sends an event of a pod's sandbox. An error says why the plugin rejected it.
    pub async fn sandbox(&mut self, method: &str, pod: PodSandbox) -> Result<(), String> {
        let event = ContainerEvent { pod: Some(pod), container: None };
        self.call::<Empty>(method, &event).await.map(|_| ()).map_err(|failure| failure.message)
    }

    pub async fn update(&mut self, container: Container, cpus: &str) -> Vec<String> {
        let linux_resources = Some(resources(cpus));
        let request = UpdateContainerRequest { pod: None, container: Some(container), linux_resources };
        let UpdateContainerResponse { update } = self.call("UpdateContainer", &request).await.unwrap();
        updates(&update)
    }

    pub async fn event(&mut self, method: &str, container: Container) {
        self.event_in(method, PodSandbox::default(), container).await;
    }

    /// Reports an event of a container in a pod.
    pub async fn event_in(&mut self, method: &str, pod: PodSandbox, container: Container) {
        let event = ContainerEvent { pod: Some(pod), container: Some(container) };
        let Empty {} = self.call(method, &event).await.unwrap();
    }

    /// Calls the plugin.
    pub(super) async fn call<M: Message + Default>(
        &mut self,
        method: &str,
        request: &impl Message,
    ) -> Result<M, Failure> {
        let stream = self.begin(method, request).await;
        self.end(stream).await
    }

    /// Calls the plugin, without waiting for its answer: the stream of the call.
    pub(super) async fn begin(&mut self, method: &str, request: &impl Message) -> u32 {
        let stream = self.stream;
        self.stream += 2;
        let call = ttrpc::call(stream, PLUGIN_SERVICE, method, request.encode_to_vec()).unwrap();
        self.socket.write_all(&mux::frame(Lane::Plugin, &call)).await.unwrap();
        stream
    }

    /// The plugin's answer to the call on a stream.
    pub(super) async fn end<M: Message + Default>(&mut self, stream: u32) -> Result<M, Failure> {
        loop {
            if let Some(answer) = self.answers.remove(&stream) {
                return answer.map(|payload| M::decode(payload).unwrap());
            }
            match self.receive().await {
                Incoming::Answer { stream: answered, result } => {
                    assert!(answered < self.stream, "an answer without a call");
                    assert!(self.answers.insert(answered, result).is_none(), "two answers to one call");
                }
                Incoming::Call { stream, service, method, payload } => {
                    assert_eq!(service, RUNTIME_SERVICE);
                    self.calls.push((stream, method, payload));
                }
            }
        }
    }

    /// The plugin's next call, which must have this method.
    pub async fn expect<M: Message + Default>(&mut self, expected: &str) -> (u32, M) {
        while self.calls.is_empty() {
            let Incoming::Call { stream, method, payload, .. } = self.receive().await else { panic!("an answer") };
            self.calls.push((stream, method, payload));
        }
        let (stream, method, payload) = self.calls.remove(0);
        assert_eq!(method, expected);
        (stream, M::decode(payload).unwrap())
    }

    /// The plugin's next changes, with the number to answer to.
    pub async fn asks(&mut self) -> (u32, Vec<String>) {
        let (stream, request): (_, UpdateContainersRequest) = self.expect("UpdateContainers").await;
        (stream, updates(&request.update))
    }

    /// Makes the plugin's next changes.
    pub async fn makes(&mut self) -> Vec<String> {
        let (stream, updates) = self.asks().await;
        self.reply(stream, Ok(Vec::new())).await;
        updates
    }

    /// Whether the plugin makes no further call after it has answered something.
    pub async fn asks_nothing(&mut self) {
        let Empty {} = self.call("StateChange", &Empty {}).await.unwrap();
        assert_eq!(self.calls, []);
    }

    pub(super) async fn reply(&mut self, stream: u32, result: Result<Vec<u8>, Failure>) {
        let answer = ttrpc::answer(stream, result).unwrap();
        self.socket.write_all(&mux::frame(Lane::Runtime, &answer)).await.unwrap();
    }

    async fn receive(&mut self) -> Incoming {
        loop {
            for lane in &mut self.lanes {
                if let Some(message) = ttrpc::take_message(lane).unwrap() {
                    return message;
                }
            }
            if let Some((lane, payload)) = mux::take_frame(&mut self.read).unwrap() {
                self.lanes[usize::from(lane == Lane::Runtime)].extend_from_slice(&payload);
                continue;
            }
            let read = timeout(PATIENCE, self.socket.read_buf(&mut self.read)).await;
            assert_ne!(read.expect("the plugin sends something").unwrap(), 0, "the plugin hung up");
        }
    }
}
