//! The RBAC permissions of a node plugin. Pure.
//!
//! RBAC cannot limit rights to one node; the admission policy does that. The controller must hold all of these rights
//! itself, or the API server would not let it grant them.

use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, PolicyRule, RoleRef, Subject};

use super::{Settings, metadata, plugin_name, role_name};
use crate::controller::config::Config;

/// The ClusterRole.
pub(super) fn build(config: &Config) -> ClusterRole {
    let rule = |group: &str, resource: &str, verbs: &[&str]| PolicyRule {
        api_groups: Some(vec![group.into()]),
        resources: Some(vec![resource.into()]),
        verbs: verbs.iter().map(|&verb| verb.into()).collect(),
        ..PolicyRule::default()
    };
    let mut rules = vec![
        rule("resource.k8s.io", "resourceslices", &["list", "watch", "create", "update", "delete"]),
        rule("resource.k8s.io", "resourceclaims", &["get"]),
        rule("", "nodes", &["get"]),
    ];
    rules.extend(config.kind.rules());

    ClusterRole { metadata: metadata(config, role_name(config)), rules: Some(rules), aggregation_rule: None }
}

/// The ClusterRoleBinding.
pub(super) fn build_binding(config: &Config, settings: &Settings) -> ClusterRoleBinding {
    ClusterRoleBinding {
        metadata: metadata(config, role_name(config)),
        role_ref: RoleRef {
            api_group: Some("rbac.authorization.k8s.io".into()),
            kind: "ClusterRole".into(),
            name: role_name(config),
        },
        subjects: Some(vec![Subject {
            kind: "ServiceAccount".into(),
            name: plugin_name(config),
            namespace: Some(settings.namespace.clone()),
            ..Subject::default()
        }]),
    }
}
