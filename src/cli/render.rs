//! `dra-operator render`: prints every object that the controller would apply for the configs in a file. IO: files,
//! standard output.

use std::{
    io::Read,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context, anyhow, bail};
use clap::Args as ClapArgs;
use serde_json::Value;

use super::stdout;
use crate::{
    api::{self, DeviceClassPolicy},
    controller::{
        build::{self, Settings},
        config::Config,
    },
    policy::preview::syntax_error,
};

/// Arguments of `render`.
#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    /// File with one or more `DraDriverConfig` documents; `-` for standard input.
    #[arg(short, long, value_name = "FILE")]
    filename: PathBuf,

    /// Namespace of the operator.
    #[arg(short, long, default_value = "dra-operator")]
    namespace: String,

    /// Node plugin image for DraDriverConfigs that do not set one.
    #[arg(long, default_value = concat!("dra-operator:", env!("CARGO_PKG_VERSION")))]
    image: String,
}

/// Prints the children of all documents, or the errors in each document.
pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let text = read(&args.filename)?;
    let settings = Settings { namespace: args.namespace.clone(), image: args.image.clone(), ..Settings::default() };
    stdout::print(&render(&args.filename.display().to_string(), &text, &settings)?)?;
    Ok(ExitCode::SUCCESS)
}

fn read(path: &Path) -> anyhow::Result<String> {
    if path.as_os_str() == "-" {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).context("cannot read standard input")?;
        return Ok(text);
    }
    std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

/// The children as YAML documents. Error messages name `file`.
fn render(file: &str, text: &str, settings: &Settings) -> anyhow::Result<String> {
    let documents: Vec<Value> =
        serde_saphyr::from_multiple(text).map_err(|error| anyhow!("{file} is not valid YAML: {error}"))?;
    let mut output = String::new();
    let mut faults = Vec::new();
    let mut rendered = 0;
    for (index, document) in documents.iter().enumerate().filter(|(_, document)| !document.is_null()) {
        let place = if documents.len() > 1 { format!("{file}, document {}", index + 1) } else { file.to_owned() };
        rendered += 1;
        match children(document, settings) {
            Ok(children) => output.extend(children.iter().map(|child| format!("---\n{child}"))),
            Err(found) => faults.extend(found.into_iter().map(|fault| format!("{place}: {fault}"))),
        }
    }
    if rendered == 0 {
        bail!("{file} is empty: expected a DraDriverConfig (see `kubectl explain ddc.spec`)");
    }
    if !faults.is_empty() {
        bail!("{}", faults.join("\n"));
    }
    Ok(output)
}

fn children(document: &Value, settings: &Settings) -> Result<Vec<String>, Vec<String>> {
    let said = |field: &str| document.get(field).and_then(Value::as_str).unwrap_or_default();
    let wanted = (format!("{}/v1alpha1", api::GROUP), "DraDriverConfig");
    if (said("apiVersion"), said("kind")) != (wanted.0.as_str(), wanted.1) {
        return Err(vec![format!(
            "is a {:?} of apiVersion {:?}: expected apiVersion: {} and kind: {}",
            said("kind"),
            said("apiVersion"),
            wanted.0,
            wanted.1
        )]);
    }
    let config = api::parse(document).map_err(|faults| faults.iter().map(ToString::to_string).collect::<Vec<_>>())?;
    let config = Config::try_from(config).map_err(|fault| vec![fault.to_string()])?;
    let unparsed = unparsed(&config.device_classes);
    if !unparsed.is_empty() {
        return Err(unparsed);
    }
    let desired = build::children(&config, settings);
    if !desired.unbuildable.is_empty() {
        return Err(desired.unbuildable.iter().map(|child| format!("{}: {}", child.key, child.message)).collect());
    }
    desired
        .children
        .iter()
        .map(|child| serde_saphyr::to_string(&child.object).map_err(|error| vec![error.to_string()]))
        .collect()
}

/// Syntax errors in raw selectors. Only the API server can tell whether a well-formed selector compiles, for example
/// whether it compares values of the same type.
fn unparsed(policies: &[DeviceClassPolicy]) -> Vec<String> {
    let mut faults = Vec::new();
    for (class, policy) in policies.iter().enumerate() {
        for (index, selector) in policy.selectors.iter().enumerate() {
            let place = format!("spec.deviceClasses[{class}].selectors[{index}]");
            faults.extend(syntax_error(selector).map(|error| format!("{place} is not valid CEL: {error}")));
        }
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> Settings {
        Settings { namespace: "dra-operator".into(), image: "example.com/dra-operator:1".into(), ..Settings::default() }
    }

    const MINIMAL: &str = "apiVersion: dra-operator.dev/v1alpha1\nkind: DraDriverConfig\nmetadata: {name: cpu}\n\
                           spec: {driver: {cpu: {}}}\n";

    #[test]
    fn a_minimal_object_is_rendered_with_all_defaults() {
        insta::assert_snapshot!(render("cpu.yaml", MINIMAL, &settings()).unwrap());
    }

    #[test]
    fn every_field_of_a_full_object_is_rendered() {
        insta::assert_snapshot!(render("full.yaml", include_str!("testdata/full.yaml"), &settings()).unwrap());
    }

    #[test]
    fn an_empty_field_means_the_same_as_no_field() {
        let empty = MINIMAL.replace("cpu: {}}", "cpu: {granularity: }}, nodePlugin: , deviceClasses: , health: ");
        assert_eq!(render("a.yaml", &empty, &settings()).unwrap(), render("b.yaml", MINIMAL, &settings()).unwrap());
    }

    #[test]
    fn errors_name_file_document_and_field() {
        let two = format!("{MINIMAL}---\n{}", MINIMAL.replace("cpu: {}", "cpu: {granularity: Corn}, memory: {}"));
        let error = render("both.yaml", &two, &settings()).unwrap_err().to_string();
        assert_eq!(
            error,
            "both.yaml, document 2: spec.driver.cpu.granularity: \"Corn\" is not supported: use one of Core, Thread"
        );
        for (text, wanted) in [
            ("a: [", "x.yaml is not valid YAML"),
            ("", "x.yaml is empty"),
            ("kind: Pod\napiVersion: v1\n", "expected apiVersion: dra-operator.dev/v1alpha1 and kind: DraDriverConfig"),
            (
                &MINIMAL.replace("cpu: {}}", "cpu: {}}, nodePlugin: {resources: {limit: {}}}"),
                "x.yaml: spec.nodePlugin.resources.limit: unknown field",
            ),
            (
                &MINIMAL.replace(
                    "cpu: {}}",
                    "cpu: {}}, deviceClasses: [{name: a, preset: Arm, selectors: ['true', 'a &&']}]",
                ),
                "x.yaml: spec.deviceClasses[0].selectors[1] is not valid CEL: line 1, column 5: Syntax error",
            ),
            (
                &MINIMAL.replace("cpu: {}", "cpu: {reservedCPUs: '1-0'}"),
                "x.yaml: spec.driver.cpu.reservedCPUs is not a CPU list",
            ),
            (
                "kind: DraDriverConfig\napiVersion: dra-operator.dev/v1alpha1\nmetadata: {name: a}\n",
                "x.yaml: spec: is required",
            ),
        ] {
            let error = render("x.yaml", text, &settings()).unwrap_err().to_string();
            assert!(error.contains(wanted), "{error}");
        }
    }
}
