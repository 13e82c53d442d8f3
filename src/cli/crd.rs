//! `dra-operator crd`: prints the CustomResourceDefinition. IO: standard output.

use std::process::ExitCode;

use clap::Args as ClapArgs;
use kube::CustomResourceExt;

use crate::api::DraDriverConfig;

/// Arguments of `crd`.
#[derive(Debug, ClapArgs)]
pub(super) struct Args {}

/// Prints the CRD as YAML.
pub(super) fn run(_: &Args) -> anyhow::Result<ExitCode> {
    print!("{}", serde_saphyr::to_string(&DraDriverConfig::crd())?);
    Ok(ExitCode::SUCCESS)
}
