//! For tests: a node plugin on directories of its own, an API server in memory, and a kubelet that calls it.

use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use tokio::{net::UnixStream, task::JoinHandle};
use tokio_util::sync::CancellationToken;
use tonic::transport::{Channel, Endpoint};

use super::*;
use crate::{
    api::Granularity,
    cpuset::CpuSet,
    drivers::cpu::CpuDriver,
    fake_api::FakeApi,
    host::Host,
    plugin::kubelet::grpc::{
        dra::{self, dra_plugin_client::DraPluginClient},
        registration::{self, registration_client::RegistrationClient},
    },
};

/// A machine of 16 CPUs, each a core (`core-0-<n>` is CPU n), with directories of its own, and the API server.
pub(in crate::plugin) struct Machine {
    pub(in crate::plugin) root: tempfile::TempDir,
    pub(in crate::plugin) api: FakeApi,
}

impl Machine {
    pub(in crate::plugin) fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("kubelet/plugins_registry")).unwrap();
        let api = FakeApi::default();
        api.put("/api/v1/nodes/node-1", json!({"metadata": {"name": "node-1", "uid": "node-uid"}}));
        let machine = Self { root, api };
        for cpu in 0..16 {
            let topology = machine.root.path().join(format!("sys/devices/system/cpu/cpu{cpu}/topology"));
            fs::create_dir_all(&topology).unwrap();
            fs::write(topology.join("core_id"), cpu.to_string()).unwrap();
            fs::write(topology.join("physical_package_id"), "0").unwrap();
        }
        machine.online("0-15");
        machine
    }

    /// Its kind of device.
    pub(in crate::plugin) fn driver(&self) -> Arc<dyn Driver> {
        Arc::new(CpuDriver::observe(Host::at(self.root.path()), Granularity::Core, &CpuSet::new()))
    }

    pub(in crate::plugin) fn cdi(&self) -> PathBuf {
        self.root.path().join("cdi")
    }

    pub(in crate::plugin) fn state(&self) -> PathBuf {
        self.root.path().join("kubelet/plugins/dra.cpu")
    }

    pub(in crate::plugin) fn registry(&self) -> PathBuf {
        self.root.path().join("kubelet/plugins_registry")
    }

    pub(in crate::plugin) fn checkpoint(&self) -> PathBuf {
        self.state().join("checkpoint.json")
    }

    pub(in crate::plugin) fn cdi_files(&self) -> Vec<String> {
        names(&self.cdi())
    }

    /// Sets which CPUs are online.
    pub(in crate::plugin) fn online(&self, cpus: &str) {
        let sys = self.root.path().join("sys/devices/system");
        for (file, content) in [("cpu/online", cpus), ("node/has_memory", "0")] {
            fs::create_dir_all(sys.join(file).parent().unwrap()).unwrap();
            fs::write(sys.join(file), content).unwrap();
        }
    }

    pub(in crate::plugin) fn connect(&self) -> Connect {
        let api = self.api.clone();
        Arc::new(move || Ok(api.client()))
    }

    pub(in crate::plugin) fn settings(&self, pod_uid: Option<&str>) -> NodeSettings {
        NodeSettings {
            driver_name: "dra.cpu".parse().unwrap(),
            node_name: "node-1".into(),
            pod_uid: pod_uid.map(str::to_owned),
            kubelet_root: self.root.path().join("kubelet"),
            cdi_dir: self.cdi(),
            state_dir: self.state(),
            nri_socket: None,
            host_root: self.root.path().into(),
            held_timeout: Duration::ZERO,
        }
    }

    /// Puts an allocated claim into the API: `apps/<name>` with UID `uid-<name>`, for the pod `pod`.
    pub(in crate::plugin) fn allocate(&self, name: &str, devices: &[&str], config: &Value) -> dra::Claim {
        self.allocate_to("pod", name, devices, config)
    }

    /// The same for another pod, with UID `uid-<pod>`.
    pub(in crate::plugin) fn allocate_to(&self, pod: &str, name: &str, devices: &[&str], config: &Value) -> dra::Claim {
        let result =
            |device: &&str| json!({"driver": "dra.cpu", "pool": "node-1", "device": device, "request": "main"});
        let results: Vec<Value> = devices.iter().map(result).collect();
        self.put_claim(name, pod, &results, config)
    }

    /// The same, with these allocation results.
    pub(in crate::plugin) fn put_claim(&self, name: &str, pod: &str, results: &[Value], config: &Value) -> dra::Claim {
        self.api.put(
            &claim_path(name),
            json!({
                "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
                "metadata": {"namespace": "apps", "name": name, "uid": format!("uid-{name}")},
                "status": {
                    "allocation": {"devices": {"results": results, "config": config}},
                    "reservedFor": [{"resource": "pods", "name": pod, "uid": format!("uid-{pod}")}],
                },
            }),
        );
        dra::Claim { namespace: "apps".into(), uid: format!("uid-{name}"), name: name.into() }
    }

    /// Starts an instance.
    pub(in crate::plugin) fn start(&self, pod_uid: Option<&str>) -> Running {
        self.start_with(self.settings(pod_uid))
    }

    pub(in crate::plugin) fn start_with(&self, settings: NodeSettings) -> Running {
        self.start_kind(settings, self.driver())
    }

    /// Starts an instance for another kind of device than CPUs.
    pub(in crate::plugin) fn start_kind(&self, settings: NodeSettings, driver: Arc<dyn Driver>) -> Running {
        let readiness = Arc::new(Readiness::of(&settings.parts()));
        let stop = CancellationToken::new();
        let sockets = settings.sockets().unwrap();
        let plugin = NodePlugin {
            settings,
            driver,
            client: self.api.client(),
            connect: self.connect(),
            readiness: Arc::clone(&readiness),
            metrics: PluginMetrics::new(&mut Registry::default()),
        };
        let stopped = stop.clone();
        let task = tokio::spawn(async move { plugin.run(stopped).await });
        Running { readiness, stop, sockets, task }
    }
}

pub(in crate::plugin) fn claim_path(name: &str) -> String {
    format!("/apis/resource.k8s.io/v1/namespaces/apps/resourceclaims/{name}")
}

pub(in crate::plugin) fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// A running instance.
pub(in crate::plugin) struct Running {
    pub(in crate::plugin) readiness: Arc<Readiness>,
    pub(in crate::plugin) stop: CancellationToken,
    pub(in crate::plugin) sockets: SocketPaths,
    pub(in crate::plugin) task: JoinHandle<Result<(), NodeError>>,
}

impl Running {
    /// The kubelet finds the registration socket, queries it, and registers the plugin.
    pub(in crate::plugin) async fn register(&self) -> FakeKubelet {
        let live = |path: &Path| std::os::unix::net::UnixStream::connect(path).is_ok();
        until("sockets", || live(&self.sockets.registration) && live(&self.sockets.dra)).await;
        let mut registry = self.registry();
        let info = registry.get_info(registration::InfoRequest {}).await.unwrap().into_inner();
        assert_eq!((info.r#type.as_str(), info.name.as_str()), ("DRAPlugin", "dra.cpu"));
        assert_eq!(info.supported_versions, ["v1.DRAPlugin"]);
        let status = registration::RegistrationStatus { plugin_registered: true, error: String::new() };
        registry.notify_registration_status(status).await.unwrap();
        FakeKubelet(DraPluginClient::new(dial(Path::new(&info.endpoint), "localhost")))
    }

    /// The kubelet rejects the plugin.
    pub(in crate::plugin) async fn is_refused(&self, error: &str) {
        let status = registration::RegistrationStatus { plugin_registered: false, error: error.to_owned() };
        self.registry().notify_registration_status(status).await.unwrap();
    }

    /// Calls the plugin with the authority that the kubelet's bare path turns into.
    fn registry(&self) -> RegistrationClient<Channel> {
        let path = &self.sockets.registration;
        RegistrationClient::new(dial(path, &path.to_str().unwrap().replace('/', "%2F")))
    }

    pub(in crate::plugin) async fn ready(&self) -> FakeKubelet {
        let kubelet = self.register().await;
        until(&format!("ready: {}", self.readiness.report()), || self.readiness.is_ready()).await;
        kubelet
    }

    /// Like kill -9: nothing is cleaned up, and sockets without a listener are left behind.
    pub(in crate::plugin) async fn kill(self) {
        self.task.abort();
        self.task.await.ok();
        for path in [&self.sockets.registration, &self.sockets.dra] {
            until("the socket is released", || !path.exists()).await;
            drop(std::os::unix::net::UnixListener::bind(path).unwrap());
        }
    }

    pub(in crate::plugin) async fn stop(self) {
        self.stop.cancel();
        self.task.await.unwrap().unwrap();
    }
}

fn dial(path: &Path, authority: &str) -> Channel {
    let path = path.to_owned();
    let connector = tower::service_fn(move |_| {
        let path = path.clone();
        async move { Ok::<_, std::io::Error>(hyper_util::rt::TokioIo::new(UnixStream::connect(path).await?)) }
    });
    let origin = format!("http://{authority}").parse().unwrap();
    Endpoint::from_static("http://localhost").origin(origin).connect_with_connector_lazy(connector)
}

#[derive(Clone)]
pub(in crate::plugin) struct FakeKubelet(DraPluginClient<Channel>);

impl FakeKubelet {
    /// The answers by claim UID: devices with their CDI ids, or the error.
    pub(in crate::plugin) async fn prepare(
        &self,
        claims: &[&dra::Claim],
    ) -> HashMap<String, Result<Vec<dra::Device>, String>> {
        let claims = claims.iter().map(|claim| (*claim).clone()).collect();
        let answer = self.0.clone().node_prepare_resources(dra::NodePrepareResourcesRequest { claims }).await;
        let answers = answer.unwrap().into_inner().claims.into_iter();
        answers
            .map(|(uid, answer)| (uid, if answer.error.is_empty() { Ok(answer.devices) } else { Err(answer.error) }))
            .collect()
    }

    pub(in crate::plugin) async fn prepare_one(&self, claim: &dra::Claim) -> Result<Vec<dra::Device>, String> {
        self.prepare(&[claim]).await.remove(&claim.uid).unwrap()
    }

    pub(in crate::plugin) async fn unprepare(&self, claim: &dra::Claim) -> Result<(), String> {
        let request = dra::NodeUnprepareResourcesRequest { claims: vec![claim.clone()] };
        let answer = self.0.clone().node_unprepare_resources(request).await.unwrap().into_inner();
        let error = answer.claims[&claim.uid].error.clone();
        if error.is_empty() { Ok(()) } else { Err(error) }
    }
}

pub(in crate::plugin) async fn until(what: &str, condition: impl Fn() -> bool) {
    let reached = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    assert!(tokio::time::timeout(Duration::from_secs(15), reached).await.is_ok(), "not in time: {what}");
}
