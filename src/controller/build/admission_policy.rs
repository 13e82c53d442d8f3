//! The ValidatingAdmissionPolicy that restricts a node plugin to its own driver's slices on its own node. Pure.
//!
//! A plugin's token is bound to its pod, and the API server writes the pod's node into the request's user as
//! `authentication.kubernetes.io/node-name` (KEP-4193). A compromised plugin can therefore neither publish nor delete
//! anything for another node: the policy checks the node that a slice names, its pool (all that allocation and taint
//! eviction look at), and its name, so that it cannot take the name of another node's slice. The exception is pools
//! that do not belong to a single node, for kinds of device that have them.

use k8s_openapi::api::admissionregistration::v1::{
    MatchCondition, MatchResources, NamedRuleWithOperations, ValidatingAdmissionPolicy,
    ValidatingAdmissionPolicyBinding, ValidatingAdmissionPolicyBindingSpec, ValidatingAdmissionPolicySpec, Validation,
    Variable,
};

use super::{Settings, metadata, plugin_name, policy_name};
use crate::{controller::config::Config, slices::pack};

/// The policy.
pub(super) fn build(config: &Config, settings: &Settings) -> ValidatingAdmissionPolicy {
    let user = format!("system:serviceaccount:{}:{}", settings.namespace, plugin_name(config));
    let driver: &str = &config.driver_name;
    let shared = config.kind.shared_pools();

    ValidatingAdmissionPolicy {
        metadata: metadata(config, policy_name(config)),
        spec: Some(ValidatingAdmissionPolicySpec {
            failure_policy: Some("Fail".into()),
            match_constraints: Some(MatchResources {
                resource_rules: Some(vec![NamedRuleWithOperations {
                    api_groups: Some(vec!["resource.k8s.io".into()]),
                    api_versions: Some(vec!["*".into()]),
                    operations: Some(vec!["CREATE".into(), "UPDATE".into(), "DELETE".into()]),
                    resources: Some(vec!["resourceslices".into()]),
                    ..NamedRuleWithOperations::default()
                }]),
                ..MatchResources::default()
            }),
            match_conditions: Some(vec![MatchCondition {
                name: "is-the-node-plugin".into(),
                expression: format!("request.userInfo.username == {user:?}"),
            }]),
            variables: Some(vec![
                Variable {
                    name: "ownNode".into(),
                    expression: "request.userInfo.?extra[?'authentication.kubernetes.io/node-name'][?0].orValue('')"
                        .into(),
                },
                Variable {
                    name: "slices".into(),
                    expression: "request.operation == 'CREATE' ? [object.spec] : \
                                 request.operation == 'DELETE' ? [oldObject.spec] : [object.spec, oldObject.spec]"
                        .into(),
                },
                Variable {
                    name: "ownName".into(),
                    expression: format!("variables.ownNode + {:?}", pack::name_after_node(driver)),
                },
            ]),
            validations: Some(vec![
                Validation {
                    expression: "variables.ownNode != ''".into(),
                    message: Some(
                        "the token of the node plugin does not name a node: use the token that Kubernetes mounts into its pod"
                            .into(),
                    ),
                    reason: Some("Forbidden".into()),
                    ..Validation::default()
                },
                Validation {
                    expression: format!(
                        "variables.slices.all(s, s.?nodeName.orValue('') == variables.ownNode{})",
                        or_shared("s", &shared)
                    ),
                    message_expression: Some(
                        "'the node plugin on node ' + variables.ownNode + ' may only write ResourceSlices of that node'"
                            .into(),
                    ),
                    reason: Some("Forbidden".into()),
                    ..Validation::default()
                },
                Validation {
                    expression: format!("variables.slices.all(s, s.driver == {driver:?})"),
                    message: Some(format!("the node plugin may only write ResourceSlices of the driver {driver}")),
                    reason: Some("Forbidden".into()),
                    ..Validation::default()
                },
                // It may delete slices of other pools on its own node, because an earlier version may have left some.
                Validation {
                    expression: format!(
                        "request.operation == 'DELETE' || object.spec.pool.name == variables.ownNode{}",
                        or_shared("object.spec", &shared)
                    ),
                    message_expression: Some(
                        "'the node plugin on node ' + variables.ownNode + ' may only write ResourceSlices of the pool with that name'"
                            .into(),
                    ),
                    reason: Some("Forbidden".into()),
                    ..Validation::default()
                },
                Validation {
                    expression: own_name(),
                    message_expression: Some(
                        "'the node plugin on node ' + variables.ownNode + ' may only create ResourceSlices whose name begins with ' + variables.ownName"
                            .into(),
                    ),
                    reason: Some("Forbidden".into()),
                    ..Validation::default()
                },
            ]),
            ..ValidatingAdmissionPolicySpec::default()
        }),
        ..ValidatingAdmissionPolicy::default()
    }
}

/// The alternative condition for pools that do not belong to a single node, if the kind of device has any.
fn or_shared(slice: &str, pools: &[String]) -> String {
    if pools.is_empty() {
        return String::new();
    }
    // Such a slice names no node. If it could, a plugin could publish devices of another node in the shared pool.
    format!(" || {slice}.?nodeName.orValue('') == '' && {slice}.pool.name in {pools:?}")
}

/// Whether a new slice has a name that `slices::pack` gives to slices of this node. Names cannot change later.
fn own_name() -> String {
    let most = pack::MIN_KEPT;
    format!(
        "request.operation != 'CREATE' || object.metadata.name.startsWith(size(variables.ownName) > {most} ? \
         variables.ownName.substring(0, {most}) : variables.ownName)"
    )
}

/// The policy's binding, for the whole cluster.
pub(super) fn build_binding(config: &Config) -> ValidatingAdmissionPolicyBinding {
    ValidatingAdmissionPolicyBinding {
        metadata: metadata(config, policy_name(config)),
        spec: ValidatingAdmissionPolicyBindingSpec {
            policy_name: policy_name(config),
            validation_actions: vec!["Deny".into()],
            ..ValidatingAdmissionPolicyBindingSpec::default()
        },
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use k8s_openapi::api::resource::v1::Device;
    use kube_cel::{
        KubeCelExt,
        cel::{Context, Program, Value, to_value},
    };
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::{
        controller::testing::{Fabric, mk_config},
        slices::pack::NodePool,
    };

    /// Evaluates the name rule for a plugin on `node` that creates a slice with this name.
    fn may_create(node: &str, driver: &str, name: &str) -> bool {
        let mut context = Context::default().with_all();
        let own_name = format!("{node}{}", pack::name_after_node(driver));
        context.add_variable_from_value("variables", to_value(json!({"ownNode": node, "ownName": own_name})).unwrap());
        context.add_variable_from_value("request", to_value(json!({"operation": "CREATE"})).unwrap());
        context.add_variable_from_value("object", to_value(json!({"metadata": {"name": name}})).unwrap());
        match Program::compile(&super::own_name()).unwrap().execute(&context).unwrap() {
            Value::Bool(allowed) => allowed,
            other => panic!("{other:?}"),
        }
    }

    /// Whether the rules about nodes and pools let the plugin on `node-a` create a slice. `fabric` is a shared pool.
    fn may_publish(node: Option<&str>, pool: &str) -> bool {
        let config = Config { kind: Arc::new(Fabric), ..mk_config("nics", &json!({})) };
        let validations = super::build(&config, &Settings::default()).spec.unwrap().validations.unwrap();
        let mut slice = json!({"driver": "dra.nic", "pool": {"name": pool}});
        if let Some(node) = node {
            slice["nodeName"] = json!(node);
        }
        let mut context = Context::default().with_all();
        let variables = json!({"ownNode": "node-a", "slices": [slice]});
        context.add_variable_from_value("variables", to_value(variables).unwrap());
        context.add_variable_from_value("request", to_value(json!({"operation": "CREATE"})).unwrap());
        context.add_variable_from_value("object", to_value(json!({"spec": slice})).unwrap());
        [1, 3].into_iter().all(|rule: usize| {
            // Optional fields are not part of this CEL implementation.
            let expression = ["s", "object.spec"].iter().fold(validations[rule].expression.clone(), |text, slice| {
                let optional = format!("{slice}.?nodeName.orValue('')");
                text.replace(&optional, &format!("(has({slice}.nodeName) ? {slice}.nodeName : '')"))
            });
            match Program::compile(&expression).unwrap().execute(&context).unwrap() {
                Value::Bool(allowed) => allowed,
                other => panic!("{other:?}"),
            }
        })
    }

    #[test]
    fn a_slice_of_a_shared_pool_must_not_name_another_node() {
        assert!(may_publish(Some("node-a"), "node-a"));
        assert!(may_publish(None, "fabric"));
        for (node, pool) in [(Some("node-b"), "fabric"), (Some("node-b"), "node-a"), (None, "node-b"), (None, "node-a")]
        {
            assert!(!may_publish(node, pool), "{node:?} {pool}");
        }
    }

    fn names(node: &str, driver: &str) -> Vec<String> {
        let pool = NodePool { driver: driver.into(), node: node.into(), owner: None };
        pool.pack(&vec![Device::default(); 300]).into_iter().filter_map(|slice| slice.metadata.name).collect()
    }

    #[test]
    fn a_plugin_cannot_take_the_name_of_another_nodes_slice() {
        for name in names("node-b", "dra.cpu") {
            assert!(may_create("node-b", "dra.cpu", &name));
            for other in ["node-a", "node", "b", "node-b.example.com", "node-b-2"] {
                assert!(!may_create(other, "dra.cpu", &name), "{other} {name}");
            }
        }
        assert!(!may_create("node-b", "dra.cpu", "anything"));
    }

    #[test]
    fn slices_of_nodes_and_drivers_with_the_longest_names_are_allowed() {
        let labels = |filling: &str| vec![format!("a{}b", filling.repeat(61)); 4].join(".")[..251].to_owned() + "b";
        for node in [labels("n"), labels("-")] {
            let driver = "d".repeat(63);
            for name in names(&node, &driver) {
                assert!(may_create(&node, &driver, &name), "{name}");
            }
        }
    }

    proptest! {
        #[test]
        fn every_slice_that_is_packed_is_allowed(
            node in "[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?){0,3}",
            driver in "[a-z]([-a-z0-9]{0,28}[a-z0-9])?(\\.[a-z0-9]{1,30})?",
        ) {
            for name in names(&node[..node.len().min(253)], &driver) {
                prop_assert!(may_create(&node, &driver, &name), "{name}");
            }
        }
    }
}
