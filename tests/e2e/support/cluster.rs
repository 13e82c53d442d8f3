//! Clients and tools for the cluster under test, and the product that its chart installs there. IO.

use std::{
    collections::BTreeMap,
    fmt::Debug,
    path::{Path, PathBuf},
    process::Command,
    time::SystemTime,
};

use dra_operator::api::DraDriverConfig;
use futures::future::join_all;
use k8s_openapi::{
    NamespaceResourceScope,
    api::{
        apps::v1::DaemonSet,
        core::v1::{Event, Namespace, Pod, ServiceAccount},
        resource::v1::{DeviceClass, ResourceClaim, ResourceSlice},
    },
};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use super::eventually;

/// The namespace of the chart.
pub(crate) const NAMESPACE: &str = "dra-operator";
/// The configuration that most tests use.
pub(crate) const CONFIG: &str = "cpu";
/// The label of the tests' namespaces.
const TEST: &str = "e2e.dra-operator.dev/test";
/// Its class of every CPU.
pub(crate) const CLASS: &str = "any-cpu";

/// The cluster under test.
pub(crate) struct Cluster {
    pub(crate) client: Client,
    /// Namespace of this test's pods and claims.
    pub(crate) namespace: String,
    env: BTreeMap<String, String>,
}

impl Cluster {
    /// The cluster with the product installed, the configuration `cpu` ready, and an empty namespace `name`.
    pub(crate) async fn with_driver(name: &str) -> Self {
        let cluster = Self::with_operator(name).await;
        cluster.apply_config(CONFIG, cluster.spec()).await;
        cluster.config_is_ready(CONFIG).await;
        cluster
    }

    /// The cluster with the chart installed and no configuration but `cpu`, if there is one.
    pub(crate) async fn with_operator(name: &str) -> Self {
        let cluster = Self::connect(name).await;
        cluster.helm_install(&[]);
        for config in cluster.configs_as_written().list(&ListParams::default()).await.unwrap() {
            if config.name_any() != CONFIG {
                cluster.delete_config(&config.name_any()).await;
            }
        }
        cluster.fresh_namespace().await;
        cluster
    }

    /// The cluster alone.
    pub(crate) async fn connect(name: &str) -> Self {
        let client =
            Client::try_default().await.expect("KUBECONFIG says where the cluster is: use `make test-cluster`");
        let env = std::fs::read_to_string(root().join("target/cluster/env"))
            .expect("`make cluster-up` writes target/cluster/env");
        let env =
            env.lines().filter_map(|line| line.split_once('=')).map(|(k, v)| (k.to_owned(), v.to_owned())).collect();
        // A namespace takes seconds to terminate, and the next run does not wait for it.
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
        Self { client, namespace: format!("{name}-{now}"), env }
    }

    /// A value from `target/cluster/env`.
    pub(crate) fn place(&self, key: &str) -> &str {
        self.env.get(key).unwrap_or_else(|| panic!("target/cluster/env has no {key}"))
    }

    pub(crate) fn all<K>(&self) -> Api<K>
    where
        K: Resource<DynamicType = ()>,
    {
        Api::all(self.client.clone())
    }

    pub(crate) fn here<K>(&self) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    pub(crate) fn in_operator_namespace<K>(&self) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    /// Stops what an earlier test left running, and creates a namespace for this test.
    async fn fresh_namespace(&self) {
        let namespaces = self.all::<Namespace>();
        for left in namespaces.list(&ListParams::default().labels(TEST)).await.unwrap() {
            let (pods, claims) = (self.within::<Pod>(&left), self.within::<ResourceClaim>(&left));
            self.delete_all(&pods).await;
            self.delete_all(&claims).await;
            match namespaces.delete(&left.name_any(), &DeleteParams::default()).await {
                // It was already terminating.
                Err(kube::Error::Api(error)) if error.code == 404 || error.code == 409 => {}
                answer => drop(answer.unwrap()),
            }
        }
        let namespace = json!({"metadata": {"name": self.namespace, "labels": {TEST: "true"}}});
        namespaces.create(&PostParams::default(), &serde_json::from_value(namespace).unwrap()).await.unwrap();
        eventually("the namespace's service account", || async { self.here::<ServiceAccount>().get("default").await })
            .await;
    }

    /// Deletes all of them at once, and waits until they are gone.
    async fn delete_all<K>(&self, api: &Api<K>)
    where
        K: Resource + Clone + Debug + DeserializeOwned,
    {
        let objects = api.list(&ListParams::default()).await.unwrap();
        let names: Vec<_> = objects.iter().map(ResourceExt::name_any).collect();
        join_all(names.iter().map(|name| self.delete_and_wait(api, name))).await;
    }

    fn within<K>(&self, namespace: &Namespace) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), &namespace.name_any())
    }

    pub(crate) async fn create<K>(&self, object: Value) -> K
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + Serialize + DeserializeOwned,
    {
        let object: K = serde_json::from_value(object).unwrap();
        self.here().create(&PostParams::default(), &object).await.unwrap()
    }

    /// Deletes it and waits until it is gone; succeeds if it does not exist.
    pub(crate) async fn delete_and_wait<K>(&self, api: &Api<K>, name: &str)
    where
        K: Clone + Debug + DeserializeOwned,
    {
        match api.delete(name, &DeleteParams::default()).await {
            Err(kube::Error::Api(error)) if error.code == 404 => return,
            answer => drop(answer.unwrap()),
        }
        eventually(&format!("{name} is deleted"), || async {
            match api.get_opt(name).await.unwrap() {
                None => Ok(()),
                Some(left) => Err(left),
            }
        })
        .await;
    }

    /// A spec for this cluster: the paths of its kubelet and runtime, and a class of every CPU.
    pub(crate) fn spec(&self) -> Value {
        json!({
            "driver": {"cpu": {}},
            "nodePlugin": {
                "kubeletRootDir": self.place("KUBELET_ROOT_DIR"),
                "cdiDir": self.place("CDI_DIR"),
                "nriSocket": self.place("NRI_SOCKET"),
            },
            "health": {"publishDeadline": "10s"},
            "deviceClasses": [{"name": CLASS, "matchAttributes": [{"key": "cores", "operator": "Exists"}]}],
        })
    }

    /// DraDriverConfigs as stored, including those that our types cannot parse.
    fn configs_as_written(&self) -> Api<DynamicObject> {
        Api::all_with(self.client.clone(), &ApiResource::erase::<DraDriverConfig>(&()))
    }

    pub(crate) async fn apply_config(&self, name: &str, spec: Value) {
        let config = json!({
            "apiVersion": "dra-operator.dev/v1alpha1", "kind": "DraDriverConfig", "metadata": {"name": name}, "spec": spec,
        });
        let params = PatchParams::apply("e2e").force();
        self.configs_as_written().patch(name, &params, &Patch::Apply(config)).await.unwrap();
    }

    pub(crate) async fn delete_config(&self, name: &str) {
        self.delete_and_wait(&self.configs_as_written(), name).await;
    }

    /// Waits until the last applied spec is in effect.
    pub(crate) async fn config_is_ready(&self, name: &str) -> DraDriverConfig {
        self.config_where(name, "is ready", |config| {
            condition(config, "Ready").is_some_and(|(status, ..)| status == "True")
        })
        .await
    }

    /// Waits until the controller has seen the object's last generation and `holds` is true.
    pub(crate) async fn config_where(
        &self,
        name: &str,
        what: &str,
        holds: impl Fn(&DraDriverConfig) -> bool,
    ) -> DraDriverConfig {
        eventually(&format!("DraDriverConfig {name} {what}"), || async {
            let config = self.all::<DraDriverConfig>().get(name).await.unwrap();
            let seen = config.status.as_ref().and_then(|status| status.observed_generation);
            if seen == config.metadata.generation && holds(&config) { Ok(config) } else { Err(config.status) }
        })
        .await
    }

    pub(crate) async fn slices(&self) -> Vec<ResourceSlice> {
        let mut slices = self.all::<ResourceSlice>().list(&ListParams::default()).await.unwrap().items;
        slices.retain(|slice| slice.spec.driver == "dra.cpu");
        slices
    }

    pub(crate) async fn claim(&self, name: &str) -> ResourceClaim {
        self.here().get(name).await.unwrap()
    }

    pub(crate) async fn class(&self, name: &str) -> Option<DeviceClass> {
        self.all().get_opt(name).await.unwrap()
    }

    pub(crate) async fn daemon_set(&self) -> DaemonSet {
        self.in_operator_namespace().get(&format!("{CONFIG}-node-plugin")).await.unwrap()
    }

    pub(crate) async fn plugin_pods(&self) -> Vec<Pod> {
        let selector = format!("dra-operator.dev/config={CONFIG}");
        self.in_operator_namespace().list(&ListParams::default().labels(&selector)).await.unwrap().items
    }

    /// Waits until a pod is running and all its containers are ready.
    pub(crate) async fn pod_is_ready(&self, name: &str) -> Pod {
        eventually(&format!("pod {name} is ready"), || async {
            let pod: Pod = self.here().get(name).await.unwrap();
            if is_ready(&pod) { Ok(pod) } else { Err((pod.status, self.events(name).await)) }
        })
        .await
    }

    /// Makes the kubelet sync a pod now: after a failed Prepare it would do so only in its next full round, a minute later.
    pub(crate) async fn nudge(&self, pod: &str) {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_millis().to_string();
        let patch = json!({"metadata": {"annotations": {"e2e.dra-operator.dev/nudged": now}}});
        self.here::<Pod>().patch(pod, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    }

    /// The messages of the events on an object of this test's namespace.
    pub(crate) async fn events(&self, name: &str) -> Vec<String> {
        let events = self.here::<Event>().list(&ListParams::default()).await.unwrap();
        events
            .into_iter()
            .filter(|e| e.involved_object.name.as_deref() == Some(name))
            .filter_map(|e| e.message)
            .collect()
    }

    /// `helm upgrade --install` with additional arguments.
    #[allow(clippy::unused_self, reason = "it is the cluster that changes")]
    pub(crate) fn helm_install(&self, arguments: &[&str]) -> String {
        let mut all = vec![
            "upgrade",
            "--install",
            "dra-operator",
            "charts/dra-operator",
            "--namespace",
            NAMESPACE,
            "--create-namespace",
            "--wait",
            "--timeout",
            "60s",
            "--set",
            "image.registry=docker.io,image.repository=local/dra-operator,image.tag=dev,image.pullPolicy=Never",
        ];
        all.extend(arguments);
        tool("helm", &all)
    }
}

/// Status, reason and message of a condition.
pub(crate) fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

pub(crate) fn condition<'a>(config: &'a DraDriverConfig, kind: &str) -> Option<(&'a str, &'a str, &'a str)> {
    let conditions = config.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    conditions.iter().find(|c| c.type_ == kind).map(|c| (c.status.as_str(), c.reason.as_str(), c.message.as_str()))
}

/// Whether the object is Stalled, and its message has `part`.
pub(crate) fn stalled_for(config: &DraDriverConfig, part: &str) -> bool {
    condition(config, "Stalled").is_some_and(|(status, _, message)| status == "True" && message.contains(part))
}

/// The root of the checkout.
pub(crate) fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Runs one of the cluster's tools; if it fails, so does the test.
pub(crate) fn tool(name: &str, arguments: &[&str]) -> String {
    run(&root().join("target/tools/bin").join(name), arguments)
}

/// Runs a script of `tests/cluster`.
pub(crate) fn script(name: &str, arguments: &[&str]) -> String {
    run(&root().join("tests/cluster").join(name), arguments)
}

fn run(program: &Path, arguments: &[&str]) -> String {
    try_run(program, arguments).unwrap_or_else(|said| panic!("{} {arguments:?}:\n{said}", program.display()))
}

/// Like `tool`, for commands that may fail: then returns their output.
pub(crate) fn try_tool(name: &str, arguments: &[&str]) -> Result<String, String> {
    try_run(&root().join("target/tools/bin").join(name), arguments)
}

fn try_run(program: &Path, arguments: &[&str]) -> Result<String, String> {
    let output = Command::new(program).args(arguments).current_dir(root()).output();
    let output = output.unwrap_or_else(|error| panic!("{} does not start: {error}", program.display()));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() { Ok(text) } else { Err(text + &String::from_utf8_lossy(&output.stderr)) }
}
