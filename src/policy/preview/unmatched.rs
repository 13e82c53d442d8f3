//! Why a class matches none of the devices there are, in words for the admin who wrote its policy. Pure.

use std::collections::BTreeSet;

use k8s_openapi::api::resource::v1::{CELDeviceSelector, Device, DeviceClassSpec, DeviceSelector};

use crate::{
    api::{DeviceClassPolicy, Match, MatchOperator, Scalar},
    policy::{
        cel,
        demand::{Demand, Kind, demands},
    },
};

use super::{
    Matcher,
    evaluate::{Fact, attribute, capacity},
    screen::Name,
};

/// How many of the devices' values are shown.
const SHOWN: usize = 5;

/// Why none of `devices`, all of `driver`, is in the class: the first demand of the policy that leaves none over.
pub fn why_nothing(policy: &DeviceClassPolicy, driver: &str, devices: &[&Device]) -> String {
    let Ok(demands) = demands(policy, driver) else { return "its policy cannot be turned into CEL".into() };
    let mut left = devices.to_vec();
    let matcher = |expression: String| Matcher::new(&class([cel::driver(driver), expression]));
    // What only Kubernetes can tell rules nothing out.
    let admits = |matcher: &Matcher, device: &Device| matcher.matches(driver, device) != Ok(false);
    for demand in &demands {
        let matcher = matcher(demand.expression());
        left.retain(|device| admits(&matcher, device));
        if left.is_empty() {
            let alone = devices.iter().any(|device| admits(&matcher, device));
            return if alone { among_others(&demand.field) } else { explain(demand, driver, devices) };
        }
    }
    for (index, selector) in policy.selectors.iter().enumerate() {
        let field = format!("selectors[{index}]");
        let matcher = matcher(selector.clone());
        left.retain(|device| admits(&matcher, device));
        if left.is_empty() {
            if devices.iter().any(|device| admits(&matcher, device)) {
                return among_others(&field);
            }
            let unknown = matcher.names.iter().find(|name| values(name, driver, devices).next().is_none());
            return match unknown {
                Some(name) => format!("{field}: {}", unknown_name(name, driver, devices)),
                None => format!("{field} is true for no device"),
            };
        }
    }
    "no device meets all that it asks for".into()
}

fn class(expressions: impl IntoIterator<Item = String>) -> DeviceClassSpec {
    let selector = |expression| DeviceSelector { cel: Some(CELDeviceSelector { expression }) };
    DeviceClassSpec { selectors: Some(expressions.into_iter().map(selector).collect()), ..DeviceClassSpec::default() }
}

fn among_others(field: &str) -> String {
    format!("{field}: no device that meets what comes before it meets this too, though others do")
}

/// Why no device meets a demand.
fn explain(demand: &Demand, driver: &str, devices: &[&Device]) -> String {
    let field = &demand.field;
    let Kind::One(asked, term) = &demand.kind else { return format!("{field}: no device meets it") };
    let (is_capacity, domain, id) = term.subject();
    let name = Name { is_capacity, domain: domain.to_owned(), id: id.to_owned() };
    let (mut kinds, mut shown, mut more) = (BTreeSet::new(), BTreeSet::new(), false);
    for fact in values(&name, driver, devices) {
        kinds.insert(fact.kind());
        if shown.len() < SHOWN {
            shown.insert(fact);
        } else {
            more |= !shown.contains(&fact);
        }
    }
    if kinds.is_empty() {
        return format!("{field}: {}", unknown_name(&name, driver, devices));
    }
    let subject = format!("{domain}/{id}");
    if asked.operator == MatchOperator::DoesNotExist {
        return format!("{field}: every device has {subject}");
    }
    let mut shown = shown.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    if more {
        shown.push_str(", …");
    }
    match other_kind(asked, &kinds) {
        Some((kind, hint)) if !is_capacity => format!("{field}: {subject} is {kind} on the devices ({shown}): {hint}"),
        _ => format!("{field}: no device has such a value of {subject}; there is {shown}"),
    }
}

/// The kind that an attribute has on the devices and how to write it, if what it is compared with is none of it.
fn other_kind(asked: &Match, kinds: &BTreeSet<&'static str>) -> Option<(&'static str, &'static str)> {
    let scalars: Vec<_> = asked.values.iter().flatten().chain(&asked.value).collect();
    let fits = |kind: &str| {
        scalars.iter().any(|scalar| match scalar {
            Scalar::Int(_) => kind == INTEGER,
            Scalar::Bool(_) => kind == BOOLEAN || kind == STRING,
            Scalar::String(text) => {
                let is_version = semver::Version::parse(text).is_ok();
                let is_order = !matches!(asked.operator, MatchOperator::In | MatchOperator::NotIn);
                kind == STRING && !is_order || kind == VERSION && is_version
            }
        })
    };
    let [kind] = kinds.iter().copied().collect::<Vec<_>>()[..] else { return None };
    if scalars.is_empty() || fits(kind) {
        return None;
    }
    let hint = match kind {
        INTEGER => "compare it with an integer, written without quotes",
        BOOLEAN => "use operator In with \"true\" or \"false\"",
        STRING => "use operator In or NotIn with strings, written with quotes",
        VERSION => "compare it with a semantic version, such as 1.2.3",
        _ => "only a selector can look into it",
    };
    Some((kind, hint))
}

pub(super) const INTEGER: &str = "an integer";
pub(super) const BOOLEAN: &str = "a boolean";
pub(super) const STRING: &str = "a string";
pub(super) const VERSION: &str = "a version";

/// The values that devices have under a name.
fn values<'a>(name: &'a Name, driver: &'a str, devices: &'a [&Device]) -> impl Iterator<Item = Fact> + use<'a> {
    let value = move |device: &&Device| {
        if name.is_capacity { capacity(device, name, driver) } else { attribute(device, name, driver) }
    };
    devices.iter().filter_map(value)
}

/// That no device has a name, and which one is like it.
fn unknown_name(name: &Name, driver: &str, devices: &[&Device]) -> String {
    let Name { is_capacity, domain, id } = name;
    let what = if *is_capacity { "capacity" } else { "attribute" };
    let wanted = format!("{domain}/{id}");
    let known: BTreeSet<String> = devices
        .iter()
        .flat_map(|device| -> Box<dyn Iterator<Item = &String>> {
            if *is_capacity {
                Box::new(device.capacity.iter().flat_map(|all| all.keys()))
            } else {
                Box::new(device.attributes.iter().flat_map(|all| all.keys()))
            }
        })
        .map(|key| if key.contains('/') { key.clone() } else { format!("{driver}/{key}") })
        .collect();
    let last = |key: &str| key.rsplit('/').next().unwrap_or_default().to_lowercase();
    let like = known.iter().find(|known| last(known) == id.to_lowercase());
    let hint = like.map(|like| format!("; there is {like}")).unwrap_or_default();
    format!("no device has the {what} {wanted}{hint}")
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    fn device(family: &str, cores: i64) -> Device {
        serde_json::from_value(json!({
            "name": "d",
            "attributes": {
                "cores": {"int": cores}, "avx512": {"bool": true}, "kernel": {"version": "6.1.0"},
                "vendor": {"string": "Intel"}, "cpu.intel.com/family": {"string": family},
            },
            "capacity": {"memory": {"value": "16Gi"}},
        }))
        .unwrap()
    }

    fn why(policy: &Value) -> String {
        let mut whole = json!({"name": "a"});
        whole.as_object_mut().unwrap().extend(policy.as_object().unwrap().clone());
        let policy = serde_json::from_value(whole).unwrap();
        let (small, large) = (device("Core", 4), device("Xeon", 64));
        why_nothing(&policy, "dra.cpu", &[&small, &large])
    }

    #[rstest]
    #[case(json!({"key": "coers", "operator": "Exists"}), "matchAttributes[0]: no device has the attribute dra.cpu/coers")]
    #[case(
        json!({"key": "family", "operator": "In", "values": ["Xeon"]}),
        "matchAttributes[0]: no device has the attribute dra.cpu/family; there is cpu.intel.com/family"
    )]
    #[case(
        json!({"key": "cores", "operator": "In", "values": ["64"]}),
        "matchAttributes[0]: dra.cpu/cores is an integer on the devices (4, 64): compare it with an integer, written without quotes"
    )]
    #[case(
        json!({"key": "avx512", "operator": "In", "values": ["yes"]}),
        "matchAttributes[0]: dra.cpu/avx512 is a boolean on the devices (true): use operator In with \"true\" or \"false\""
    )]
    #[case(
        json!({"key": "vendor", "operator": "Gte", "value": 3}),
        "matchAttributes[0]: dra.cpu/vendor is a string on the devices (Intel): use operator In or NotIn with strings, written with quotes"
    )]
    #[case(
        json!({"key": "kernel", "operator": "In", "values": ["six"]}),
        "matchAttributes[0]: dra.cpu/kernel is a version on the devices (6.1.0): compare it with a semantic version, such as 1.2.3"
    )]
    #[case(
        json!({"key": "cores", "operator": "Gt", "value": 64}),
        "matchAttributes[0]: no device has such a value of dra.cpu/cores; there is 4, 64"
    )]
    #[case(json!({"key": "cores", "operator": "DoesNotExist"}), "matchAttributes[0]: every device has dra.cpu/cores")]
    fn a_match_that_no_device_meets_is_named_with_the_cause(#[case] one: Value, #[case] wanted: &str) {
        assert_eq!(why(&json!({"matchAttributes": [one]})), wanted);
    }

    #[rstest]
    #[case(json!({"preset": "Amd"}), "preset Amd: no device has such a value of dra.cpu/vendor; there is Intel")]
    #[case(json!({"preset": "HighPerformance"}), "preset HighPerformance: no device has the attribute dra.cpu/memoryGB")]
    #[case(
        json!({"matchCapacity": [{"key": "disk", "operator": "Exists"}]}),
        "matchCapacity[0]: no device has the capacity dra.cpu/disk"
    )]
    #[case(
        json!({"matchCapacity": [{"key": "memory", "operator": "Gt", "value": "1Ti"}]}),
        "matchCapacity[0]: no device has such a value of dra.cpu/memory; there is 16Gi"
    )]
    #[case(
        json!({"preset": "Intel", "selectors": ["true", "\"model\" in device.attributes[\"dra.cpu\"]"]}),
        "selectors[1]: no device has the attribute dra.cpu/model"
    )]
    #[case(json!({"selectors": ["device.attributes[\"dra.cpu\"].cores == 5"]}), "selectors[0] is true for no device")]
    #[case(
        json!({"matchAttributes": [
            {"key": "cpu.intel.com/family", "operator": "In", "values": ["Core"]}, {"key": "cores", "operator": "Gte", "value": 64},
        ]}),
        "matchAttributes[1]: no device that meets what comes before it meets this too, though others do"
    )]
    fn so_is_what_else_rules_all_devices_out(#[case] policy: Value, #[case] wanted: &str) {
        assert_eq!(why(&policy), wanted);
    }
}
