//! The CEL generated from policies, and the errors for invalid ones.

use rstest::rstest;
use serde_json::json;

use super::*;
use crate::api::DeviceClassPolicy;

fn policy(value: &serde_json::Value) -> DeviceClassPolicy {
    let mut policy = json!({"name": "a-class"});
    policy.as_object_mut().unwrap().extend(value.as_object().unwrap().clone());
    serde_json::from_value(policy).unwrap()
}

fn expressions(value: &serde_json::Value) -> Vec<String> {
    let selectors = device_class(&policy(value), "dra.cpu").unwrap().selectors.unwrap();
    selectors.into_iter().map(|selector| selector.cel.unwrap().expression).collect()
}

fn error(value: &serde_json::Value) -> String {
    device_class(&policy(value), "dra.cpu").unwrap_err().to_string()
}

#[test]
fn presets_become_guarded_cel() {
    let presets = ["HighPerformance", "GeneralPurpose", "Arm", "Intel", "Amd"];
    let line = |preset: &&str| format!("{preset}\n  {}", expressions(&json!({"preset": preset})).join("\n"));
    insta::assert_snapshot!(presets.iter().map(line).collect::<Vec<_>>().join("\n"));
}

#[test]
fn every_operator_becomes_guarded_cel() {
    let attributes = [
        json!({"key": "cpu.intel.com/family", "operator": "In", "values": ["Xeon", "Core"]}),
        json!({"key": "family", "operator": "NotIn", "values": ["Atom"]}),
        json!({"key": "socketID", "operator": "In", "values": [0, 1]}),
        json!({"key": "smtEnabled", "operator": "In", "values": ["true"]}),
        json!({"key": "driverVersion", "operator": "In", "values": ["1.2.3+build5"]}),
        json!({"key": "amx", "operator": "Exists"}),
        json!({"key": "amx", "operator": "DoesNotExist"}),
        json!({"key": "cores", "operator": "Gt", "value": 32}),
        json!({"key": "cores", "operator": "Lte", "value": -9_223_372_036_854_775_808_i64}),
        json!({"key": "driverVersion", "operator": "Lt", "value": "2.0.0-rc.1"}),
        json!({"key": "in", "operator": "In", "values": ["a \"quoted\" \\ \n value"]}),
    ];
    let capacity = [
        json!({"key": "memory", "operator": "Gte", "value": "16Gi"}),
        json!({"key": "cpu", "operator": "NotIn", "values": [4, "500m"]}),
        json!({"key": "dra.memory/pages", "operator": "Exists"}),
    ];
    let mut cel = Vec::new();
    for (field, matches) in [("matchAttributes", &attributes[..]), ("matchCapacity", &capacity[..])] {
        for one in matches {
            let all = expressions(&json!({field: [one]})).join("\n");
            let own = all.strip_prefix("device.driver == \"dra.cpu\" && ").expect("the driver comes first");
            cel.push(format!("{one}\n  {own}"));
        }
    }
    insta::assert_snapshot!(cel.join("\n"));
}

#[test]
fn a_match_on_the_same_key_replaces_the_presets_own() {
    let cores = |key: &str| json!({"preset": "HighPerformance", "matchAttributes": [{"key": key, "operator": "Gte", "value": 64}]});
    let [cel] = &expressions(&cores("cores"))[..] else { panic!("one") };
    assert!(cel.contains(".cores >= 64") && !cel.contains(">= 32") && cel.contains(".memoryGB >= 256"), "{cel}");
    assert_eq!(
        expressions(&cores("dra.cpu/cores")),
        expressions(&cores("cores")),
        "a bare key is in the driver's domain"
    );
    let [cel] = &expressions(&cores("cpu.intel.com/cores"))[..] else { panic!("one") };
    assert!(cel.contains(">= 32") && cel.contains(">= 64"), "another domain is another key: {cel}");
}

#[test]
fn a_match_on_one_key_of_general_purpose_replaces_the_pair() {
    let one = json!({"preset": "GeneralPurpose", "matchAttributes": [{"key": "cores", "operator": "Lt", "value": 64}]});
    let [cel] = &expressions(&one)[..] else { panic!("one") };
    assert!(cel.contains("< 64") && !cel.contains("memoryGB"), "{cel}");
}

#[test]
fn raw_selectors_are_unchanged_and_come_last() {
    let raw = ["  device.attributes[\"dra.cpu\"].cores > 3  ", "true"];
    let all = expressions(&json!({"preset": "Intel", "selectors": raw}));
    assert!(all[0].starts_with("device.driver == \"dra.cpu\" && "));
    assert_eq!(all[1..], raw);
}

#[test]
fn long_policies_are_split_into_several_selectors() {
    let values: Vec<String> = (0..32).map(|n| format!("{n:060}")).collect();
    let one = |n| json!({"key": format!("key{n}"), "operator": "In", "values": values});
    let matches: Vec<_> = (0..32).map(one).collect();
    let all = expressions(&json!({"matchAttributes": matches}));
    assert!(all.len() > 1);
    assert!(all.iter().all(|cel| cel.len() <= MAX_EXPRESSION));
    assert_eq!(all.join(" && ").matches("in device.attributes").count(), 32);
}

#[rstest]
#[case(json!({}), "preset: a device class needs a preset, matchAttributes")]
#[case(json!({"name": "Big_One", "preset": "Arm"}), "name: \"Big_One\" is not a DNS subdomain")]
#[case(json!({"name": "", "preset": "Arm"}), "name: \"\" is not a DNS subdomain")]
#[case(json!({"matchAttributes": [{"key": "cores", "operator": "Gt", "value": "true"}]}), "matchAttributes[0].value: Gt compares integers and versions, but true is a boolean: use operator In with values: [\"true\"]")]
#[case(json!({"matchAttributes": [{"key": "a", "operator": "Exists"}, {"key": "cores", "operator": "Gte", "value": "32"}]}), "matchAttributes[1].value: Gte compares integers and versions, but \"32\" is neither: write an integer without quotes")]
#[case(json!({"matchAttributes": [{"key": "v", "operator": "Lt", "value": "1.2"}]}), "matchAttributes[0].value: Lt compares integers and versions, but \"1.2\" is neither")]
#[case(json!({"matchAttributes": [{"key": "a", "operator": "In", "values": ["x", 1]}]}), "matchAttributes[0].values: the values have different types")]
#[case(json!({"matchAttributes": [{"key": "a", "operator": "In", "values": []}]}), "matchAttributes[0].operator: In takes a non-empty `values` list")]
#[case(json!({"matchAttributes": [{"key": "a", "operator": "NotIn", "value": "x"}]}), "matchAttributes[0].operator: NotIn takes a non-empty `values` list and no `value`")]
#[case(json!({"matchAttributes": [{"key": "a", "operator": "Gt", "values": [1]}]}), "matchAttributes[0].operator: Gt takes one `value`")]
#[case(json!({"matchAttributes": [{"key": "a", "operator": "Exists", "value": 1}]}), "matchAttributes[0].operator: Exists takes neither")]
#[case(json!({"matchAttributes": [{"key": "a/b/c", "operator": "Exists"}]}), "matchAttributes[0].key: \"a/b/c\": an attribute name has")]
#[case(json!({"matchAttributes": [{"key": "/b", "operator": "Exists"}]}), "matchAttributes[0].key: \"/b\": the part before the '/' must be a DNS subdomain")]
#[case(json!({"matchAttributes": [{"key": "Intel.com/b", "operator": "Exists"}]}), "matchAttributes[0].key: \"Intel.com/b\": the part before")]
#[case(json!({"matchAttributes": [{"key": "2cores", "operator": "Exists"}]}), "matchAttributes[0].key: \"2cores\": an attribute name")]
#[case(json!({"matchAttributes": [{"key": "family", "operator": "In", "values": ["a".repeat(65)]}]}), "matchAttributes[0].values[0]: \"aaaa")]
#[case(json!({"matchCapacity": [{"key": "memory", "operator": "Gte", "value": "16 GB"}]}), "matchCapacity[0].value: \"16 GB\" is not a quantity: write a number, with a unit if needed, such as 4, 500m or 16Gi")]
#[case(json!({"matchCapacity": [{"key": "memory", "operator": "In", "values": ["1Gi", "true"]}]}), "matchCapacity[0].values[1]: \"true\" is not a quantity")]
#[case(json!({"selectors": ["true", "  "]}), "selectors[1]: must not be empty")]
#[case(json!({"selectors": ["a".repeat(10_241)]}), "selectors[0]: is 10241 bytes long")]
#[case(json!({"selectors": vec!["true"; 32]}), "selectors: together with the matches there are 33 selectors")]
#[case(json!({"matchAttributes": [{"key": "x", "operator": "In", "values": vec!["\u{1}".repeat(64); 32]}]}), "matchAttributes: the values of \"x\" make an expression of")]
fn a_bad_policy_is_rejected_with_the_field_and_what_to_write(#[case] bad: serde_json::Value, #[case] message: &str) {
    let error = error(&bad);
    assert!(error.starts_with(message), "{error}");
}

#[test]
fn errors_name_the_class_and_a_bad_class_does_not_stop_the_others() {
    let bad = policy(&json!({"name": "bad", "matchAttributes": [{"key": "cores", "operator": "Gt", "value": "true"}]}));
    let good = policy(&json!({"name": "good", "preset": "Arm"}));
    let policies = [good.clone(), bad, good];
    let classes = device_classes(&policies, "dra.cpu");
    assert!(classes[0].1.is_ok());
    let message = classes[1].1.as_ref().unwrap_err().to_string();
    assert!(message.starts_with("spec.deviceClasses[1].matchAttributes[0].value: Gt compares"), "{message}");
    let message = classes[2].1.as_ref().unwrap_err().to_string();
    assert_eq!(message, "spec.deviceClasses[2].name: \"good\" is used twice: give each class its own name");
}
