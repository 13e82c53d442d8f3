//! `dra-operator menu`: which machines each device class offers. IO: reads the cluster, prints.

mod offer;
mod print;

use std::process::ExitCode;

use clap::{Args as ClapArgs, ValueEnum};
use k8s_openapi::api::resource::v1::{DeviceClass, ResourceClaim, ResourceSlice};

use super::{
    connect::{Cluster, list},
    stdout,
};

/// Arguments of `menu`.
#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    #[command(flatten)]
    cluster: Cluster,
    /// Accepted for compatibility with kubectl; ignored, because classes and devices are cluster-wide.
    #[arg(short, long, value_name = "NAME")]
    namespace: Option<String>,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
}

#[derive(Clone, Copy, Debug, Default, ValueEnum)]
enum Output {
    #[default]
    Table,
    Wide,
    Json,
    Yaml,
}

/// Prints the menu to standard output, and notes to standard error.
pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let menu = runtime.block_on(observe(&args.cluster))?;
    stdout::print(&match args.output {
        Output::Table => print::table(&menu),
        Output::Wide => print::wide(&menu),
        Output::Yaml => serde_saphyr::to_string(&menu)?,
        Output::Json => serde_json::to_string_pretty(&menu)? + "\n",
    })?;
    for note in print::notes(&menu) {
        eprintln!("{note}");
    }
    Ok(ExitCode::SUCCESS)
}

async fn observe(cluster: &Cluster) -> anyhow::Result<offer::Menu> {
    let (client, address) = cluster.client().await?;
    let classes = list::<DeviceClass>(&client, &address).await?;
    let slices = list::<ResourceSlice>(&client, &address).await?;
    let claims = list::<ResourceClaim>(&client, &address).await?;
    Ok(offer::menu(&classes, &slices, &claims))
}
