//! The documentation and the samples are correct: valid objects, claims that fail on no device, commands and their output,
//! links, metrics. IO: reads the checkout, runs the product.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use dra_operator::{
    api::{Granularity, parse},
    controller::{
        self,
        build::{Settings, children},
        config::Config,
    },
    cpuset::CpuSet,
    drivers::cpu::CpuDevices,
    host::Host,
    plugin::metrics::PluginMetrics,
    policy::{device_class, preview::Matcher},
};
use k8s_openapi::api::resource::v1::{Device, DeviceSelector};
use prometheus_client::registry::Registry;
use serde_json::Value;

mod machines;

use machines::servers::{KINDS, server};

const OPERATOR: &str = env!("CARGO_BIN_EXE_dra-operator");
const NOTES: &str = "charts/dra-operator/templates/NOTES.txt";

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(file: &str) -> String {
    fs::read_to_string(root().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

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

/// The fenced blocks of a language.
fn fenced<'a>(text: &'a str, language: &str) -> Vec<&'a str> {
    // Every second part is between fences.
    let blocks = text.split("```").skip(1).step_by(2);
    blocks
        .filter_map(|block| block.split_once('\n'))
        .filter(|(of, _)| *of == language)
        .map(|(_, block)| block)
        .collect()
}

/// Every YAML document of this kind that people are shown, with its file.
fn shown(kind: &str) -> Vec<(String, Value)> {
    let mut blocks = Vec::new();
    let mut paths = vec![root().join("README.md")];
    for folder in ["docs", "config/samples", "demo"] {
        files(&root().join(folder), &["md", "yaml"], &mut paths);
    }
    for path in paths {
        let text = fs::read_to_string(&path).unwrap();
        let name = path.strip_prefix(root()).unwrap().display().to_string();
        if name.ends_with("md") {
            blocks.extend(fenced(&text, "yaml").into_iter().map(|block| (name.clone(), block.to_owned())));
        } else {
            blocks.push((name, text));
        }
    }
    // The chart's notes indent it, for `kubectl apply -f -`.
    let notes = read(NOTES);
    let lines = notes.lines().skip_while(|line| !line.ends_with("<<END")).skip(1).take_while(|line| *line != "  END");
    blocks.push((NOTES.into(), lines.map(|line| line[2..].to_owned() + "\n").collect()));

    let mut found = Vec::new();
    for (name, block) in blocks.iter().filter(|(_, block)| block.contains(&format!("kind: {kind}\n"))) {
        let documents: Vec<Value> =
            serde_saphyr::from_multiple(block).unwrap_or_else(|error| panic!("{name}: {error}"));
        found.extend(documents.into_iter().filter(|one| one["kind"] == kind).map(|one| (name.clone(), one)));
    }
    found
}

fn configs() -> Vec<(String, Config)> {
    let parsed = |(name, document): (String, Value)| {
        let config = parse(&document).unwrap_or_else(|faults| panic!("{name}: {faults:?}"));
        let config = Config::try_from(config).unwrap_or_else(|fault| panic!("{name}: {fault}"));
        (name, config)
    };
    shown("DraDriverConfig").into_iter().map(parsed).collect()
}

#[test]
fn every_config_in_the_documents_is_valid() {
    let settings = Settings { namespace: "dra-operator".into(), image: "image".into(), ..Settings::default() };
    let configs = configs();
    for (name, config) in &configs {
        assert_eq!(children(config, &settings).unbuildable, [], "{name}");
    }
    let names: Vec<&str> = configs.iter().map(|(name, _)| name.as_str()).collect();
    for wanted in ["README.md", "docs/cluster-admin.md", "config/samples/cpu.yaml", NOTES] {
        assert!(names.contains(&wanted), "{wanted} is not among {names:?}");
    }
}

#[test]
fn the_readme_shows_the_sample() {
    let documents = shown("DraDriverConfig");
    let spec = |wanted: &str| {
        let (_, document) = documents.iter().find(|(name, _)| name == wanted).unwrap();
        parse(document).unwrap().spec
    };
    assert_eq!(spec("README.md"), spec("config/samples/cpu.yaml"));
}

/// One device of each of the demo's servers.
fn devices() -> Vec<Device> {
    let device = |(kind, _): (&str, u32)| {
        let root = tempfile::tempdir().unwrap();
        server(kind).unwrap().write(root.path()).unwrap();
        let machine = Host::at(root.path()).observe_machine();
        CpuDevices::new(&machine, Granularity::Core, &CpuSet::default()).inventory().devices[0].clone()
    };
    KINDS.into_iter().map(device).collect()
}

/// The class and the selectors of every choice in the requests of a claim or a template.
fn choices(claim: &Value) -> Vec<(String, Vec<DeviceSelector>)> {
    let spec = claim.pointer("/spec/spec").unwrap_or(&claim["spec"]);
    let requests = spec["devices"]["requests"].as_array().unwrap().iter();
    let choices = requests.flat_map(|request| match &request["firstAvailable"] {
        Value::Array(choices) => choices.clone(),
        _ => vec![request["exactly"].clone()],
    });
    let read = |choice: Value| {
        let selectors = choice.get("selectors").cloned().unwrap_or_else(|| Value::Array(Vec::new()));
        (choice["deviceClassName"].as_str().unwrap().to_owned(), serde_json::from_value(selectors).unwrap())
    };
    choices.map(read).collect()
}

#[test]
fn no_claim_in_the_documents_fails_on_a_device_under_any_config_in_them() {
    let (configs, devices) = (configs(), devices());
    let claims = [shown("ResourceClaim"), shown("ResourceClaimTemplate")].concat();
    let mut found = 0;
    for (claim_file, claim) in &claims {
        for (class, selectors) in choices(claim) {
            for (config_file, config) in &configs {
                let Some(policy) = config.device_classes.iter().find(|policy| policy.name == class) else {
                    panic!("{config_file} has no class {class}, which {claim_file} asks for")
                };
                let mut spec = device_class(policy, &config.driver_name).unwrap();
                spec.selectors.get_or_insert_default().extend(selectors.clone());
                let matcher = Matcher::new(&spec);
                for device in &devices {
                    let answer = matcher.matches(&config.driver_name, device);
                    let answer = answer.unwrap_or_else(|error| panic!("{claim_file} under {config_file}: {error}"));
                    found += usize::from(answer);
                }
            }
        }
    }
    // A claim for one core, and one with two choices of Xeons; in the documents, the samples and the demo.
    assert!(claims.len() >= 5 && found >= 4 * claims.len(), "{} claims, {found} matches", claims.len());
}

fn operator(arguments: &[&str]) -> String {
    let output = Command::new(OPERATOR).args(arguments).env_remove("NODE_NAME").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Whether the lines come in `output`, in this order; a `…` line stands for lines that are left out.
fn shows(shown: &str, output: &str) -> bool {
    let mut rest = output.lines();
    let mut adjacent = false;
    shown.lines().all(|line| {
        let found = match line {
            "…" => true,
            _ if adjacent => rest.next() == Some(line),
            _ => rest.any(|other| other == line),
        };
        adjacent = line != "…";
        found
    })
}

#[test]
fn discover_and_render_print_what_the_documents_show() {
    let folder = tempfile::tempdir().unwrap();
    server("xeon-small").unwrap().write(&folder.path().join("xeon-small")).unwrap();
    let mut found = 0;
    for (path, text) in documents() {
        for session in fenced(&text, "").into_iter().flat_map(|block| block.split("$ dra-operator ").skip(1)) {
            let (command, shown) = session.split_once('\n').unwrap();
            if command.contains('|') || shown.is_empty() {
                continue;
            }
            let command = command.replace("./", &format!("{}/", folder.path().display()));
            let command = command.replace("config/samples", &root().join("config/samples").display().to_string());
            let output = operator(&command.split(' ').collect::<Vec<_>>());
            assert!(shows(shown.trim_end_matches('\n'), &output), "{}: {command}\n{output}", path.display());
            found += 1;
        }
    }
    assert!(found >= 5, "{found} commands");
}

#[test]
fn the_reference_shows_every_attribute_of_a_device() {
    let page = read("docs/reference/cpu-attributes.md");
    let block = fenced(&page, "").into_iter().find(|block| block.contains("jq ")).unwrap();
    let shown: serde_json::Map<String, Value> = serde_json::from_str(&block[block.find("{\n").unwrap()..]).unwrap();

    let folder = tempfile::tempdir().unwrap();
    server("xeon-small").unwrap().write(folder.path()).unwrap();
    let list = operator(&["discover", "--host-root", folder.path().to_str().unwrap(), "-o", "json"]);
    let list: Value = serde_json::from_str(&list).unwrap();
    let device = &list["items"][0]["spec"]["devices"][0];
    let attributes = device["attributes"].as_object().unwrap().iter();
    let value = |value: &Value| value.as_object().unwrap().values().next().unwrap().clone();
    let mut printed: serde_json::Map<_, _> = attributes.map(|(name, one)| (name.clone(), value(one))).collect();
    printed.insert("name".into(), device["name"].clone());
    assert_eq!(shown, printed);
}

#[test]
fn a_machine_is_recorded_by_the_command_in_the_documents() {
    let page = read("docs/driver-developer.md");
    let [command] = fenced(&page, "bash")[..] else { panic!("one command to record a machine") };
    let directory = tempfile::tempdir().unwrap();
    let output = Command::new("bash").args(["-c", command]).current_dir(directory.path()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(directory.path().join("machine.tar.xz").metadata().unwrap().len() > 1000);
    let recorded = directory.path().join("recorded");
    assert_eq!(operator(&["discover", "--host-root", recorded.to_str().unwrap()]), operator(&["discover"]));
}

/// The documents, each with its text.
fn documents() -> Vec<(PathBuf, String)> {
    let mut paths: Vec<_> = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"].map(|file| root().join(file)).into();
    for folder in ["docs", "charts", "tests/cluster", "tests/bench", "tests/mutants"] {
        files(&root().join(folder), &["md"], &mut paths);
    }
    paths.into_iter().map(|path| (path.clone(), fs::read_to_string(path).unwrap())).collect()
}

#[test]
fn no_line_of_prose_is_longer_than_120_characters() {
    for (path, text) in documents() {
        // What is fenced may be a program's output, and a row of a table cannot be wrapped.
        let mut fenced = false;
        for (number, line) in text.lines().enumerate() {
            fenced ^= line.trim_start().starts_with("```");
            let length = line.chars().count();
            assert!(fenced || line.starts_with('|') || length <= 120, "{}:{}: {length}", path.display(), number + 1);
        }
    }
}

#[test]
fn every_link_in_the_documents_leads_somewhere() {
    let mut links = 0;
    for (path, text) in documents() {
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if link.starts_with("http") {
                continue;
            }
            links += 1;
            let (file, anchor) = link.split_once('#').map_or((link, None), |(file, anchor)| (file, Some(anchor)));
            let target = if file.is_empty() { path.clone() } else { path.parent().unwrap().join(file) };
            assert!(target.exists(), "{}: {link}", path.display());
            if let Some(anchor) = anchor {
                let text = fs::read_to_string(&target).unwrap();
                let anchors = text.lines().filter_map(|line| line.trim_start_matches('#').strip_prefix(' '));
                let known = anchors.map(|title| {
                    let kept = title.to_lowercase().replace(' ', "-");
                    kept.chars().filter(|c| c.is_alphanumeric() || *c == '-').collect::<String>()
                });
                assert!(known.into_iter().any(|known| known == anchor), "{}: {link}", path.display());
            }
        }
    }
    assert!(links > 20, "{links}");
}

/// The metrics that people may rely on: the type and the labels of each, and the values of each label.
#[derive(Debug, Default, PartialEq)]
struct Metrics {
    metrics: BTreeMap<String, (String, BTreeSet<String>)>,
    values: BTreeMap<String, BTreeSet<String>>,
}

/// Reads what a registry exposes, by the names under which Prometheus stores it.
fn expose(registry: &Registry, found: &mut Metrics) {
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, registry).unwrap();

    for line in text.lines() {
        // OpenMetrics writes a family's type before its samples.
        if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|line| line.split_once(' ')) {
            let name = if kind == "counter" { format!("{name}_total") } else { name.to_owned() };
            found.metrics.insert(name, (kind.to_owned(), BTreeSet::new()));
        }

        let Some((series, labels)) = line.split_once('{') else { continue };
        let (_, (_, of_metric)) = found.metrics.iter_mut().rfind(|(name, _)| series.starts_with(*name)).unwrap();
        let labels = labels.split('}').next().unwrap().split(',').filter_map(|label| label.split_once('='));
        // `le` is the bucket of a histogram.
        for (label, value) in labels.filter(|(label, _)| *label != "le") {
            of_metric.insert(label.to_owned());
            found.values.entry(label.to_owned()).or_default().insert(value.trim_matches('"').to_owned());
        }
    }
}

/// The tables of the reference: metric, type, labels, meaning; and label, values.
fn documented() -> Metrics {
    let page = read("docs/reference/metrics.md");
    let mut found = Metrics::default();
    for line in page.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<String> = line.split('|').map(|cell| cell.trim().replace('`', "")).collect();
        let words = |cell: &String| cell.split(", ").filter(|word| !word.is_empty()).map(str::to_owned).collect();
        if cells[1].starts_with("dra_") {
            found.metrics.insert(cells[1].clone(), (cells[2].clone(), words(&cells[3])));
        } else {
            found.values.insert(cells[1].clone(), words(&cells[2]));
        }
    }
    found
}

#[test]
fn the_reference_lists_every_metric_of_both_binaries_with_its_type_and_labels_and_no_other() {
    let (mut controller, mut plugin) = (Registry::default(), Registry::default());
    controller::metrics::Metrics::new(&mut controller);
    PluginMetrics::new(&mut plugin);
    let mut both = Metrics::default();
    for registry in [controller, plugin] {
        expose(&registry, &mut both);
    }
    assert_eq!(documented(), both);
}
