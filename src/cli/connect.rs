//! Connects to the cluster, which is chosen as in kubectl. IO: kubeconfig, the API server.

use std::{error::Error as _, path::PathBuf, time::Duration};

use anyhow::{Context as _, anyhow, bail};
use clap::Args as ClapArgs;
use kube::{
    Api, Client, Config, Error, Resource,
    api::ListParams,
    config::{KubeConfigOptions, Kubeconfig},
};
use serde::de::DeserializeOwned;

use crate::suggest::closest;

/// Objects per request, as in kubectl.
const PAGE: u32 = 500;

/// Arguments that choose the cluster.
#[derive(Debug, ClapArgs)]
pub(super) struct Cluster {
    /// Context in the kubeconfig. Default: its current context.
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
    /// Kubeconfig file. Default: KUBECONFIG, then ~/.kube/config, then the service account of the pod.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
}

impl Cluster {
    /// A client, and the server's address for messages.
    pub(super) async fn client(&self) -> anyhow::Result<(Client, String)> {
        let config = if let Some(file) = &self.kubeconfig {
            let kubeconfig = Kubeconfig::read_from(file)
                .map_err(|error| anyhow!("cannot read kubeconfig {}: {}", file.display(), cause(&error)))?;
            self.of(kubeconfig).await
        } else if self.context.is_some() {
            let kubeconfig =
                Kubeconfig::read().map_err(|error| anyhow!("cannot read the kubeconfig: {}", cause(&error)))?;
            self.of(kubeconfig).await
        } else {
            let config = Config::infer().await;
            return connect(config.map_err(|error| {
                // The other half of the error, that this is not a pod either, does not help a user at a prompt.
                let kubeconfig = error.source().map_or_else(|| error.to_string(), ToString::to_string);
                anyhow!("cannot find the cluster: {kubeconfig}; set KUBECONFIG, or pass --kubeconfig")
            })?);
        };
        connect(config?)
    }

    /// The configuration of the chosen context.
    async fn of(&self, kubeconfig: Kubeconfig) -> anyhow::Result<Config> {
        let known: Vec<_> = kubeconfig.contexts.iter().map(|context| context.name.clone()).collect();
        if let Some(wanted) = self.context.as_ref().filter(|wanted| !known.contains(wanted)) {
            let meant = closest(wanted, known.iter().map(String::as_str));
            let hint = meant.map(|meant| format!("; did you mean {meant}?")).unwrap_or_default();
            bail!("the kubeconfig has no context {wanted}{hint}");
        }

        let options = KubeConfigOptions { context: self.context.clone(), ..KubeConfigOptions::default() };
        let config = Config::from_custom_kubeconfig(kubeconfig, &options).await;
        let context =
            self.context.as_deref().map_or_else(|| "the current context".into(), |name| format!("context {name}"));
        config.map_err(|error| anyhow!("cannot use {context} of the kubeconfig: {}", cause(&error)))
    }
}

fn connect(mut config: Config) -> anyhow::Result<(Client, String)> {
    // Short, because a user is waiting.
    config.connect_timeout = Some(Duration::from_secs(10));
    let address = config.cluster_url.to_string();
    Ok((Client::try_from(config).with_context(|| format!("cannot create a client for {address}"))?, address))
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
                    "you are not allowed to list {kind}: {}; ask an admin to bind the ClusterRole dra-operator-viewer to you",
                    status.message
                )
            }
            Err(Error::Api(status)) if status.code == 401 => {
                bail!("the cluster at {address} rejects your credentials: {}", status.message)
            }
            Err(error) => bail!("cannot list {kind} in the cluster at {address}: {}", cause(&error)),
        };
        found.extend(list.items);
        match list.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => page = page.continue_token(&token),
            None => return Ok(found),
        }
    }
}

/// The innermost cause; kube's errors repeat it at every level.
fn cause(mut error: &dyn std::error::Error) -> String {
    while let Some(inner) = error.source() {
        error = inner;
    }
    error.to_string()
}
