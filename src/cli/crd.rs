//! `dra-operator crd`: prints the CustomResourceDefinition. IO: standard output.

use std::process::ExitCode;

use crate::api;
use clap::Args as ClapArgs;

/// Arguments of `crd`.
#[derive(Debug, ClapArgs)]
pub(super) struct Args {}

/// Prints the CRD as YAML.
pub(super) fn run(_: &Args) -> anyhow::Result<ExitCode> {
    print!("{}", serde_saphyr::to_string(&api::crd())?);
    Ok(ExitCode::SUCCESS)
}
