//! `dra-operator crd`: prints the CustomResourceDefinition. IO: standard output.

use std::process::ExitCode;

use clap::Args as ClapArgs;

use super::stdout;
use crate::api;

/// Arguments of `crd`.
#[derive(Debug, ClapArgs)]
pub(super) struct Args {}

/// Prints the CRD as YAML.
pub(super) fn run(_: &Args) -> anyhow::Result<ExitCode> {
    stdout::print(&serde_saphyr::to_string(&api::crd())?)?;
    Ok(ExitCode::SUCCESS)
}
