//! `spec.deviceClasses`: the policies from which DeviceClasses are built. Pure.

use k8s_openapi::api::resource::v1::DeviceClassConfiguration;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};

use super::strict;

/// One DeviceClass to create. A device is in the class if it matches the preset, every match and every selector.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.preset) || (has(self.matchAttributes) && size(self.matchAttributes) > 0) || (has(self.matchCapacity) && size(self.matchCapacity) > 0) || (has(self.selectors) && size(self.selectors) > 0)")
    .message("a device class needs a preset, matchAttributes, matchCapacity or selectors: an empty policy would match every device of the driver"))]
#[x_kube(validation = Rule::new("!has(self.matchAttributes) || self.matchAttributes.all(m, !has(m.value) || string(m.value).matches('^-?[0-9]+$') || isSemver(string(m.value)))")
    .message("in matchAttributes, Gt, Gte, Lt and Lte compare numbers or versions: write `value: 32` or `value: \"1.2.0\"`"))]
#[x_kube(validation = Rule::new("!has(self.matchCapacity) || self.matchCapacity.all(m, (!has(m.value) || isQuantity(string(m.value))) && (!has(m.values) || m.values.all(v, isQuantity(string(v)))))")
    .message("matchCapacity compares quantities: write `value: 16Gi` or `value: 4`"))]
pub struct DeviceClassPolicy {
    /// Name of the DeviceClass: a DNS subdomain.
    #[schemars(length(max = 253))]
    #[x_kube(validation = Rule::new("self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$')")
        .message("the name of a device class must be a DNS subdomain (a-z, 0-9, '-', '.'), such as high-performance"))]
    pub name: String,

    /// A predefined policy to start from. A match on the same key replaces the preset's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preset: Option<Preset>,

    /// Conditions on attributes, like the matchExpressions of a node selector; all must be met.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub match_attributes: Vec<Match>,

    /// Conditions on capacities; all must be met. Values are quantities.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub match_capacity: Vec<Match>,

    /// CEL expressions over `device`, copied unchanged; all must be true. Guard each attribute, as in `"cores" in
    /// device.attributes["dra.cpu"] && …`: otherwise a device without it makes claims fail.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), inner(length(min = 1, max = 10240)))]
    pub selectors: Vec<String>,

    /// Lets pods request the class as an extended resource, such as `example.com/fast-cpu`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    #[x_kube(validation = Rule::new("self.matches('^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$') && !self.startsWith('kubernetes.io/') && !self.contains('.kubernetes.io/')")
        .message("extendedResourceName must be domain/name outside kubernetes.io, such as example.com/fast-cpu"))]
    pub extended_resource_name: Option<String>,

    /// Opaque parameters for the driver, as in a DeviceClass.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "config")]
    #[schemars(length(max = 32), schema_with = "any_objects")]
    pub config: Vec<DeviceClassConfiguration>,
}

/// A predefined policy to start from; a match on the same key replaces the preset's. `HighPerformance`: machines with
/// at least 32 cores and 256 GB of memory. `GeneralPurpose`: all others. `Arm`, `Intel`, `Amd`: CPUs of that
/// architecture or vendor. There is no default.
#[derive(JsonSchema, Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Preset {
    /// Large servers; see the documentation for the thresholds.
    HighPerformance,
    /// All machines that are not `HighPerformance`; see the documentation.
    GeneralPurpose,
    /// 64-bit Arm.
    Arm,
    /// Intel x86.
    Intel,
    /// AMD x86.
    Amd,
}

/// One match on an attribute or a capacity.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.operator in ['In', 'NotIn'] ? has(self.values) && size(self.values) > 0 && !has(self.value) : true")
    .message("operators In and NotIn need a non-empty `values` list and no `value`"))]
#[x_kube(validation = Rule::new("self.operator in ['Exists', 'DoesNotExist'] ? !has(self.values) && !has(self.value) : true")
    .message("operators Exists and DoesNotExist take neither `value` nor `values`"))]
#[x_kube(validation = Rule::new("self.operator in ['Gt', 'Gte', 'Lt', 'Lte'] ? has(self.value) && !has(self.values) : true")
    .message("operators Gt, Gte, Lt and Lte need a `value` and no `values`"))]
pub struct Match {
    /// Name of the attribute or capacity: `domain/name`, or only a name, in which case the domain is the driver name.
    #[schemars(length(max = 96))]
    #[x_kube(validation = Rule::new("self.matches('^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z_][A-Za-z0-9_]{0,31}$')")
        .message("a key must be a name or domain/name, where the name is a C identifier, such as cores or cpu.intel.com/family"))]
    pub key: String,
    /// How the device's value is compared: `In` and `NotIn` with `values`; `Gt`, `Gte`, `Lt` and `Lte` with `value`; `Exists`
    /// and `DoesNotExist` with neither.
    pub operator: MatchOperator,
    /// The values for In and NotIn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub values: Option<Vec<Scalar>>,
    /// The value for Gt, Gte, Lt and Lte.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<Scalar>,
}

/// How a device's value is compared.
#[derive(JsonSchema, Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum MatchOperator {
    /// Is one of `values`.
    In,
    /// Exists, and is none of `values`.
    NotIn,
    /// Exists, with any value.
    Exists,
    /// Does not exist.
    DoesNotExist,
    /// Is greater than `value`.
    Gt,
    /// Is greater than or equal to `value`.
    Gte,
    /// Is less than `value`.
    Lt,
    /// Is less than or equal to `value`.
    Lte,
}

/// A value as the admin writes it. The schema allows integers and strings (structural schemas have no other union), so
/// booleans are written `"true"` or `"false"`, as in a node selector.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "IntOrString", into = "IntOrString")]
pub enum Scalar {
    /// `"true"`, `"false"`.
    Bool(bool),
    /// A 64-bit integer.
    Int(i64),
    /// A string, a version (with Gt … Lte, semver) or a quantity (in matchCapacity).
    String(String),
}

/// A [`Scalar`] on the wire.
#[derive(Clone, Serialize, Deserialize)]
#[serde(untagged)]
enum IntOrString {
    Int(i64),
    String(String),
}

impl From<IntOrString> for Scalar {
    fn from(wire: IntOrString) -> Self {
        match wire {
            IntOrString::Int(int) => Self::Int(int),
            IntOrString::String(text) => text.parse().map_or(Self::String(text), Self::Bool),
        }
    }
}

impl From<Scalar> for IntOrString {
    fn from(scalar: Scalar) -> Self {
        match scalar {
            Scalar::Bool(bool) => Self::String(bool.to_string()),
            Scalar::Int(int) => Self::Int(int),
            Scalar::String(text) => Self::String(text),
        }
    }
}

impl JsonSchema for Scalar {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Scalar".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        // maxLength bounds the estimated cost of CEL rules over the value.
        schemars::json_schema!({"x-kubernetes-int-or-string": true, "maxLength": 64})
    }
}

fn config<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<DeviceClassConfiguration>, D::Error> {
    strict::read("spec.deviceClasses[].config", deserializer)
}

fn any_objects(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({"type": "array", "maxItems": 32, "items": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_boolean_is_written_as_a_string_and_stays_one_on_the_wire() {
        let scalars: Vec<Scalar> = serde_json::from_str(r#"["true", "false", "True", 32]"#).unwrap();
        assert_eq!(scalars, [Scalar::Bool(true), Scalar::Bool(false), Scalar::String("True".into()), Scalar::Int(32)]);
        assert_eq!(serde_json::to_string(&scalars).unwrap(), r#"["true","false","True",32]"#);
    }
}
