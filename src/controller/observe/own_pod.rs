//! Reads what node plugins inherit from the controller's own pod: its image and image pull secrets. IO: the Kubernetes
//! API.
//!
//! However an admin sets the controller's image (a chart value, `images:` in a kustomization, a webhook that rewrites
//! registries), the node plugins use the same image.

use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client};

/// Name of the controller's container, in case the pod has several.
const CONTAINER: &str = "controller";

/// The controller's own pod cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("cannot read this pod, {namespace}/{name} (check POD_NAME and POD_NAMESPACE)")]
pub struct Error {
    namespace: String,
    name: String,
    source: Box<kube::Error>,
}

/// How the controller's own image is pulled.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnPod {
    /// The image, as written in the pod spec.
    pub image: Option<String>,
    /// Names of image pull secrets in its namespace.
    pub image_pull_secrets: Vec<String>,
}

/// Reads the pod that this process runs in.
pub async fn observe(client: &Client, namespace: &str, name: &str) -> Result<OwnPod, Error> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let pod = pods.get(name).await.map_err(|source| Error {
        namespace: namespace.into(),
        name: name.into(),
        source: Box::new(source),
    })?;
    Ok(OwnPod::of(pod))
}

impl OwnPod {
    fn of(pod: Pod) -> Self {
        let Some(spec) = pod.spec else { return Self::default() };
        let container = match &spec.containers[..] {
            [only] => Some(only),
            several => several.iter().find(|container| container.name == CONTAINER),
        };
        Self {
            image: container.and_then(|container| container.image.clone()),
            image_pull_secrets: spec
                .image_pull_secrets
                .unwrap_or_default()
                .into_iter()
                .map(|secret| secret.name)
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn own(spec: &Value) -> OwnPod {
        OwnPod::of(serde_json::from_value(json!({"metadata": {"name": "p"}, "spec": spec})).unwrap())
    }

    #[test]
    fn the_image_is_that_of_the_controllers_container_even_with_a_sidecar() {
        let sidecar = json!({"name": "proxy", "image": "proxy:1"});
        let controller = json!({"name": "controller", "image": "registry.example/operator@sha256:12"});
        let image = Some("registry.example/operator@sha256:12".to_owned());
        assert_eq!(own(&json!({"containers": [sidecar, controller]})).image, image);
        assert_eq!(own(&json!({"containers": [{"name": "main", "image": "own:1"}]})).image.as_deref(), Some("own:1"));
        assert_eq!(own(&json!({"containers": [sidecar, {"name": "main", "image": "own:1"}]})).image, None);
    }

    #[test]
    fn the_pull_secrets_are_those_of_the_pod() {
        let spec = json!({"containers": [], "imagePullSecrets": [{"name": "a"}, {"name": "b"}]});
        assert_eq!(own(&spec).image_pull_secrets, ["a", "b"]);
        assert_eq!(own(&json!({"containers": []})), OwnPod::default());
    }
}
