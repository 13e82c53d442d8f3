//! The chart holds copies, as Helm reads no file outside a chart. IO: reads the checkout.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::{fs, path::Path};

fn the_copy_is_the_original(copy: &str, original: &str) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |file: &str| fs::read_to_string(root.join(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
    let (copy_text, original_text) = (read(copy), read(original));
    assert!(copy_text == original_text, "{copy} differs from {original}: run `make generate`");
}

#[test]
fn the_charts_crd_is_the_generated_one() {
    the_copy_is_the_original(
        "charts/dra-operator/files/crds/dradriverconfigs.dra-operator.dev.yaml",
        "crds/dradriverconfigs.dra-operator.dev.yaml",
    );
}

#[test]
fn the_charts_roles_are_those_of_config() {
    for role in ["controller-clusterrole.yaml", "controller-role.yaml", "viewer-clusterrole.yaml"] {
        the_copy_is_the_original(&format!("charts/dra-operator/files/rbac/{role}"), &format!("config/rbac/{role}"));
    }
}

#[test]
fn chart_and_crate_have_one_version() {
    let chart =
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("charts/dra-operator/Chart.yaml")).unwrap();
    let chart: serde_json::Value = serde_saphyr::from_str(&chart).unwrap();
    assert_eq!(chart["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(chart["appVersion"], env!("CARGO_PKG_VERSION"));
}
