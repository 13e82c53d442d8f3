//! The cluster a verb is about, as kubectl finds it. IO: kubeconfig, the API server.

use std::{error::Error as _, path::PathBuf, time::Duration};

use anyhow::{Context as _, anyhow, bail};
use clap::Args as ClapArgs;
use kube::{
    Api, Client, Config, Error, Resource,
    api::ListParams,
    config::{KubeConfigOptions, Kubeconfig},
};
use serde::de::DeserializeOwned;

/// Objects asked for at once, as kubectl does.
const PAGE: u32 = 500;

/// Arguments that choose the cluster.
#[derive(Debug, ClapArgs)]
pub(super) struct Cluster {
    /// Context of the kubeconfig. Default: its current one.
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
    /// The kubeconfig file. Default: that of KUBECONFIG, ~/.kube/config, or the pod's own account.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
}

impl Cluster {
    /// A client, with the server's address for messages.
    pub(super) async fn client(&self) -> anyhow::Result<(Client, String)> {
        let options = KubeConfigOptions { context: self.context.clone(), ..KubeConfigOptions::default() };
        let config = if let Some(file) = &self.kubeconfig {
            let kubeconfig = Kubeconfig::read_from(file)
                .map_err(|error| anyhow!("cannot read kubeconfig {}: {}", file.display(), cause(&error)))?;
            Config::from_custom_kubeconfig(kubeconfig, &options).await
        } else if self.context.is_some() {
            Config::from_kubeconfig(&options).await
        } else {
            let config = Config::infer().await;
            return connect(config.map_err(|error| {
                // Outside a pod its other half, that this is none, says nothing.
                let kubeconfig = error.source().map_or_else(|| error.to_string(), ToString::to_string);
                anyhow!("cannot find the cluster: {kubeconfig}; set KUBECONFIG, or name a file with --kubeconfig")
            })?);
        };
        let context =
            self.context.as_deref().map_or_else(|| "the current context".into(), |name| format!("context {name}"));
        connect(config.map_err(|error| anyhow!("cannot use {context} of the kubeconfig: {error}"))?)
    }
}

fn connect(mut config: Config) -> anyhow::Result<(Client, String)> {
    // Somebody is waiting at the prompt.
    config.connect_timeout = Some(Duration::from_secs(10));
    let address = config.cluster_url.to_string();
    Ok((Client::try_from(config).with_context(|| format!("cannot make a client for {address}"))?, address))
}

/// Every object of a kind, in all namespaces.
pub(super) async fn list<K>(client: &Client, address: &str) -> anyhow::Result<Vec<K>>
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned,
{
    let api = Api::<K>::all(client.clone());
    let kind = K::plural(&());
    let mut found = Vec::new();
    let mut page = ListParams::default().limit(PAGE);
    loop {
        let list = match api.list(&page).await {
            Ok(list) => list,
            Err(Error::Api(status)) if status.code == 404 => bail!(
                "the cluster at {address} has no {kind} of {}: Dynamic Resource Allocation needs Kubernetes 1.34 or later",
                K::api_version(&())
            ),
            Err(Error::Api(status)) if status.code == 403 => {
                bail!(
                    "you may not list {kind}: {}; an admin can let you, with the ClusterRole dra-operator-viewer",
                    status.message
                )
            }
            Err(Error::Api(status)) if status.code == 401 => {
                bail!("the cluster at {address} does not know you: {}", status.message)
            }
            Err(error) => bail!("cannot list {kind} of the cluster at {address}: {}", cause(&error)),
        };
        found.extend(list.items);
        match list.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => page = page.continue_token(&token),
            None => return Ok(found),
        }
    }
}

/// The innermost cause: kube's errors repeat it on every level.
fn cause(mut error: &dyn std::error::Error) -> String {
    while let Some(inner) = error.source() {
        error = inner;
    }
    error.to_string()
}
