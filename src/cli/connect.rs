//! Connects to the cluster, which is chosen as in kubectl. IO: kubeconfig, the API server.

use std::{
    env,
    net::IpAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, anyhow, bail};
use clap::Args as ClapArgs;
use http::Uri;
use hyper_util::client::proxy::matcher::Matcher;
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
        let kubeconfig = match &self.kubeconfig {
            Some(file) => Some(read(file)?),
            None => read_all(&places())?,
        };
        match kubeconfig {
            Some(kubeconfig) => connect(self.of(kubeconfig).await?),
            None if self.context.is_none() && Config::incluster().is_ok() => connect(Config::incluster()?),
            None => bail!(
                "cannot find the cluster: there is no kubeconfig at {}; set KUBECONFIG, or pass --kubeconfig",
                places().iter().map(|place| place.display().to_string()).collect::<Vec<_>>().join(" or ")
            ),
        }
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
        let own_proxy = own_proxy(&kubeconfig, self.context.as_ref());
        let config = Config::from_custom_kubeconfig(kubeconfig, &options).await;
        let context =
            self.context.as_deref().map_or_else(|| "the current context".into(), |name| format!("context {name}"));
        let mut config =
            config.map_err(|error| anyhow!("cannot use {context} of the kubeconfig: {}", root_cause(&error)))?;
        config.proxy_url = match own_proxy {
            Some(proxy) => Some(proxy.parse().with_context(|| format!("proxy-url {proxy:?} of {context}"))?),
            None => proxy_of_environment(&config.cluster_url),
        };
        Ok(config)
    }
}

/// The `proxy-url` of a context's cluster.
fn own_proxy(kubeconfig: &Kubeconfig, context: Option<&String>) -> Option<String> {
    let wanted = context.or(kubeconfig.current_context.as_ref())?;
    let context = kubeconfig.contexts.iter().find(|context| context.name == *wanted)?.context.as_ref()?;
    let cluster = kubeconfig.clusters.iter().find(|cluster| cluster.name == context.cluster)?.cluster.as_ref()?;
    cluster.proxy_url.clone().filter(|proxy| !proxy.is_empty())
}

/// The proxy that the environment names for a server, with the rules of Go's net/http, and so of kubectl. kube's own rules
/// differ: it ignores HTTP_PROXY, and compares NO_PROXY with the proxy's address.
fn proxy_of_environment(server: &Uri) -> Option<Uri> {
    let host = server.host()?.trim_matches(['[', ']']);
    let is_local = host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
    let proxy = Matcher::from_env().intercept(server).filter(|_| !is_local)?;
    Some(proxy.uri().clone())
}

/// The kubeconfig paths: the files that KUBECONFIG lists, or else the default.
fn places() -> Vec<PathBuf> {
    let listed: Vec<_> = env::var_os("KUBECONFIG").iter().flat_map(env::split_paths).collect();
    let listed: Vec<_> = listed.into_iter().filter(|path| !path.as_os_str().is_empty()).collect();
    if listed.is_empty() { env::home_dir().map(|home| home.join(".kube/config")).into_iter().collect() } else { listed }
}

/// Merges the kubeconfigs; the first file that sets a value wins. Skips files that do not exist, as kubectl does. `None`
/// if none exists.
fn read_all(places: &[PathBuf]) -> anyhow::Result<Option<Kubeconfig>> {
    let mut all: Option<Kubeconfig> = None;
    for place in places.iter().filter(|place| place.exists()) {
        let next = read(place)?;
        let merged = all.map_or_else(|| Ok(next.clone()), |first| first.merge(next.clone()));
        all = Some(merged.with_context(|| format!("cannot merge kubeconfig {}", place.display()))?);
    }
    Ok(all)
}

fn read(file: &Path) -> anyhow::Result<Kubeconfig> {
    Kubeconfig::read_from(file)
        .map_err(|error| anyhow!("cannot read kubeconfig {}: {}", file.display(), root_cause(&error)))
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
            Err(error) => bail!("cannot list {kind} in the cluster at {address}: {}", root_cause(&error)),
        };
        found.extend(list.items);
        match list.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => page = page.continue_token(&token),
            None => return Ok(found),
        }
    }
}

/// The innermost cause; kube's errors repeat it at every level.
fn root_cause(mut error: &dyn std::error::Error) -> String {
    while let Some(inner) = error.source() {
        error = inner;
    }
    error.to_string()
}
