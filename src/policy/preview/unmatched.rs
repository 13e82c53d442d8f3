//! Explains why a class matches no device, to the admin who wrote its policy. Pure.

use std::collections::BTreeSet;

use k8s_openapi::api::resource::v1::{CELDeviceSelector, Device, DeviceClassSpec, DeviceSelector};

use crate::{
    api::{DeviceClassPolicy, Match, MatchOperator, Scalar},
    policy::{
        cel,
        demand::{Demand, Kind, demands},
    },
    suggest::closest,
};

use super::{
    Matcher,
    evaluate::{FieldValue, ValueType, attribute, capacity},
    screen::Name,
};

/// Maximum number of the devices' values in a message.
const SHOWN: usize = 5;

/// Explains why none of `devices`, all from `driver`, is in the class: names the first demand or selector that leaves
/// no device.
pub fn why_nothing(policy: &DeviceClassPolicy, driver: &str, devices: &[&Device]) -> String {
    let Ok(demands) = demands(policy, driver) else { return "the policy cannot be translated into CEL".into() };
    let mut left = devices.to_vec();
    let matcher = |expression: String| Matcher::new(&class([cel::driver(driver), expression]));
    // A selector that only Kubernetes can evaluate rules nothing out.
    let admits = |matcher: &Matcher, device: &Device| matcher.matches(driver, device) != Ok(false);

    for demand in &demands {
        let matcher = matcher(demand.expression());
        left.retain(|device| admits(&matcher, device));
        if left.is_empty() {
            let alone = devices.iter().any(|device| admits(&matcher, device));
            return if alone { only_together(&demand.field) } else { explain(demand, driver, devices) };
        }
    }

    for (index, selector) in policy.selectors.iter().enumerate() {
        let field = format!("selectors[{index}]");
        let matcher = matcher(selector.clone());
        left.retain(|device| admits(&matcher, device));
        if left.is_empty() {
            if devices.iter().any(|device| admits(&matcher, device)) {
                return only_together(&field);
            }
            let unknown = matcher.names.iter().find(|name| values(name, driver, devices).next().is_none());
            return match unknown {
                Some(name) => format!("{field}: {}", unknown_name(name, driver, devices)),
                None => format!("{field}: the selector is false for every device"),
            };
        }
    }
    "no device meets all conditions".into()
}

fn class(expressions: impl IntoIterator<Item = String>) -> DeviceClassSpec {
    let selector = |expression| DeviceSelector { cel: Some(CELDeviceSelector { expression }) };
    DeviceClassSpec { selectors: Some(expressions.into_iter().map(selector).collect()), ..DeviceClassSpec::default() }
}

fn only_together(field: &str) -> String {
    format!("{field}: no device meets both this and the conditions before it (some devices meet this one alone)")
}

/// Why no device passes a demand.
fn explain(demand: &Demand, driver: &str, devices: &[&Device]) -> String {
    let field = &demand.field;
    let Kind::One(asked, term) = &demand.kind else { return format!("{field}: no device meets this condition") };
    let (is_capacity, domain, id) = term.subject();
    let name = Name { is_capacity, domain: domain.to_owned(), id: id.to_owned() };

    // The values that the devices have instead.
    let (mut types, mut shown, mut more) = (BTreeSet::new(), BTreeSet::new(), false);
    for value in values(&name, driver, devices) {
        types.insert(value.value_type());
        if shown.len() < SHOWN {
            shown.insert(value);
        } else {
            more |= !shown.contains(&value);
        }
    }
    if types.is_empty() {
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

    match other_type(asked, &types) {
        Some((is, hint)) if !is_capacity => format!("{field}: {subject} is {is} on the devices ({shown}): {hint}"),
        _ => format!("{field}: no device matches on {subject}; values found: {shown}"),
    }
}

/// If the match compares the attribute only with values of other types: the attribute's type on all devices, and how to
/// write a match on it.
fn other_type(asked: &Match, types: &BTreeSet<ValueType>) -> Option<(ValueType, &'static str)> {
    let scalars: Vec<_> = asked.values.iter().flatten().chain(&asked.value).collect();
    let fits = |value_type: ValueType| {
        scalars.iter().any(|scalar| match scalar {
            Scalar::Int(_) => value_type == ValueType::Int,
            Scalar::Bool(_) => matches!(value_type, ValueType::Bool | ValueType::String),
            Scalar::String(text) => {
                let is_version = semver::Version::parse(text).is_ok();
                let is_order = !matches!(asked.operator, MatchOperator::In | MatchOperator::NotIn);
                value_type == ValueType::String && !is_order || value_type == ValueType::Version && is_version
            }
        })
    };
    let [value_type] = types.iter().copied().collect::<Vec<_>>()[..] else { return None };
    if scalars.is_empty() || fits(value_type) {
        return None;
    }

    let hint = match value_type {
        ValueType::Int => "compare it with an integer, written without quotes",
        ValueType::Bool => "use operator In with \"true\" or \"false\"",
        ValueType::String => "use operator In or NotIn with strings, written with quotes",
        ValueType::Version => "compare it with a semantic version, such as 1.2.3",
        ValueType::Quantity | ValueType::List | ValueType::Nothing => "only a CEL selector can test it",
    };
    Some((value_type, hint))
}

/// The devices' values for a name.
fn values<'a>(name: &'a Name, driver: &'a str, devices: &'a [&Device]) -> impl Iterator<Item = FieldValue> + use<'a> {
    let value = move |device: &&Device| {
        if name.is_capacity { capacity(device, name, driver) } else { attribute(device, name, driver) }
    };
    devices.iter().filter_map(value)
}

/// The message that no device has the name, with the most similar name that exists.
fn unknown_name(name: &Name, driver: &str, devices: &[&Device]) -> String {
    let Name { is_capacity, domain, id } = name;
    let what = if *is_capacity { "capacity" } else { "attribute" };
    let known: BTreeSet<(&str, &str)> = devices
        .iter()
        .flat_map(|device| -> Box<dyn Iterator<Item = &String>> {
            if *is_capacity {
                Box::new(device.capacity.iter().flat_map(|all| all.keys()))
            } else {
                Box::new(device.attributes.iter().flat_map(|all| all.keys()))
            }
        })
        .map(|key| key.split_once('/').unwrap_or((driver, key)))
        .collect();

    // The name often exists in another domain (`cpu.intel.com/family`). Of equally close names, those in the requested
    // domain come first.
    let (same_domain, other_domains): (Vec<_>, Vec<_>) = known.iter().partition(|(known, _)| known == domain);
    let candidates = || same_domain.iter().chain(&other_domains);
    let meant = closest(id, candidates().map(|(_, id)| *id));
    let meant = meant.and_then(|meant| candidates().find(|(_, id)| *id == meant));
    let hint = meant.map(|(domain, id)| format!("; did you mean {domain}/{id}?")).unwrap_or_default();
    format!("no device has the {what} {domain}/{id}{hint}")
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
    #[case(json!({"key": "coers", "operator": "Exists"}), "matchAttributes[0]: no device has the attribute dra.cpu/coers; did you mean dra.cpu/cores?")]
    #[case(
        json!({"key": "family", "operator": "In", "values": ["Xeon"]}),
        "matchAttributes[0]: no device has the attribute dra.cpu/family; did you mean cpu.intel.com/family?"
    )]
    #[case(
        json!({"key": "cpu.amd.com/coers", "operator": "Exists"}),
        "matchAttributes[0]: no device has the attribute cpu.amd.com/coers; did you mean dra.cpu/cores?"
    )]
    #[case(
        json!({"key": "cpu.intel.com/famly", "operator": "Exists"}),
        "matchAttributes[0]: no device has the attribute cpu.intel.com/famly; did you mean cpu.intel.com/family?"
    )]
    #[case(json!({"key": "serial", "operator": "Exists"}), "matchAttributes[0]: no device has the attribute dra.cpu/serial")]
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
        "matchAttributes[0]: no device matches on dra.cpu/cores; values found: 4, 64"
    )]
    #[case(json!({"key": "cores", "operator": "DoesNotExist"}), "matchAttributes[0]: every device has dra.cpu/cores")]
    fn a_match_that_no_device_meets_is_named_with_the_cause(#[case] one: Value, #[case] wanted: &str) {
        assert_eq!(why(&json!({"matchAttributes": [one]})), wanted);
    }

    #[rstest]
    #[case(json!({"preset": "Amd"}), "preset Amd: no device matches on dra.cpu/vendor; values found: Intel")]
    #[case(json!({"preset": "HighPerformance"}), "preset HighPerformance: no device has the attribute dra.cpu/memoryGB")]
    #[case(
        json!({"matchCapacity": [{"key": "disk", "operator": "Exists"}]}),
        "matchCapacity[0]: no device has the capacity dra.cpu/disk"
    )]
    #[case(
        json!({"matchCapacity": [{"key": "memroy", "operator": "Exists"}]}),
        "matchCapacity[0]: no device has the capacity dra.cpu/memroy; did you mean dra.cpu/memory?"
    )]
    #[case(
        json!({"matchCapacity": [{"key": "memory", "operator": "Gt", "value": "1Ti"}]}),
        "matchCapacity[0]: no device matches on dra.cpu/memory; values found: 16Gi"
    )]
    #[case(
        json!({"preset": "Intel", "selectors": ["true", "\"model\" in device.attributes[\"dra.cpu\"]"]}),
        "selectors[1]: no device has the attribute dra.cpu/model"
    )]
    #[case(json!({"selectors": ["device.attributes[\"dra.cpu\"].cores == 5"]}), "selectors[0]: the selector is false for every device")]
    #[case(
        json!({"matchAttributes": [
            {"key": "cpu.intel.com/family", "operator": "In", "values": ["Core"]}, {"key": "cores", "operator": "Gte", "value": 64},
        ]}),
        "matchAttributes[1]: no device meets both this and the conditions before it (some devices meet this one alone)"
    )]
    fn any_other_condition_that_rules_out_all_devices_is_named_too(#[case] policy: Value, #[case] wanted: &str) {
        assert_eq!(why(&policy), wanted);
    }

    #[test]
    fn of_two_similar_names_the_one_in_the_wanted_domain_is_suggested() {
        let attributes =
            json!({"dra.cpu/serial": {"int": 1}, "example.com/serial": {"int": 1}, "z.com/serial": {"int": 1}});
        let device = serde_json::from_value(json!({"name": "d", "attributes": attributes})).unwrap();
        for domain in ["dra.cpu", "example.com", "z.com"] {
            let key = format!("{domain}/seral");
            let policy =
                serde_json::from_value(json!({"name": "a", "matchAttributes": [{"key": key, "operator": "Exists"}]}));
            let why = why_nothing(&policy.unwrap(), "dra.cpu", &[&device]);
            assert!(why.ends_with(&format!("did you mean {domain}/serial?")), "{why}");
        }
    }
}
