//! A child object as it exists in the cluster. Pure.

use kube::{ResourceExt, core::DynamicObject};
use serde_json::{Value, json};

use crate::controller::{
    build::{CONFIG_LABEL, FIELD_MANAGER, MANAGED_BY},
    child::{ChildKey, ChildKind},
    config::Config,
};

/// A live object of a child's kind, with any owner.
#[derive(Clone, Debug, PartialEq)]
pub struct Live {
    /// Kind and name.
    pub key: ChildKey,
    /// Its unique id.
    pub uid: String,
    /// Its owner.
    pub owner: Owner,
    /// Its resource version, which only increases (KEP-5504); 0 if the API server sets none.
    pub version: u64,
    /// Whether it is being deleted.
    pub terminating: bool,
    /// The finalizers that its deletion waits for.
    pub finalizers: Vec<String>,
    /// The object, without the fields that only the API server writes.
    pub object: Value,
}

/// The owner of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Owner {
    /// Created by this operator, and controlled by a `DraDriverConfig`.
    Config {
        /// Its unique id.
        uid: String,
        /// Its name.
        name: String,
    },
    /// Created by this operator for a config with this name, but without a controller: after a restore from a backup,
    /// owners have new UIDs. The config may adopt it.
    Orphan {
        /// The config's name.
        config: String,
    },
    /// Another owner, described for messages.
    Foreign(String),
}

impl Live {
    /// Extracts the relevant parts of an object.
    pub fn of(kind: ChildKind, object: DynamicObject) -> Self {
        let owner = owner(&object);
        let DynamicObject { metadata, mut data, .. } = object;
        let key = ChildKey { kind, name: metadata.name.clone().unwrap_or_default() };
        if let Some(data) = data.as_object_mut() {
            // Items of a list lack both.
            let resource = kind.resource();
            data.insert("apiVersion".into(), json!(resource.api_version));
            data.insert("kind".into(), json!(resource.kind));
            data.insert(
                "metadata".into(),
                json!({
                    "name": metadata.name, "namespace": metadata.namespace, "uid": metadata.uid, "generation": metadata.generation,
                    "labels": metadata.labels, "annotations": metadata.annotations, "ownerReferences": metadata.owner_references,
                }),
            );
        }
        Self {
            key,
            uid: metadata.uid.unwrap_or_default(),
            version: metadata.resource_version.and_then(|version| version.parse().ok()).unwrap_or(0),
            owner,
            terminating: metadata.deletion_timestamp.is_some(),
            finalizers: metadata.finalizers.unwrap_or_default(),
            object: data,
        }
    }

    /// Whether `config` may write it.
    pub fn is_of(&self, config: &Config) -> bool {
        match &self.owner {
            Owner::Config { uid, .. } => Some(uid) == config.metadata.uid.as_ref(),
            Owner::Orphan { config: name } => *name == config.name_any(),
            Owner::Foreign(_) => false,
        }
    }

    /// Why it still exists, if it is being deleted.
    pub fn held(&self) -> Option<String> {
        let by = || self.finalizers.join(", ");
        let held = self.terminating && !self.finalizers.is_empty();
        held.then(|| format!("{} is being deleted and waits for its finalizers: {}", self.key, by()))
    }

    /// The owner, for messages.
    pub fn owner_name(&self) -> String {
        match &self.owner {
            Owner::Config { name, .. } | Owner::Orphan { config: name } => format!("DraDriverConfig {name}"),
            Owner::Foreign(words) => words.clone(),
        }
    }
}

fn owner(object: &DynamicObject) -> Owner {
    let controller = object.owner_references().iter().find(|owner| owner.controller == Some(true));
    let labels = object.labels();
    // A copy has the labels and the owner of the original; only managedFields, which the API server writes, say who
    // applied an object. If they were stripped, only the labels are left to trust.
    let ours = object.managed_fields().is_empty()
        || object.managed_fields().iter().any(|fields| {
            fields.manager.as_deref() == Some(FIELD_MANAGER) && fields.operation.as_deref() == Some("Apply")
        });
    match controller {
        Some(owner) if ours && owner.kind == "DraDriverConfig" && owner.api_version.starts_with(crate::api::GROUP) => {
            Owner::Config { uid: owner.uid.clone(), name: owner.name.clone() }
        }
        Some(owner) if owner.kind != "DraDriverConfig" => Owner::Foreign(format!("{} {}", owner.kind, owner.name)),
        _ => match labels.get(CONFIG_LABEL).filter(|_| ours) {
            Some(config) => Owner::Orphan { config: config.clone() },
            None => Owner::Foreign(foreign(object)),
        },
    }
}

/// The best available name for the creator of an object without a controller.
fn foreign(object: &DynamicObject) -> String {
    let labels = object.labels();
    let annotations = object.annotations();
    if let Some(release) = annotations.get("meta.helm.sh/release-name") {
        return format!("Helm release {release}");
    }
    if let Some(by) = labels.get(MANAGED_BY.0).filter(|by| *by != MANAGED_BY.1) {
        return format!("{by} (its label app.kubernetes.io/managed-by)");
    }
    let manager = object.managed_fields().iter().find_map(|fields| fields.manager.clone());
    match manager {
        Some(manager) => format!("{manager} (its field manager)"),
        None => "an unknown owner".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controller::testing::mk_config;

    fn live(metadata: &Value) -> Live {
        let object = serde_json::from_value(json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": metadata, "spec": {},
        }));
        Live::of(ChildKind::DeviceClass, object.unwrap())
    }

    fn config(name: &str, uid: &str) -> Config {
        let mut config = mk_config(name, &json!({}));
        config.metadata.uid = Some(uid.into());
        config
    }

    /// managedFields as the API server writes them for an object that this operator applied.
    fn applied() -> Value {
        json!([{"manager": FIELD_MANAGER, "operation": "Apply", "apiVersion": "resource.k8s.io/v1"}])
    }

    #[test]
    fn an_item_of_a_list_gets_its_kind() {
        let item =
            serde_json::from_value(json!({"metadata": {"name": "a", "resourceVersion": "7"}, "spec": {}})).unwrap();
        let live = Live::of(ChildKind::DeviceClass, item);
        assert_eq!((live.object["kind"].as_str(), live.version), (Some("DeviceClass"), 7));
    }

    #[test]
    fn an_object_belongs_to_its_controller() {
        let owner = json!({"apiVersion": "dra-operator.dev/v1alpha1", "kind": "DraDriverConfig", "name": "cpu", "uid": "u1", "controller": true});
        let ours = live(&json!({"name": "a", "ownerReferences": [owner], "managedFields": applied()}));
        assert!(ours.is_of(&config("cpu", "u1")));
        assert!(!ours.is_of(&config("cpu", "u2")));
        assert_eq!(ours.owner_name(), "DraDriverConfig cpu");
    }

    #[test]
    fn our_own_object_without_a_controller_may_be_adopted_only_by_its_config() {
        let labels = json!({MANAGED_BY.0: MANAGED_BY.1, CONFIG_LABEL: "cpu"});
        let orphan = live(&json!({"name": "a", "labels": labels, "managedFields": applied()}));
        assert!(orphan.is_of(&config("cpu", "u9")));
        assert!(!orphan.is_of(&config("other", "u9")));
    }

    #[test]
    fn a_copy_of_one_of_our_objects_belongs_to_its_creator() {
        let owner = json!({"apiVersion": "dra-operator.dev/v1alpha1", "kind": "DraDriverConfig", "name": "cpu", "uid": "u1", "controller": true});
        let labels = json!({MANAGED_BY.0: MANAGED_BY.1, CONFIG_LABEL: "cpu"});
        let by = json!([{"manager": "kubectl-create", "operation": "Update"}]);
        for owners in [json!([]), json!([owner])] {
            let copy = live(&json!({"name": "a", "labels": labels, "ownerReferences": owners, "managedFields": by}));
            assert!(!copy.is_of(&config("cpu", "u1")));
            assert_eq!(copy.owner_name(), "kubectl-create (its field manager)");
        }
    }

    #[test]
    fn a_foreign_object_is_attributed_to_its_creator() {
        for (metadata, words) in [
            (
                json!({"name": "a", "labels": {"app.kubernetes.io/managed-by": "Helm"}, "annotations": {"meta.helm.sh/release-name": "gpu"}}),
                "Helm release gpu",
            ),
            (
                json!({"name": "a", "labels": {"app.kubernetes.io/managed-by": "argocd"}}),
                "argocd (its label app.kubernetes.io/managed-by)",
            ),
            (
                json!({"name": "a", "managedFields": [{"manager": "kubectl-create", "operation": "Update"}]}),
                "kubectl-create (its field manager)",
            ),
            (
                json!({"name": "a", "ownerReferences": [{"apiVersion": "v1", "kind": "Thing", "name": "t", "uid": "x", "controller": true}]}),
                "Thing t",
            ),
            (json!({"name": "a"}), "an unknown owner"),
        ] {
            let foreign = live(&metadata);
            assert!(!foreign.is_of(&config("a", "u")));
            assert_eq!(foreign.owner_name(), words);
        }
    }
}
