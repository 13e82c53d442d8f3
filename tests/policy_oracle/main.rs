//! Compares how this project reads expressions, quantities and objects with how Kubernetes' own libraries read them:
//! builds a small Go program, `tests/oracle`, and asks it. Needs Go.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use dra_operator::{
    api::{DeviceClassPolicy, Granularity, Match, MatchOperator, Preset, Scalar},
    cpuset::CpuSet,
    drivers::cpu::CpuDevices,
    host::Host,
    policy::{
        device_class,
        preview::{MatchError, Matcher, syntax_error},
    },
    slices::{
        pack::{NodePool, node_owner},
        quantity::Amount,
    },
};
use k8s_openapi::api::resource::v1::{Device, DeviceClass, DeviceClassSpec};
use proptest::prelude::*;
use serde_json::{Value, json};

#[path = "../machines/mod.rs"]
mod machines;
mod oracle;
mod pools;
mod samples;

use machines::servers::{KINDS, server};
use oracle::{Offered, ask, question};
use samples::{any_device, any_int, any_policy, any_quantity, any_text, any_version, sample};

/// The API server's limit on the estimated cost of a selector.
const MAX_COST: u64 = 1_000_000;

fn expressions(class: &DeviceClassSpec) -> Vec<String> {
    let selectors = class.selectors.iter().flatten();
    selectors.map(|selector| selector.cel.as_ref().unwrap().expression.clone()).collect()
}

#[test]
fn every_class_is_total_and_cheap_and_matches_what_kubernetes_matches() {
    let devices = sample(&any_device(), 100, 1);
    let policies = sample(&any_policy(), 300, 2);
    let classes: Vec<_> =
        policies.iter().filter_map(|policy| Some((policy, device_class(policy, "dra.cpu").ok()?))).collect();
    assert!(classes.len() > 150, "most policies are good: {}", classes.len());
    let questions: Vec<Value> =
        classes.iter().flat_map(|(_, class)| expressions(class)).map(|text| question(&text, &devices)).collect();
    let mut answers = ask(&questions).into_iter();
    let mut found = 0;
    for (policy, class) in &classes {
        let mut all = vec![true; devices.len()];
        for text in expressions(class) {
            let answer = answers.next().unwrap();
            assert_eq!(answer.error, "", "{text} of {policy:?}");
            assert!(answer.max_cost <= MAX_COST, "{text} costs {}", answer.max_cost);
            for ((all, one), device) in all.iter_mut().zip(&answer.matches).zip(&devices) {
                assert_eq!(one.error, "", "{text}\naborts on {device:?}");
                *all &= one.r#match;
            }
        }
        let matcher = Matcher::new(class);
        for ((driver, device), kubernetes) in devices.iter().zip(all) {
            assert_eq!(
                matcher.matches(driver, device),
                Ok(kubernetes),
                "{:?}\non {driver} {device:?}",
                expressions(class)
            );
            found += usize::from(kubernetes);
        }
    }
    assert!(found > 200, "devices and policies meet: {found}");
}

#[test]
fn kubernetes_accepts_every_class() {
    let policies = sample(&any_policy(), 200, 3);
    let mut classes: Vec<DeviceClassSpec> =
        policies.iter().filter_map(|policy| device_class(policy, "dra.cpu").ok()).collect();
    let values: Vec<Scalar> = (0..32).map(|n| Scalar::String(format!("{n:060}"))).collect();
    let large = |n| Match {
        key: format!("cpu.intel.com/key{n}"),
        operator: MatchOperator::In,
        values: Some(values.clone()),
        value: None,
    };
    let large = DeviceClassPolicy {
        name: "large".into(),
        match_attributes: (0..32).map(large).collect(),
        ..DeviceClassPolicy::default()
    };
    classes.push(device_class(&large, "dra.cpu").unwrap());
    let object = |spec: &DeviceClassSpec| {
        let metadata = json!({"name": "a-class"});
        json!({"class": DeviceClass { metadata: serde_json::from_value(metadata).unwrap(), spec: Some(spec.clone()) }})
    };
    let questions: Vec<Value> = classes.iter().map(object).collect();
    for (class, answer) in classes.iter().zip(ask(&questions)) {
        assert_eq!(answer.error, "", "{class:?}");
    }
}

/// What people write in raw selectors.
const RAW: [&str; 28] = [
    r#"device.attributes["dra.cpu"].cores >= 32"#,
    r#"device.attributes["dra.cpu"].cores in [32, 33]"#,
    r#"device.attributes["dra.cpu"].family == "Xeon""#,
    r#"device.attributes["dra.cpu"].family.startsWith("X")"#,
    r#"has(device.attributes["dra.cpu"].family) && "family" in device.attributes["dra.cpu"]"#,
    r#"has(device.attributes["gone.example.com"].family)"#,
    r#"has(device.attributes.a.family) || !("family" in device.attributes.a)"#,
    r#"type(device.attributes["dra.cpu"].cores) in [int, type(1)]"#,
    r#"type(device.attributes["dra.cpu"].cores) in [bool] || type(device.attributes["dra.cpu"].cores) in [string]"#,
    r#"type(device.attributes["dra.cpu"].version) in [type(semver("1.2.3"))]"#,
    r#"device.attributes["dra.cpu"].version.compareTo(semver("1.2.3")) >= 0"#,
    r#"device.attributes["dra.cpu"].version.isGreaterThan(semver("1.2.2"))"#,
    r#"device.attributes["dra.cpu"].version.isLessThan(semver("1.10.0"))"#,
    r#"device.capacity["dra.cpu"].cores.compareTo(quantity("1Gi")) == 0"#,
    r#"device.capacity["dra.cpu"].cores.isGreaterThan(quantity("1k"))"#,
    r#"device.capacity["dra.cpu"].cores == quantity("1024Mi")"#,
    r#"isSemver("1.2.3") && !isSemver("1.2") && isQuantity("1Gi") && !isQuantity("1 Gi")"#,
    r#"device.attributes["dra.cpu"].cores + 1 > 32 && device.attributes["dra.cpu"].cores * 2 < 70"#,
    r#"device.attributes["dra.cpu"].cores / 0 == 1"#,
    r#"device.attributes["dra.cpu"].cores - 1 >= -2 && device.attributes["dra.cpu"].cores % 2 == 0"#,
    r#"-device.attributes["dra.cpu"].cores <= -32"#,
    r#"device.attributes["dra.cpu"].cores > 0 ? device.driver == "dra.cpu" : device.driver == "dra.net""#,
    r#"device.attributes["dra.cpu"].in == "Xeon" || true"#,
    r#"device.attributes["dra.cpu"]["in"] == "Xeon" || true"#,
    r#"!(device.attributes["dra.cpu"].family == "Xeon") && device.allowMultipleAllocations"#,
    r#"["Xeon", "Atom"].exists(f, f == device.attributes["dra.cpu"].family)"#,
    r#"[1, 32].all(n, n <= device.attributes["dra.cpu"].cores)"#,
    r#"device.attributes["dra.cpu"].family.contains("eo") && device.attributes["dra.cpu"].family.endsWith("n")"#,
];

/// Well-formed expressions from the corners of the grammar.
const CORNERS: [&str; 12] = [
    r#"cel.bind(a, device.attributes["dra.cpu"], a.?cores.orValue(0) > 3)"#,
    r#"device.attributes[?"dra.cpu"].hasValue() && optional.of(1).hasValue()"#,
    r#"[?optional.none(), 1, ].size() == 1 && {?"a": optional.of(1), "b": 2,}.b == 2"#,
    r#"r"\d+\" != '\x00' && """a "quote" in it""" != '''it's''' && "\u00e9\t\101" != '\U0001F600'"#,
    r#"b'\xff\377' != B"\x00" && br'\d' != bR"\d""#,
    "0x1F == 31 && 1u != 2u && 1.5e3 > .5 && -1 < 3 && -0x1 < 0 && 0xFFu > 1u && 1.0 > 0.1",
    "device.driver.matches('^dra') // a comment\n && true",
    "[1, 2].exists_one(x, x > 1) && {'a': 1}.all(k, k == 'a') && [1].map(x, x > 0, x + 1) == [2]",
    "[1].all(i, v, v > i) && duration('1h') < duration('2h') && !!true && - -1 == 1",
    "'é😀' == \"é😀\" && true ? false || !false : true",
    "\t(device.driver\r\n\u{c}== 'x') || null == null",
    "semver('1.2.3').isGreaterThan(semver('1.0.0')) && ip('::1').family() == 6 && type(1) == int",
];

#[test]
fn what_kubernetes_can_parse_is_not_reported_as_a_syntax_error() {
    let device = serde_json::from_value(json!({"name": "d"})).unwrap();
    let offered: Vec<Offered> = vec![("dra.cpu".to_owned(), device)];
    let all: Vec<&str> = RAW.into_iter().chain(CORNERS).collect();
    let questions: Vec<Value> = all.iter().map(|text| question(text, &offered)).collect();
    let mut read = 0;
    for (text, answer) in all.iter().zip(ask(&questions)) {
        let ours = syntax_error(text);
        assert!(ours.is_none() || answer.error.contains("Syntax error"), "{text}: {ours:?}, {}", answer.error);
        read += usize::from(answer.error.is_empty());
    }
    assert!(read > 35, "most are read: {read}");
}

#[test]
fn a_raw_selector_that_is_evaluated_gives_what_kubernetes_gives() {
    // Each attribute has one type, as with a real driver. Comparisons across types are tested above.
    let attribute = |name: &'static str, value: BoxedStrategy<Value>| {
        prop::option::of(value).prop_map(move |value| Some((name, value?)))
    };
    let attributes = (
        attribute("cores", any_int().prop_map(|value| json!({"int": value})).boxed()),
        attribute("family", any_text().prop_map(|value| json!({"string": value})).boxed()),
        attribute("version", any_version().prop_map(|value| json!({"version": value})).boxed()),
    );
    let device = (attributes, prop::option::of(any_quantity())).prop_map(|((a, b, c), quantity)| {
        let attributes: std::collections::BTreeMap<_, _> = [a, b, c].into_iter().flatten().collect();
        let capacity = quantity.map(|quantity| json!({"cores": {"value": quantity}}));
        let device = json!({"name": "d", "attributes": attributes, "capacity": capacity});
        ("dra.cpu".to_owned(), serde_json::from_value(device).unwrap())
    });
    let devices: Vec<Offered> = sample(&device, 120, 4);
    let questions: Vec<Value> = RAW.iter().map(|text| question(text, &devices)).collect();
    for (text, answer) in RAW.iter().zip(ask(&questions)) {
        let class = json!({"selectors": [{"cel": {"expression": text}}]});
        let matcher = Matcher::new(&serde_json::from_value(class).unwrap());
        if !answer.error.is_empty() {
            let ours = matcher.matches(&devices[0].0, &devices[0].1);
            assert!(matches!(ours, Err(MatchError::Unknown(_))), "{text}: {ours:?}, and Kubernetes: {}", answer.error);
            continue;
        }
        for ((driver, device), kubernetes) in devices.iter().zip(&answer.matches) {
            let ours = matcher.matches(driver, device);
            match &ours {
                Ok(ours) => assert!(
                    kubernetes.error.is_empty() && *ours == kubernetes.r#match,
                    "{text}\non {device:?}: {ours:?}, and Kubernetes: {kubernetes:?}"
                ),
                Err(MatchError::Aborts(_)) => assert!(
                    !kubernetes.error.is_empty(),
                    "{text}\non {device:?}: {ours:?}, and Kubernetes: {kubernetes:?}"
                ),
                Err(MatchError::Unknown(_)) => {}
            }
        }
    }
}

#[test]
fn quantities_have_the_amounts_that_kubernetes_reads() {
    let number = "[-+]?(0{0,2}[0-9]{0,20}(\\.[0-9]{0,18})?)([KMGTPE]i|[numkMGTPE]|e-?[0-9]{1,2}|E[0-9])?";
    let mut texts = sample(&number, 3000, 5);
    texts.extend(
        ["", "1", "1.5Gi", "0.1n", "8Ei", "16Ei", "-16Ei", "1 Gi", "1K", "1e", "0x1", "1e18", "1e19"]
            .map(str::to_owned),
    );
    let questions: Vec<Value> = texts.iter().map(|text| json!({"quantity": text})).collect();
    let mut read = 0;
    for (text, answer) in texts.iter().zip(ask(&questions)) {
        if let Some(amount) = Amount::parse(text) {
            assert_eq!((answer.error.as_str(), answer.nano), ("", amount.nano().to_string()), "{text:?}");
            read += 1;
        } else {
            let digits = text.chars().any(|c| c.is_ascii_digit());
            let far = text.contains(['e', 'E', '.']) || answer.nano.len() > 37;
            assert!(!answer.error.is_empty() || !digits || far, "{text:?} is {} to Kubernetes", answer.nano);
        }
    }
    assert!(read > 2000, "most are quantities: {read}");
}

fn demo_devices(name: &str, granularity: Granularity) -> Vec<Device> {
    let root = tempfile::tempdir().unwrap();
    server(name).unwrap().write(root.path()).unwrap();
    CpuDevices::new(&Host::at(root.path()).observe_machine(), granularity, &CpuSet::default())
        .inventory()
        .devices
        .clone()
}

#[test]
fn kubernetes_accepts_the_slices_of_every_server_of_the_demo() {
    let mut slices = Vec::new();
    for (kind, _) in KINDS {
        for granularity in [Granularity::Core, Granularity::Thread] {
            let owner = Some(node_owner(kind, "c0ffee00-0000-4000-8000-000000000000"));
            let pool = NodePool { driver: "dra.cpu".into(), node: kind.into(), owner };
            slices.extend(pool.pack(&demo_devices(kind, granularity)));
            slices.extend(pool.pack(&[]));
        }
    }
    let questions: Vec<Value> = slices.iter().map(|slice| json!({"slice": slice})).collect();
    for (slice, answer) in slices.iter().zip(ask(&questions)) {
        assert_eq!(answer.error, "", "{:?}", slice.metadata.name);
    }
}

#[test]
fn the_presets_and_the_demos_claims_choose_the_intended_servers() {
    let preset = |preset| {
        let policy = DeviceClassPolicy { name: "a-class".into(), preset: Some(preset), ..DeviceClassPolicy::default() };
        expressions(&device_class(&policy, "dra.cpu").unwrap())
    };
    let claim = |generation: u8, cores: u8, memory: u16| {
        let attributes = r#"device.attributes["cpu.intel.com"]"#;
        let mut all = preset(Preset::HighPerformance);
        all.push(format!(
            r#""family" in {attributes} && {attributes}.family == "Xeon" && {attributes}.generation >= {generation} && {attributes}.cores >= {cores} && {attributes}.memoryGB >= {memory}"#
        ));
        all
    };
    let xeons = ["xeon5-64c-512g", "xeon4-32c-256g", "xeon-small"];
    let cases = [
        (preset(Preset::HighPerformance), vec!["xeon5-64c-512g", "xeon4-32c-256g", "epyc", "arm"]),
        (preset(Preset::GeneralPurpose), vec!["xeon-small"]),
        (preset(Preset::Arm), vec!["arm"]),
        (preset(Preset::Intel), xeons.to_vec()),
        (preset(Preset::Amd), vec!["epyc"]),
        (claim(5, 64, 512), vec!["xeon5-64c-512g"]),
        (claim(4, 32, 256), vec!["xeon5-64c-512g", "xeon4-32c-256g"]),
    ];
    let devices: Vec<Offered> = KINDS
        .iter()
        .map(|(kind, _)| ("dra.cpu".to_owned(), demo_devices(kind, Granularity::Core).swap_remove(0)))
        .collect();
    for (selectors, meant) in cases {
        let questions: Vec<Value> = selectors.iter().map(|text| question(text, &devices)).collect();
        let answers = ask(&questions);
        let chosen: Vec<&str> = KINDS
            .iter()
            .enumerate()
            // The first selector that is false ends the evaluation; only those before it must not fail.
            .filter(|(index, _)| answers.iter().all(|answer| answer.matches[*index].r#match))
            .map(|(_, (kind, _))| *kind)
            .collect();
        assert_eq!(chosen, meant, "{selectors:?}");
    }
}
