//! Every DraDriverConfig in the documentation and the samples is one that the API server would take. IO: reads the checkout.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::{
    fs,
    path::{Path, PathBuf},
};

use dra_operator::{
    api::parse,
    controller::build::{Settings, children},
};
use serde_json::Value;

/// Files with one of these endings below the folder.
fn files(folder: &Path, endings: &[&str], found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display())) {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files(&path, endings, found);
        } else if path.extension().is_some_and(|ending| endings.iter().any(|wanted| ending == *wanted)) {
            found.push(path);
        }
    }
}

/// The YAML in a file: all of it, or what is fenced as such.
fn yaml(path: &Path) -> Vec<String> {
    let text = fs::read_to_string(path).unwrap();
    if path.extension().is_some_and(|ending| ending != "md") {
        return vec![text];
    }
    let fenced = text.split("```yaml\n").skip(1);
    fenced.filter_map(|rest| rest.split("```").next()).map(str::to_owned).collect()
}

#[test]
fn every_config_in_the_documents_would_be_taken() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut paths = vec![root.join("README.md")];
    paths.retain(|path| path.exists());
    for folder in ["docs", "config/samples", "demo"] {
        files(&root.join(folder), &["md", "yaml"], &mut paths);
    }
    let settings = Settings { namespace: "dra-operator".into(), image: "image".into(), ..Settings::default() };
    let mut configs = 0;
    for path in paths {
        for block in yaml(&path).iter().filter(|block| block.contains("kind: DraDriverConfig")) {
            let documents: Vec<Value> =
                serde_saphyr::from_multiple(block).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            for document in documents.iter().filter(|document| document["kind"] == "DraDriverConfig") {
                configs += 1;
                let config = parse(document).unwrap_or_else(|faults| panic!("{}: {faults:?}", path.display()));
                assert_eq!(children(&config, &settings).unbuildable, [], "{}", path.display());
            }
        }
    }
    assert!(configs >= 2, "{configs} found");
}
