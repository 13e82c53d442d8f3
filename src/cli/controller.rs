//! `dra-operator controller`: reconciles every DraDriverConfig in the cluster. IO: the API server, a TCP port.

use std::{net::SocketAddr, process::ExitCode, sync::Arc};

use anyhow::{Context as _, bail};
use clap::Args as ClapArgs;
use kube::{Client, Config};
use prometheus_client::registry::Registry;

use super::{logging::Logging, stop};
use crate::controller::{
    build::Settings,
    http::{Health, serve},
    metrics::Metrics,
    observe::own_pod::{self, OwnPod},
    run::Operator,
};

/// Arguments of `controller`.
#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    /// Namespace of the operator. Node plugins run in it too.
    #[arg(long, env = "POD_NAMESPACE", default_value = "dra-operator")]
    namespace: String,
    /// Name of this pod. Leader election needs it, and node plugins get this pod's image and pull secrets.
    #[arg(long, env = "POD_NAME")]
    pod_name: Option<String>,
    /// Node plugin image for DraDriverConfigs that do not set one. Default: the image of this pod.
    #[arg(long, value_name = "IMAGE", env = "NODE_PLUGIN_IMAGE")]
    node_plugin_image: Option<String>,
    /// Address to serve /healthz, /readyz and /metrics on. Empty: do not serve them.
    #[arg(long, value_name = "ADDRESS", default_value = "[::]:8080")]
    http_bind: String,
    /// Elect a leader, so that only one replica reconciles. Requires --pod-name.
    #[arg(long, value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set)]
    leader_elect: bool,
    #[command(flatten)]
    logging: Logging,
}

/// Runs until SIGTERM or SIGINT.
pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    args.logging.begin();
    // One thread is enough: the controller mostly waits, and every additional thread takes memory.
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(control(args))
}

async fn control(args: &Args) -> anyhow::Result<ExitCode> {
    let pod = match (&args.pod_name, args.leader_elect) {
        (Some(pod), true) => Some(pod.clone()),
        (None, true) => bail!("leader election needs the name of this pod: set POD_NAME, or pass --leader-elect=false"),
        (_, false) => None,
    };
    let config = Config::infer().await.context("cannot find the cluster (run in a pod, or set KUBECONFIG)")?;
    let client = Client::try_from(config).context("cannot create a client from the cluster's configuration")?;
    let mut registry = Registry::default();
    let health = Arc::new(Health::default());
    let operator = Operator {
        settings: args.settings(&client).await?,
        client,
        pod,
        metrics: Metrics::new(&mut registry),
        health: Arc::clone(&health),
    };
    let stop = stop::on_signal()?;
    let http = async {
        match args.http_address()? {
            Some(address) => serve(address, health, registry).await.context("HTTP"),
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        done = operator.run(stop) => done?,
        served = http => match served? {},
    }
    Ok(ExitCode::SUCCESS)
}

impl Args {
    async fn settings(&self, client: &Client) -> anyhow::Result<Settings> {
        let own = match &self.pod_name {
            Some(pod) => own_pod::observe(client, &self.namespace, pod).await?,
            None => OwnPod::default(),
        };
        let given = self.node_plugin_image.clone().filter(|image| !image.is_empty());
        let image = given.or(own.image).context(
            "cannot determine the node plugin image: set POD_NAME to use this pod's image, or pass --node-plugin-image",
        )?;
        Ok(Settings { namespace: self.namespace.clone(), image, image_pull_secrets: own.image_pull_secrets })
    }

    fn http_address(&self) -> anyhow::Result<Option<SocketAddr>> {
        if self.http_bind.is_empty() {
            return Ok(None);
        }
        let parsed = self.http_bind.parse();
        parsed
            .map(Some)
            .with_context(|| format!("--http-bind {:?} is not an address and port, such as [::]:8080", self.http_bind))
    }
}
