//! `dra-operator discover`: the devices of this machine, or of a recorded one. IO: reads the host, prints.
//!
//! Does not need a cluster. YAML and JSON show the ResourceSlices that a node plugin would publish.

use std::process::ExitCode;

use anyhow::{Context as _, bail, ensure};
use clap::{Args as ClapArgs, ValueEnum};
use k8s_openapi::{List, api::resource::v1::ResourceSlice};

use super::{cpu, devices, stdout};
use crate::{
    api::{CpuSettings, DriverName, Granularity},
    cpuset::CpuSet,
    dns::is_subdomain,
    drivers::{Inventory, cpu::CpuDevices},
    host::Host,
    slices::pack::NodePool,
};

/// Arguments of `discover`.
#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    /// Directory that contains the machine's proc and sys.
    #[arg(long, value_name = "DIR", default_value = "/")]
    host_root: std::path::PathBuf,
    /// What each device represents: a core with all its threads, or a thread.
    #[arg(long, value_name = "GRANULARITY", default_value = "Core", value_parser = cpu::granularity(), ignore_case = true)]
    granularity: Granularity,
    /// CPUs to leave out, as a list such as 0-1,8.
    #[arg(long, value_name = "CPUS", default_value_t)]
    reserved_cpus: CpuSet,
    /// Name of the driver in the slices.
    #[arg(long, value_name = "NAME", default_value = CpuSettings::DEFAULT_NAME)]
    driver_name: DriverName,
    /// Name of the node in the slices. Default: the machine's host name.
    #[arg(long, value_name = "NAME", env = "NODE_NAME")]
    node_name: Option<String>,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
}

#[derive(Clone, Copy, Debug, Default, ValueEnum)]
enum Output {
    #[default]
    Table,
    Yaml,
    Json,
}

/// Prints the devices. Warnings go to standard error.
pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let root = &args.host_root;
    let kind = std::fs::metadata(root).with_context(|| format!("cannot read --host-root {}", root.display()))?;
    ensure!(kind.is_dir(), "--host-root {} is not a directory: it must contain proc and sys", root.display());
    let host = Host::at(root);
    let machine = host.observe_machine();
    let whole = CpuDevices::new(&machine, args.granularity, &CpuSet::default());
    let driver = CpuDevices::new(&machine, args.granularity, &args.reserved_cpus);
    let Inventory { devices, warnings } = &**driver.inventory();
    for warning in warnings {
        eprintln!("warning: {warning}");
    }
    if whole.inventory().devices.is_empty() {
        bail!("no CPU found under {}: it must contain a machine's sys/devices/system/cpu or proc/stat", root.display());
    }
    let node = args.node_name.clone().or_else(|| host.observe_name()).unwrap_or_else(|| "localhost".to_owned());
    ensure!(
        is_subdomain(&node),
        "{node:?} is not a valid Node name (a-z, 0-9, '-', '.'): pass the Node's name with --node-name"
    );
    let pool = NodePool { driver: args.driver_name.to_string(), node, owner: None };
    let slices = List::<ResourceSlice> { items: pool.pack(devices), ..List::default() };
    stdout::print(&match args.output {
        Output::Table => devices::table(&whole, &driver),
        Output::Yaml => serde_saphyr::to_string(&slices)?,
        Output::Json => serde_json::to_string_pretty(&slices)? + "\n",
    })?;
    if devices.is_empty() {
        eprintln!("no devices left: all of them include CPUs from --reserved-cpus {}", args.reserved_cpus);
    }
    Ok(ExitCode::SUCCESS)
}
