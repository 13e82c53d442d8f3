//! Menus of made-up clusters.

use serde_json::{Value, json};

use super::*;
use crate::{
    cli::menu::offer::{Devices, menu},
    controller::{judge::usage, observe::ClaimFacts},
    policy::preview::Matcher,
    slices::pool::pools,
};
use k8s_openapi::api::resource::v1::{DeviceClass, ResourceClaim, ResourceSlice};

/// A server with identical devices, in one slice.
struct Server {
    name: &'static str,
    vendor: &'static str,
    family: &'static str,
    generation: i64,
    cores: i64,
    memory_gb: i64,
    architecture: &'static str,
}

const XEON_5: Server = Server {
    name: "xeon5",
    vendor: "Intel",
    family: "Xeon",
    generation: 5,
    cores: 64,
    memory_gb: 512,
    architecture: "amd64",
};
const XEON_4: Server = Server { name: "xeon4", generation: 4, cores: 32, memory_gb: 256, ..XEON_5 };
const XEON_SMALL: Server = Server { name: "small", generation: 3, cores: 8, memory_gb: 32, ..XEON_5 };
const ARM: Server = Server {
    name: "arm",
    vendor: "Arm",
    family: "Neoverse",
    generation: 1,
    cores: 80,
    memory_gb: 256,
    architecture: "arm64",
};

impl Server {
    fn slice(&self, number: usize) -> Value {
        let node = format!("{}-{number}", self.name);
        let device = |core: i64| {
            json!({"name": format!("core-0-{core}"), "attributes": {
                "vendor": {"string": self.vendor}, "family": {"string": self.family}, "generation": {"int": self.generation},
                "cores": {"int": self.cores}, "memoryGB": {"int": self.memory_gb}, "architecture": {"string": self.architecture},
            }})
        };
        let devices: Vec<Value> = (0..self.cores).map(device).collect();
        json!({"metadata": {"name": node}, "spec": {"driver": "dra.cpu", "nodeName": node, "devices": devices,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1}}})
    }
}

fn class(name: &str, spec: &Value) -> Value {
    let policy =
        json!({"name": name, "preset": spec["preset"], "selectors": spec.get("selectors").unwrap_or(&json!([]))});
    let spec = crate::policy::device_class(&serde_json::from_value(policy).unwrap(), "dra.cpu").unwrap();
    json!({"metadata": {"name": name}, "spec": spec})
}

fn claim(node: &str, cores: std::ops::Range<usize>, more: &Value) -> Value {
    let result = |core| {
        let mut result = json!({"request": "r", "driver": "dra.cpu", "pool": node, "device": format!("core-0-{core}")});
        result.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        result
    };
    let results: Vec<Value> = cores.map(result).collect();
    json!({"metadata": {"name": "c"}, "spec": {}, "status": {"allocation": {"devices": {"results": results}}}})
}

fn typed<T: serde::de::DeserializeOwned>(values: impl IntoIterator<Item = Value>) -> Vec<T> {
    values.into_iter().map(|value| serde_json::from_value(value).unwrap()).collect()
}

/// Classes, slices and claims.
type Fleet = (Vec<DeviceClass>, Vec<ResourceSlice>, Vec<ResourceClaim>);

fn fleet() -> Fleet {
    let classes = ["HighPerformance", "GeneralPurpose", "Arm", "Intel", "Amd"]
        .map(|preset| class(&preset.to_lowercase(), &json!({"preset": preset})));
    let mut slices = vec![XEON_5.slice(1), XEON_5.slice(2), XEON_4.slice(1), XEON_4.slice(2), XEON_SMALL.slice(1)];
    slices.extend((1..=5).map(|number| ARM.slice(number)));
    slices[4]["spec"]["devices"][0]["taints"] = json!([{"key": "dra.cpu/hot", "effect": "NoSchedule"}]);
    slices[4]["spec"]["devices"][1]["taints"] = json!([{"key": "dra.cpu/warm", "effect": "None"}]);
    let claims = [
        claim("xeon5-1", 0..4, &json!({})),
        claim("xeon5-2", 0..4, &json!({"adminAccess": true})),
        claim("xeon4-1", 0..2, &json!({"shareID": "a"})),
    ];
    (typed(classes), typed(slices), typed(claims))
}

fn menu_of_the_fleet() -> Menu {
    let (classes, slices, claims) = fleet();
    menu(&classes, &slices, &claims)
}

#[test]
fn the_status_of_a_config_counts_as_the_menu_does() {
    let (classes, slices, claims) = fleet();
    let specs: Vec<_> = classes.iter().map(|class| class.spec.clone().unwrap()).collect();
    let names: Vec<_> = classes.iter().map(|class| class.metadata.name.as_deref().unwrap()).collect();
    let claims: Vec<_> = claims.iter().map(ClaimFacts::of).collect();
    let pools = pools(&slices);
    let usage = usage::count("dra.cpu", &pools.iter().collect::<Vec<_>>(), &claims, &names, |class, device| {
        let index = names.iter().position(|name| *name == class).unwrap();
        Ok(Matcher::new(&specs[index]).matches("dra.cpu", device).unwrap())
    });

    let from_status: Vec<_> =
        usage.classes.iter().map(|class| (class.name.clone(), class.devices, class.allocated)).collect();
    let menu = menu_of_the_fleet();
    let sum = |class: &Class, count: fn(&Devices) -> usize| {
        i32::try_from(class.machines.iter().map(|machines| count(&machines.devices)).sum::<usize>()).unwrap()
    };
    let mut from_menu: Vec<_> = menu
        .classes
        .iter()
        .map(|class| (class.name.clone(), sum(class, |devices| devices.total), sum(class, |devices| devices.allocated)))
        .collect();
    from_menu.sort_by_key(|(name, ..)| names.iter().position(|known| known == name));
    assert_eq!(from_status, from_menu);
    assert_eq!((usage.devices.allocated, usage.devices.tainted), (4, 1), "a share and admin access take nothing");
}

#[test]
fn a_fleet_is_shown_by_class_and_type_of_machine() {
    insta::assert_snapshot!(table(&menu_of_the_fleet()));
    assert_eq!(notes(&menu_of_the_fleet()), Vec::<String>::new());
}

#[test]
fn wide_shows_names_and_what_is_tainted() {
    insta::assert_snapshot!(wide(&menu_of_the_fleet()));
}

#[test]
fn the_menu_as_yaml_has_the_same_content() {
    let mut menu = menu_of_the_fleet();
    menu.classes.retain(|class| class.name == "highperformance");
    insta::assert_snapshot!(serde_saphyr::to_string(&menu).unwrap());
}

#[test]
fn a_class_that_cannot_be_evaluated_is_unknown_with_the_reason() {
    let raw = r#"cel.bind(a, device.attributes["dra.cpu"], a.cores > 3)"#;
    let classes = [class("bound", &json!({"preset": "Intel", "selectors": [raw]}))];
    let menu = menu(&typed(classes), &typed([XEON_4.slice(1)]), &[]);
    assert!(table(&menu).contains("bound   <unknown>   <unknown>   <unknown>   <none>"), "{}", table(&menu));
    let [note] = &notes(&menu)[..] else { panic!("one note") };
    assert!(
        note.starts_with("note: class bound may have more devices: only Kubernetes can evaluate the selector"),
        "{note}"
    );
}

#[test]
fn broken_pools_offer_nothing_and_are_noted() {
    let mut slices: Vec<Value> = (10..22).map(|number| XEON_4.slice(number)).collect();
    for slice in &mut slices {
        slice["spec"]["pool"]["resourceSliceCount"] = json!(2);
    }
    let menu = menu(&typed([class("intel", &json!({"preset": "Intel"}))]), &typed(slices), &[]);
    assert!(table(&menu).contains("intel   0       0         0"), "{}", table(&menu));
    let notes = notes(&menu);
    assert_eq!(notes.len(), 11);
    assert_eq!(
        notes[0],
        "note: Kubernetes allocates nothing from pool xeon4-10 of driver dra.cpu: 1 of 2 slices of generation 1 exist"
    );
    assert_eq!(notes[10], "note: the same applies to 2 more pools");
}

#[test]
fn an_empty_cluster_says_what_to_do() {
    let menu = menu(&[], &[], &[]);
    assert_eq!((table(&menu), wide(&menu)), (String::new(), String::new()));
    assert_eq!(notes(&menu), ["No DeviceClasses found: create a DraDriverConfig with spec.deviceClasses."]);
}
