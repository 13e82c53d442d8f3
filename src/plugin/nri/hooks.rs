//! Answers the runtime's calls. Pure: prepared claims are looked up in memory.

use std::{collections::HashMap, sync::Arc};

use prost::{Message, bytes::Bytes};

use super::{
    containers::{Change, Containers, Observed, Remembered, Use},
    cpuset::Cpuset,
    limits::limits,
    memory_nodes,
    messages::{
        ConfigureRequest, ConfigureResponse, Container, ContainerAdjustment, ContainerEvent, ContainerState,
        ContainerUpdate, CreateContainerRequest, CreateContainerResponse, Empty, Event, LinuxContainerAdjustment,
        LinuxContainerUpdate, LinuxResources, PLUGIN_SERVICE, PodSandbox, StateChangeEvent, SynchronizeRequest,
        SynchronizeResponse, UpdateContainerRequest, UpdateContainerResponse,
    },
    sandboxes,
    ttrpc::{Code, Failure},
};
use crate::{
    cpuset::CpuSet,
    drivers::{Grant, cpuset_fields::CpusetFields},
    plugin::grants::{ContainerIdentity, Grants},
};

/// The events that the plugin subscribes to. The events after a creation and an update show when the runtime can update
/// a container, and what the container really has.
const EVENTS: [Event; 7] = [
    Event::CreateContainer,
    Event::PostCreateContainer,
    Event::PostStartContainer,
    Event::UpdateContainer,
    Event::PostUpdateContainer,
    Event::StopContainer,
    Event::RemoveContainer,
];

/// The memory that is kept of a container's environment and CDI devices, in bytes. Fifty marks fit in it.
const MAX_KEPT: usize = 16 << 10;

/// What a string costs besides its content, in bytes.
const OVERHEAD: usize = 64;

/// The plugin as the runtime sees it, from one connection to its end.
pub(super) struct Hooks {
    grants: Arc<dyn Grants>,
    /// What an earlier run remembered about containers, for synchronisation.
    remembered: HashMap<String, Remembered>,
    /// The driver's name.
    driver: String,
    /// The online CPUs; empty if unknown.
    online: CpuSet,
    arriving: Option<Arriving>,
    /// Whether to subscribe to the events of pod sandboxes too.
    pub follows_sandboxes: bool,
    /// The pods of the last synchronisation, for [`sandboxes`].
    pub pods: Vec<PodSandbox>,
    /// All containers, once they are synchronised.
    pub containers: Option<Containers>,
    /// The runtime's name and version.
    pub runtime: String,
}

/// The parts of a synchronisation that have arrived. A container's pod may come later than the container.
#[derive(Default)]
struct Arriving {
    pods: HashMap<String, PodSandbox>,
    containers: Vec<Container>,
}

impl Hooks {
    pub fn new(grants: Arc<dyn Grants>, driver: &str, remembered: HashMap<String, Remembered>, online: CpuSet) -> Self {
        let (driver, runtime) = (driver.to_owned(), String::new());
        Self {
            grants,
            driver,
            remembered,
            online,
            arriving: None,
            follows_sandboxes: false,
            pods: Vec::new(),
            containers: None,
            runtime,
        }
    }

    /// Applies the current claims and online CPUs. Returns false if nothing changed for any container.
    pub fn refresh(&mut self, online: CpuSet) -> bool {
        self.online = online;
        let (share, online) = (self.share(), self.online.clone());
        self.containers.as_mut().is_some_and(|containers| containers.keep_others_to(share, online))
    }

    /// The CPUs that containers without a claim are restricted to. `None` lifts the restriction. Empty if every online
    /// CPU is claimed.
    pub fn share(&self) -> Option<CpuSet> {
        let left = self.grants.remainder()?.cpus;
        // A CPU may have gone offline since the driver saw it.
        Some(if self.online.is_empty() { left } else { left.intersection(&self.online) })
    }

    /// Answers a call.
    pub fn answer(&mut self, service: &str, method: &str, payload: Bytes) -> Result<Vec<u8>, Failure> {
        if service != PLUGIN_SERVICE {
            return Err(Failure::new(Code::Unimplemented, format!("this plugin has no service {service:?}")));
        }
        match method {
            "Configure" => Ok(self.configure(decode(method, payload)?).encode_to_vec()),
            "Synchronize" => Ok(self.synchronize(decode(method, payload)?)?.encode_to_vec()),
            "CreateContainer" => Ok(self.create(decode(method, payload)?)?.encode_to_vec()),
            "UpdateContainer" => Ok(self.update(decode(method, payload)?).encode_to_vec()),
            "StateChange" => {
                let change: StateChangeEvent = decode(method, payload)?;
                self.happened(change.event(), change.pod.as_ref(), change.container.as_ref());
                Ok(Empty {}.encode_to_vec())
            }
            "Shutdown" => Ok(Empty {}.encode_to_vec()),
            _ => {
                let unknown = || Failure::new(Code::Unimplemented, format!("this plugin has no method {method:?}"));
                let event = event_of(method).ok_or_else(unknown)?;
                let ContainerEvent { pod, container } = decode(method, payload)?;
                self.happened(event, pod.as_ref(), container.as_ref());
                Ok(Empty {}.encode_to_vec())
            }
        }
    }

    fn configure(&mut self, request: ConfigureRequest) -> ConfigureResponse {
        let ConfigureRequest { runtime_name, runtime_version, nri_version, .. } = request;
        self.runtime = format!("{runtime_name} {runtime_version} (NRI {nri_version})");
        let of_sandboxes = if self.follows_sandboxes { &sandboxes::EVENTS[..] } else { &[] };
        let events = EVENTS.iter().chain(of_sandboxes);
        // One bit for each event.
        ConfigureResponse { events: events.map(|event| 1 << (*event as i32 - 1)).sum() }
    }

    fn synchronize(&mut self, request: SynchronizeRequest) -> Result<SynchronizeResponse, Failure> {
        let SynchronizeRequest { pods, containers, more } = request;
        let mut arriving = self.arriving.take().unwrap_or_default();
        arriving.pods.extend(pods.into_iter().map(|pod| (pod.id.clone(), pod)));
        for container in containers {
            arriving.containers.push(self.without_bulk(decode("Synchronize", container)?));
        }
        if more {
            self.arriving = Some(arriving);
            return Ok(SynchronizeResponse { update: Vec::new(), more: true });
        }
        let observed = arriving.containers.into_iter().filter_map(|container| {
            let pod = arriving.pods.get(&container.pod_sandbox_id);
            self.observed(pod, &container)
        });
        let containers = Containers::synchronize(observed, &self.remembered, self.share(), self.online.clone());
        self.containers = Some(containers);
        self.pods = arriving.pods.into_values().collect();
        // Changes are sent in separate calls: the runtime would not report the failure of a change in this answer.
        Ok(SynchronizeResponse::default())
    }

    fn create(&mut self, request: CreateContainerRequest) -> Result<CreateContainerResponse, Failure> {
        let Some(container) = request.container else {
            return Err(Failure::new(Code::InvalidArgument, "CreateContainer without a container"));
        };
        let refused = |why: String| {
            tracing::warn!("refusing to create a container: {why}");
            Failure::new(Code::FailedPrecondition, why)
        };
        let grant = self.granted(request.pod.as_ref(), &container).map_err(refused)?;

        // The grant may have become unusable since Prepare.
        if let Some(grant) = &grant {
            let pod = request.pod.as_ref().map_or_else(String::new, |pod| format!("{}/{}", pod.namespace, pod.name));
            let usable = self.grants.check(grant);
            usable.map_err(|error| refused(format!("container {:?} of pod {pod}: {error}", container.name)))?;
        }

        let limits = grant.as_ref().map(limits).unwrap_or_default();
        let Some(usage) = self.usage(grant, &container) else {
            return Ok(CreateContainerResponse { adjust: adjustment(limits), update: Vec::new() });
        };
        let would_have = match (&usage, Cpuset::of_container(&container)) {
            (_, Ok(placement)) => placement,
            (Use::Claim(_), Err(_)) => Cpuset::default(),
            (_, Err(error)) => {
                return Err(refused(format!("cannot parse the cpuset of container {:?}: {error}", container.name)));
            }
        };
        let Some(containers) = &mut self.containers else {
            return Err(refused("received CreateContainer before Synchronize".to_owned()));
        };
        let has_claim = matches!(usage, Use::Claim(_));
        let change = containers.create(&container.id, usage, would_have);
        // Other containers leave the claim's CPUs before its container starts.
        let others = if has_claim { containers.outstanding(&container.id) } else { Vec::new() };
        Ok(CreateContainerResponse {
            adjust: adjustment(LinuxResources { cpu: change.and_then(|cpuset| cpuset.resources().cpu), ..limits }),
            update: others.iter().map(|change| update(change, true)).collect(),
        })
    }

    fn update(&mut self, request: UpdateContainerRequest) -> UpdateContainerResponse {
        let Some(container) = request.container else { return UpdateContainerResponse::default() };
        self.adopt(request.pod.as_ref(), &container);
        let Some(containers) = &mut self.containers else { return UpdateContainerResponse::default() };
        let requested = match Cpuset::of_resources(request.linux_resources.as_ref()) {
            Ok(requested) => requested,
            Err(error) => {
                tracing::warn!(container = container.id, "cannot parse the cpuset of an update: {error}");
                return UpdateContainerResponse::default();
            }
        };
        let change = containers.update(&container.id, requested).map(Arc::new);
        UpdateContainerResponse {
            update: change
                .map(|placement| update(&Change { id: container.id, placement }, false))
                .into_iter()
                .collect(),
        }
    }

    /// The runtime reports an event of a container.
    fn happened(&mut self, event: Event, pod: Option<&PodSandbox>, container: Option<&Container>) {
        let Some(container) = container else { return };
        if !matches!(event, Event::StopContainer | Event::RemoveContainer) {
            self.adopt(pod, container);
        }
        let Some(containers) = &mut self.containers else { return };
        match event {
            Event::PostCreateContainer | Event::PostUpdateContainer => {
                containers.observe(&container.id, Cpuset::of_container(container).ok());
            }
            Event::PostStartContainer => containers.started(&container.id),
            Event::StopContainer | Event::RemoveContainer => containers.forget(&container.id),
            _ => {}
        }
    }

    /// Starts to follow a container that is in neither the synchronisation nor a CreateContainer call.
    fn adopt(&mut self, pod: Option<&PodSandbox>, container: &Container) {
        let is_new = self.containers.as_ref().is_some_and(|containers| !containers.knows(&container.id));
        // The report of its end may have overtaken that of its start.
        if !is_new || container.state() == ContainerState::Stopped {
            return;
        }
        let observed = self.observed(pod, container);
        if let (Some(containers), Some(observed)) = (&mut self.containers, observed) {
            tracing::info!(container = container.id, "a container was created while this plugin connected");
            containers.adopt(observed, &self.remembered);
        }
    }

    /// How a container that already exists is treated. `None` if this driver does not set its cpuset.
    fn observed(&self, pod: Option<&PodSandbox>, container: &Container) -> Option<Observed> {
        let grant = self.granted(pod, container).unwrap_or_else(|refusal| {
            tracing::warn!("keeping a running container off claimed CPUs: {refusal}");
            None
        });
        let usage = self.usage(grant, container)?;
        let placement = Cpuset::of_container(container).inspect_err(|error| {
            tracing::warn!(container = container.id, "cannot parse the cpuset of a container: {error}");
        });
        let is_running = container.state() != ContainerState::Created;
        Some(Observed { id: container.id.clone(), usage, placement: placement.unwrap_or_default(), is_running })
    }

    /// The part of a container that is kept until all parts of a synchronisation have arrived. The pod's author controls
    /// the environment and may make it large. Marks are at its end, where the runtime adds what CDI injects.
    pub fn without_bulk(&self, mut container: Container) -> Container {
        let mut left = MAX_KEPT;
        let mut fits = |text: &str| {
            let cost = text.len() + OVERHEAD;
            let fits = cost <= left;
            left = left.saturating_sub(cost);
            fits
        };
        let is_mark = |variable: &String| self.grants.is_mark(variable) || memory_nodes::is_mark(variable);
        let marks = container.env.into_iter().rev().filter(is_mark);
        container.env = marks.take_while(|mark| fits(mark)).collect();
        container.cdi_devices.retain(|device| fits(&device.name));
        // Without the room of those that are gone.
        container.cdi_devices.shrink_to_fit();
        container
    }

    /// What a container's claims give it. An error says why the container must not be created.
    fn granted(&self, pod: Option<&PodSandbox>, container: &Container) -> Result<Option<Grant>, String> {
        let cdi_devices: Vec<String> = container.cdi_devices.iter().map(|device| device.name.clone()).collect();
        let identity = ContainerIdentity {
            pod_uid: pod.map_or("", |pod| &pod.uid),
            pod_namespace: pod.map_or("", |pod| &pod.namespace),
            pod_name: pod.map_or("", |pod| &pod.name),
            container_name: &container.name,
            env: &container.env,
            cdi_devices: &cdi_devices,
        };
        let grant = self.grants.of_container(&identity).map_err(|refusal| refusal.to_string())?;
        let brings_nothing = grant.as_ref().is_some_and(|grant| Cpuset::from(grant).is_empty());
        if brings_nothing && self.grants.cpuset_fields() != CpusetFields::Nothing {
            return Err(format!(
                "container {:?} of pod {}/{} has a {} claim that provides neither CPUs nor memory nodes: delete the \
                 pod, and check the claim's devices and parameters",
                container.name, identity.pod_namespace, identity.pod_name, self.driver
            ));
        }
        Ok(grant)
    }

    /// How this driver treats a container. `None` if this driver does not set its cpuset.
    fn usage(&self, grant: Option<Grant>, container: &Container) -> Option<Use> {
        let fields = self.grants.cpuset_fields();
        let Some(grant) = grant else { return (fields == CpusetFields::Cpus).then_some(Use::Free) };
        let mut placement = Cpuset::from(&grant);
        if fields == CpusetFields::Cpus && memory_nodes::are_claimed_elsewhere(&self.driver, &container.env) {
            placement.memory_nodes = CpuSet::new();
        }
        (fields != CpusetFields::Nothing).then_some(Use::Claim(placement))
    }
}

/// What to set on a container that is being created, if anything.
fn adjustment(resources: LinuxResources) -> Option<ContainerAdjustment> {
    let linux = LinuxContainerAdjustment { resources: Some(resources) };
    (linux != LinuxContainerAdjustment { resources: Some(LinuxResources::default()) })
        .then_some(ContainerAdjustment { linux: Some(linux) })
}

/// A change as sent to the runtime.
pub(super) fn update(change: &Change, ignore_failure: bool) -> ContainerUpdate {
    ContainerUpdate {
        container_id: change.id.clone(),
        linux: Some(LinuxContainerUpdate { resources: Some(change.placement.resources()) }),
        ignore_failure,
    }
}

/// The event that a dedicated method reports. Runtimes before NRI 0.12 report every event with `StateChange`.
fn event_of(method: &str) -> Option<Event> {
    match method {
        "PostCreateContainer" => Some(Event::PostCreateContainer),
        "PostStartContainer" => Some(Event::PostStartContainer),
        "PostUpdateContainer" => Some(Event::PostUpdateContainer),
        "StopContainer" => Some(Event::StopContainer),
        "RemoveContainer" => Some(Event::RemoveContainer),
        _ => None,
    }
}

fn decode<M: Message + Default>(method: &str, payload: Bytes) -> Result<M, Failure> {
    M::decode(payload).map_err(|error| Failure::new(Code::InvalidArgument, format!("{method}: {error}")))
}
