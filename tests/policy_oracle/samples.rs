//! Policies and devices that are difficult for each other. Pure.

use dra_operator::api::{DeviceClassPolicy, Match, MatchOperator, Preset, Scalar};
use proptest::{
    prelude::*,
    strategy::ValueTree as _,
    test_runner::{Config, RngSeed, TestRunner},
};
use serde_json::{Value, json};

use crate::oracle::Offered;

/// Random values, the same in every run.
pub fn sample<T: std::fmt::Debug>(strategy: &impl Strategy<Value = T>, count: usize, seed: u64) -> Vec<T> {
    let mut runner = TestRunner::new(Config { rng_seed: RngSeed::Fixed(seed), ..Config::default() });
    (0..count).map(|_| strategy.new_tree(&mut runner).unwrap().current()).collect()
}

/// Few names, so that policies often name a device's attributes. Some are reserved words.
pub fn any_name() -> impl Strategy<Value = String> {
    prop::sample::select(vec!["cores", "family", "in", "version", "_", "type", "null", "int"]).prop_map(str::to_owned)
}

pub fn any_key() -> impl Strategy<Value = String> {
    let domain = prop::sample::select(vec!["", "", "dra.cpu/", "cpu.intel.com/", "dra.net/", "a/"]);
    (domain, any_name()).prop_map(|(domain, name)| format!("{domain}{name}"))
}

/// Strings that are hard to quote, or look like something else.
pub fn any_text() -> impl Strategy<Value = String> {
    prop_oneof![
        prop::sample::select(vec![
            "Xeon",
            "",
            "true",
            "false",
            "32",
            "\"",
            "\\",
            "\\\"",
            "a\nb",
            "\u{0}\u{1}\u{7f}\u{85}",
            "\u{2028}\u{202e}\u{feff}",
            "'''",
            "\"\"\"",
            "// no comment",
            "${x}",
            "é 🦀",
            "\\u0041",
            "1.2.3",
            "1.2.3+build",
            "1.10.0-rc.1",
            "0.0.0",
            "1.2",
        ])
        .prop_map(str::to_owned),
        "\\PC{0,12}",
        any::<String>().prop_filter("at most 64 bytes", |text| text.len() <= 64),
    ]
}

pub fn any_version() -> impl Strategy<Value = String> {
    prop::sample::select(vec![
        "1.2.3",
        "1.2.3+build",
        "1.10.0-rc.1",
        "1.10.0-rc.2",
        "1.10.0",
        "0.0.0",
        "0.0.0-0",
        "99999.0.0",
    ])
    .prop_map(str::to_owned)
}

pub fn any_int() -> impl Strategy<Value = i64> {
    prop_oneof![Just(0), Just(32), Just(-1), Just(i64::MIN), Just(i64::MAX), 30_i64..34]
}

pub fn any_quantity() -> impl Strategy<Value = String> {
    prop::sample::select(vec![
        "0", "1", "500m", "1Gi", "1024Mi", "1.5Gi", "1e3", "1k", "-1", "1n", "0.1n", "7Ei", "20Ei", "9e18", "1E",
    ])
    .prop_map(str::to_owned)
}

pub fn any_attribute() -> impl Strategy<Value = Value> {
    prop_oneof![
        any::<bool>().prop_map(|value| json!({"bool": value})),
        any_int().prop_map(|value| json!({"int": value})),
        any_text().prop_map(|value| json!({"string": value})),
        any_version().prop_map(|value| json!({"version": value})),
        prop::collection::vec(any_int(), 1..3).prop_map(|values| json!({"ints": values})),
        prop::collection::vec(any_text(), 1..3).prop_map(|values| json!({"strings": values})),
        prop::collection::vec(any_version(), 1..3).prop_map(|values| json!({"versions": values})),
    ]
}

pub fn any_device() -> impl Strategy<Value = Offered> {
    let attributes = prop::collection::btree_map(any_key(), any_attribute(), 0..6);
    let quantity = any_quantity().prop_map(|quantity| json!({"value": quantity}));
    let capacity = prop::collection::btree_map(any_key(), quantity, 0..4);
    let driver = prop::sample::select(vec!["dra.cpu", "dra.cpu", "dra.cpu", "dra.net"]);
    (driver, attributes, capacity).prop_map(|(driver, mut attributes, mut capacity)| {
        // The same name with and without its domain: either may be seen, so the answer is undefined.
        for name in attributes.keys().cloned().collect::<Vec<_>>() {
            attributes.remove(&format!("{driver}/{name}"));
        }
        for name in capacity.keys().cloned().collect::<Vec<_>>() {
            capacity.remove(&format!("{driver}/{name}"));
        }
        let device = json!({"name": "d", "attributes": attributes, "capacity": capacity});
        (driver.to_owned(), serde_json::from_value(device).unwrap())
    })
}

pub fn any_match(scalar: impl Strategy<Value = Scalar> + Clone) -> impl Strategy<Value = Match> {
    use MatchOperator::{DoesNotExist, Exists, Gt, Gte, In, Lt, Lte, NotIn};
    let operator = prop::sample::select(vec![In, In, NotIn, Exists, DoesNotExist, Gt, Gte, Lt, Lte]);
    (any_key(), operator, prop::collection::vec(scalar, 1..4)).prop_map(|(key, operator, values)| match operator {
        In | NotIn => Match { key, operator, values: Some(values), value: None },
        Exists | DoesNotExist => Match { key, operator, values: None, value: None },
        _ => Match { key, operator, values: None, value: values.into_iter().next() },
    })
}

pub fn any_policy() -> impl Strategy<Value = DeviceClassPolicy> {
    let scalar = prop_oneof![
        any::<bool>().prop_map(Scalar::Bool),
        any_int().prop_map(Scalar::Int),
        any_int().prop_map(Scalar::Int),
        any_text().prop_map(Scalar::String),
        any_version().prop_map(Scalar::String),
    ];
    let quantity = prop_oneof![any_quantity().prop_map(Scalar::String), any_int().prop_map(Scalar::Int)];
    let preset = prop::sample::select(vec![
        None,
        None,
        None,
        Some(Preset::HighPerformance),
        Some(Preset::GeneralPurpose),
        Some(Preset::Arm),
    ]);
    let attributes = prop::collection::vec(any_match(scalar), 0..3);
    let capacity = prop::collection::vec(any_match(quantity), 0..2);
    (preset, attributes, capacity).prop_map(|(preset, match_attributes, match_capacity)| DeviceClassPolicy {
        name: "a-class".into(),
        preset,
        match_attributes,
        match_capacity,
        ..DeviceClassPolicy::default()
    })
}
