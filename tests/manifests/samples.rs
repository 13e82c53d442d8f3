//! The samples, and what the controller renders from them.

use std::fs;

use super::{
    objects,
    tools::{dra_operator, kubeconform, root},
};

#[test]
fn every_sample_is_valid_for_kubernetes_and_the_crd() {
    let mut samples = 0;
    for file in fs::read_dir(root().join("config/samples")).unwrap() {
        let file = file.unwrap().path();
        kubeconform(&fs::read_to_string(&file).unwrap()).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        samples += 1;
    }
    assert!(samples >= 3, "config/samples has {samples}");
}

#[test]
fn a_field_that_the_crd_does_not_know_is_found() {
    let sample = fs::read_to_string(root().join("config/samples/cpu.yaml")).unwrap();
    let said = kubeconform(&sample.replace("granularity: Core", "granularty: Core")).unwrap_err();
    assert!(said.contains("granularty"), "{said}");
}

#[test]
fn the_controller_renders_valid_objects_from_the_sample() {
    let rendered = dra_operator(&["render", "-f", "config/samples/cpu.yaml", "--image", "registry.example/operator:1"]);
    kubeconform(&rendered).unwrap_or_else(|error| panic!("{error}\n{rendered}"));
    let kinds = objects(&rendered);
    for class in ["high-performance", "general-purpose", "arm", "intel", "amd"] {
        assert!(kinds.contains_key(&format!("DeviceClass /{class}")), "{class} is not in {:?}", kinds.keys());
    }
}
