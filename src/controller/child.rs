//! The kinds of object that the controller creates for a `DraDriverConfig`, and one such object. Pure.

use std::fmt;

use k8s_openapi::api::{
    admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding},
    apps::v1::DaemonSet,
    core::v1::ServiceAccount,
    rbac::v1::{ClusterRole, ClusterRoleBinding},
    resource::v1::DeviceClass,
};
use kube::core::ApiResource;
use serde_json::Value;

/// A kind of child. Children are applied in this order, so that a plugin starts only once its rights and the limits on
/// them exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(missing_docs, reason = "the names are Kubernetes'")]
pub enum ChildKind {
    ServiceAccount,
    ClusterRole,
    ClusterRoleBinding,
    ValidatingAdmissionPolicy,
    ValidatingAdmissionPolicyBinding,
    DaemonSet,
    DeviceClass,
}

impl ChildKind {
    /// Every kind, in the order of application.
    pub const ALL: [Self; 7] = [
        Self::ServiceAccount,
        Self::ClusterRole,
        Self::ClusterRoleBinding,
        Self::ValidatingAdmissionPolicy,
        Self::ValidatingAdmissionPolicyBinding,
        Self::DaemonSet,
        Self::DeviceClass,
    ];

    /// The kind's name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ServiceAccount => "ServiceAccount",
            Self::ClusterRole => "ClusterRole",
            Self::ClusterRoleBinding => "ClusterRoleBinding",
            Self::ValidatingAdmissionPolicy => "ValidatingAdmissionPolicy",
            Self::ValidatingAdmissionPolicyBinding => "ValidatingAdmissionPolicyBinding",
            Self::DaemonSet => "DaemonSet",
            Self::DeviceClass => "DeviceClass",
        }
    }

    /// The kind's API resource.
    pub fn resource(self) -> ApiResource {
        match self {
            Self::ServiceAccount => ApiResource::erase::<ServiceAccount>(&()),
            Self::ClusterRole => ApiResource::erase::<ClusterRole>(&()),
            Self::ClusterRoleBinding => ApiResource::erase::<ClusterRoleBinding>(&()),
            Self::ValidatingAdmissionPolicy => ApiResource::erase::<ValidatingAdmissionPolicy>(&()),
            Self::ValidatingAdmissionPolicyBinding => ApiResource::erase::<ValidatingAdmissionPolicyBinding>(&()),
            Self::DaemonSet => ApiResource::erase::<DaemonSet>(&()),
            Self::DeviceClass => ApiResource::erase::<DeviceClass>(&()),
        }
    }

    /// Whether the kind grants or limits the plugin's rights. The plugin must not run without it.
    pub const fn gates_plugin(self) -> bool {
        match self {
            Self::ServiceAccount
            | Self::ClusterRole
            | Self::ClusterRoleBinding
            | Self::ValidatingAdmissionPolicy
            | Self::ValidatingAdmissionPolicyBinding => true,
            Self::DaemonSet | Self::DeviceClass => false,
        }
    }

    /// Whether objects of the kind are namespaced. If so, they are in the operator's namespace.
    pub const fn is_namespaced(self) -> bool {
        match self {
            Self::ServiceAccount | Self::DaemonSet => true,
            Self::ClusterRole
            | Self::ClusterRoleBinding
            | Self::ValidatingAdmissionPolicy
            | Self::ValidatingAdmissionPolicyBinding
            | Self::DeviceClass => false,
        }
    }
}

impl fmt::Display for ChildKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Names one child; namespaced kinds are in the operator's namespace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChildKey {
    /// The kind.
    pub kind: ChildKind,
    /// The name.
    pub name: String,
}

impl fmt::Display for ChildKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind, self.name)
    }
}

/// One object that the controller wants, exactly as it is applied.
#[derive(Clone, Debug, PartialEq)]
pub struct Child {
    /// Its kind and name.
    pub key: ChildKey,
    /// The object, with `apiVersion` and `kind`.
    pub object: Value,
}
