//! The ValidatingAdmissionPolicy that keeps a node plugin to its own driver's slices of its own node. Pure.
//!
//! A plugin's token is bound to its pod, and the API server writes the pod's node into the request's user as
//! `authentication.kubernetes.io/node-name` (KEP-4193). A plugin that was taken over can so publish nothing, and delete
//! nothing, for any other node.

use k8s_openapi::api::admissionregistration::v1::{
    MatchCondition, MatchResources, NamedRuleWithOperations, ValidatingAdmissionPolicy,
    ValidatingAdmissionPolicyBinding, ValidatingAdmissionPolicyBindingSpec, ValidatingAdmissionPolicySpec, Validation,
    Variable,
};

use super::{Settings, metadata, plugin_name, policy_name};
use crate::api::DraDriverConfig;

/// The policy.
pub(super) fn build(config: &DraDriverConfig, settings: &Settings) -> ValidatingAdmissionPolicy {
    let user = format!("system:serviceaccount:{}:{}", settings.namespace, plugin_name(config));
    let driver = config.spec.driver_name();
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
            ]),
            validations: Some(vec![
                Validation {
                    expression: "variables.ownNode != ''".into(),
                    message: Some(
                        "the node plugin's token names no node: it must be the token of its pod, as Kubernetes mounts it"
                            .into(),
                    ),
                    reason: Some("Forbidden".into()),
                    ..Validation::default()
                },
                Validation {
                    expression: "variables.slices.all(s, s.?nodeName.orValue('') == variables.ownNode)".into(),
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
            ]),
            ..ValidatingAdmissionPolicySpec::default()
        }),
        ..ValidatingAdmissionPolicy::default()
    }
}

/// Its binding, for the whole cluster.
pub(super) fn build_binding(config: &DraDriverConfig) -> ValidatingAdmissionPolicyBinding {
    ValidatingAdmissionPolicyBinding {
        metadata: metadata(config, policy_name(config)),
        spec: ValidatingAdmissionPolicyBindingSpec {
            policy_name: policy_name(config),
            validation_actions: vec!["Deny".into()],
            ..ValidatingAdmissionPolicyBindingSpec::default()
        },
    }
}
