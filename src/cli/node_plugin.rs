//! `dra-operator node-plugin`: serves one kind of device on this node. IO: the node, its kubelet, its container runtime,
//! the API server.

use std::{net::SocketAddr, path::PathBuf, process::ExitCode, sync::Arc, time::Duration};

use anyhow::{Context as _, ensure};
use clap::{Args as ClapArgs, Subcommand};
use kube::{Client, Config};
use prometheus_client::registry::Registry;
use tokio_util::sync::CancellationToken;

use super::{cpu, logging::Logging, stop};
use crate::{
    api::{CpuSettings, DriverName, Granularity, Pinning},
    cpuset::CpuSet,
    drivers::{Driver, cpu::CpuDriver},
    host::Host,
    plugin::{
        kubelet::Connect,
        metrics::PluginMetrics,
        node::{NodePlugin, NodeSettings},
        readiness::{Readiness, serve},
    },
};

/// How long Prepare waits for devices that another claim still holds: the default grace period of a pod. The kubelet
/// gives up after 45 seconds.
const HELD_TIMEOUT: Duration = Duration::from_secs(30);

/// Arguments of `node-plugin`.
#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    /// Name of the driver. Default: the name of the kind, such as dra.cpu.
    #[arg(long, value_name = "NAME")]
    driver_name: Option<DriverName>,
    /// Name of this node's Node object.
    #[arg(long, value_name = "NAME", env = "NODE_NAME")]
    node_name: String,
    /// UID of this pod. Lets the old and the new instance serve side by side during a rolling update.
    #[arg(long, value_name = "UID", env = "POD_UID")]
    pod_uid: Option<String>,
    /// The kubelet's root directory.
    #[arg(long, value_name = "DIR", default_value = "/var/lib/kubelet")]
    kubelet_root_dir: PathBuf,
    /// Directory for CDI files.
    #[arg(long, value_name = "DIR", default_value = "/var/run/cdi")]
    cdi_dir: PathBuf,
    /// NRI socket of the container runtime.
    #[arg(long, value_name = "SOCKET", default_value = "/var/run/nri/nri.sock")]
    nri_socket: PathBuf,
    /// Directory for the checkpoint. Default: `plugins/<driver name>` in the kubelet's root directory.
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
    /// Directory that contains the machine's proc and sys.
    #[arg(long, value_name = "DIR", default_value = "/")]
    host_root: PathBuf,
    /// Address to serve /healthz, /readyz and /metrics on. Empty: do not serve them.
    #[arg(long, value_name = "ADDRESS", default_value = "[::]:8081")]
    http_bind: String,
    /// Only publish devices: do not connect to the kubelet or the container runtime.
    #[arg(long)]
    publish_only: bool,
    #[command(flatten)]
    logging: Logging,
    #[command(subcommand)]
    kind: Kind,
}

#[derive(Debug, Subcommand)]
enum Kind {
    /// CPUs.
    Cpu(CpuArgs),
}

impl Kind {
    fn default_driver_name(&self) -> &'static str {
        match self {
            Self::Cpu(_) => CpuSettings::DEFAULT_NAME,
        }
    }
}

#[derive(Debug, ClapArgs)]
struct CpuArgs {
    /// What each device represents: Core or Thread.
    #[arg(long, value_name = "GRANULARITY", default_value = "Core", value_parser = cpu::granularity(), ignore_case = true)]
    granularity: Granularity,
    /// CPUs that are never allocated to a claim, as a list such as 0-1,8.
    #[arg(long, value_name = "CPUS", default_value_t)]
    reserved_cpus: CpuSet,
    /// How containers get the CPUs of their claims: NRI pins them; None only lists the CPUs in the environment.
    #[arg(long, default_value = "NRI", value_name = "HOW", value_parser = cpu::pinning(), ignore_case = true)]
    pinning: Pinning,
}

/// Runs until SIGTERM or SIGINT.
pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    args.logging.begin();
    // One thread, besides the one that serves the kubelet: the work is mostly waiting, and each thread costs memory on
    // every node.
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(serve_node(args))
}

/// Serves the machine, and starts over whenever it changes.
async fn serve_node(args: &Args) -> anyhow::Result<ExitCode> {
    let stop = stop::on_signal()?;
    while !stop.is_cancelled() {
        serve_machine(args, stop.child_token()).await?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Serves until stopped, or until the machine differs from the one that the driver was built for.
async fn serve_machine(args: &Args, stop: CancellationToken) -> anyhow::Result<()> {
    // The devices.
    let Kind::Cpu(cpu) = &args.kind;
    let settings = args.settings(cpu.pinning)?;
    let driver = CpuDriver::observe(Host::at(&args.host_root), cpu.granularity, &cpu.reserved_cpus);
    let driver: Arc<dyn Driver> = Arc::new(driver);
    let inventory = Arc::clone(&driver.inventory().borrow());
    for warning in &inventory.warnings {
        tracing::warn!("{warning}");
    }
    tracing::info!(
        devices = inventory.devices.len(),
        driver = %settings.driver_name,
        node = args.node_name,
        "found devices"
    );

    // The API server.
    let config = Config::infer().await.context("cannot find the cluster: run in a pod, or set KUBECONFIG")?;
    let connect: Connect = Arc::new(move || Client::try_from(config.clone()));
    let client = connect().context("cannot create a client from the cluster's configuration")?;

    // The plugin, its health and metrics.
    let mut registry = Registry::default();
    let metrics = PluginMetrics::new(&mut registry);
    let parts = if args.publish_only { NodePlugin::PUBLISHING.to_vec() } else { settings.parts() };
    let readiness = Arc::new(Readiness::of(&parts));
    let plugin = NodePlugin {
        settings,
        driver: Arc::clone(&driver),
        client,
        connect,
        readiness: Arc::clone(&readiness),
        metrics,
    };
    let complaints = Arc::clone(&readiness);
    let http = async {
        match args.http_address()? {
            Some(address) => serve(address, readiness, registry).await.context("HTTP"),
            None => std::future::pending().await,
        }
    };

    // These run concurrently until one of them ends.
    let work = async {
        if args.publish_only {
            plugin.publish_only(stop.clone()).await;
            Ok(())
        } else {
            plugin.run(stop.clone()).await
        }
    };
    let changes = async {
        let what = driver.changed().await;
        tracing::warn!("{what}: rebuilding the devices");
        stop.cancel();
        std::future::pending::<()>().await;
    };
    tokio::select! {
        // The plugin comes first, so that its first requests are in flight while the port is opened.
        biased;
        done = work => done?,
        served = http => match served? {},
        () = changes => {}
        never = complaints.complain() => match never {},
    }
    Ok(())
}

impl Args {
    fn settings(&self, pinning: Pinning) -> anyhow::Result<NodeSettings> {
        let driver_name = match &self.driver_name {
            Some(name) => name.clone(),
            None => self.kind.default_driver_name().parse()?,
        };
        let default_state = || self.kubelet_root_dir.join("plugins").join(&*driver_name);
        let settings = NodeSettings {
            node_name: self.node_name.clone(),
            pod_uid: self.pod_uid.clone().filter(|uid| !uid.is_empty()),
            kubelet_root: self.kubelet_root_dir.clone(),
            cdi_dir: self.cdi_dir.clone(),
            state_dir: self.state_dir.clone().unwrap_or_else(default_state),
            driver_name,
            nri_socket: (pinning == Pinning::Nri).then(|| self.nri_socket.clone()),
            host_root: self.host_root.clone(),
            held_timeout: HELD_TIMEOUT,
        };
        ensure!(!settings.node_name.is_empty(), "--node-name is empty: pass this node's name, or set NODE_NAME");
        Ok(settings)
    }

    fn http_address(&self) -> anyhow::Result<Option<SocketAddr>> {
        if self.http_bind.is_empty() {
            return Ok(None);
        }
        let parsed = self.http_bind.parse();
        parsed
            .map(Some)
            .with_context(|| format!("--http-bind {:?} is not an address such as [::]:8081", self.http_bind))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{Command, FromArgMatches as _};

    fn parse(line: &str) -> Result<Args, clap::Error> {
        let command = Args::augment_args(Command::new("node-plugin"));
        let words = ["node-plugin"].into_iter().chain(line.split_whitespace());
        command.try_get_matches_from(words).and_then(|found| Args::from_arg_matches(&found))
    }

    #[test]
    fn the_state_is_kept_in_the_drivers_directory_under_the_kubelets_root() {
        let args = parse("--node-name n --kubelet-root-dir /k --driver-name dra.x cpu").unwrap();
        let settings = args.settings(Pinning::Nri).unwrap();
        assert_eq!(settings.state_dir, PathBuf::from("/k/plugins/dra.x"));
        assert_eq!(settings.nri_socket, Some(PathBuf::from("/var/run/nri/nri.sock")));
        assert_eq!(args.settings(Pinning::None).unwrap().nri_socket, None);
        let unnamed = parse("--node-name n --kubelet-root-dir /k cpu").unwrap().settings(Pinning::Nri).unwrap();
        assert_eq!(unnamed.state_dir, PathBuf::from("/k/plugins/dra.cpu"), "the kind's own name");
    }

    #[test]
    fn logging_flags_may_follow_the_kind() {
        assert!(
            parse("--node-name n cpu --granularity Thread --pinning None --log-level debug --log-format json").is_ok()
        );
    }

    #[test]
    fn invalid_arguments_are_rejected_with_a_hint() {
        let unnamed = parse("--node-name= cpu").unwrap().settings(Pinning::Nri).unwrap_err().to_string();
        assert!(unnamed.contains("--node-name is empty"), "{unnamed}");
        for (line, message) in [
            ("--node-name n --driver-name ../x cpu", "'--driver-name <NAME>': \"../x\" is not a DNS subdomain"),
            ("--node-name n --driver-name a..b cpu", "is not a DNS subdomain"),
            ("--node-name n cpu --granularity Half", "possible values: Core, Thread"),
            ("--node-name n cpu --reserved-cpus 3-1", "runs backwards"),
            ("--node-name n cpu --pinning Maybe", "NRI, None"),
        ] {
            let error = parse(line).unwrap_err().to_string();
            assert!(error.contains(message), "{error}");
        }
        let args = parse("--node-name n --http-bind here cpu").unwrap();
        assert!(args.http_address().unwrap_err().to_string().contains("--http-bind \"here\" is not an address"));
        assert_eq!(parse("--node-name n --http-bind= cpu").unwrap().http_address().unwrap(), None);
    }
}
