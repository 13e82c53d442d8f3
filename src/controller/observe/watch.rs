//! The watches: one per kind, each into a cache of pruned objects. IO: the Kubernetes API.

use std::{borrow::Cow, collections::BTreeMap, fmt::Debug, sync::Arc};

use futures::{FutureExt, Stream, StreamExt, stream::BoxStream};
use k8s_openapi::api::{
    core::v1::{Node, Pod},
    resource::v1::{ResourceClaim, ResourceSlice},
};
use kube::{
    Api, Client, Resource,
    core::DynamicObject,
    runtime::{
        WatchStreamExt,
        reflector::{Lookup, ObjectRef, Store, store::Writer},
        watcher::{self, Event, watcher},
    },
};
use serde::de::DeserializeOwned;

use super::{ClaimFacts, Live, NodeFacts, PluginPod};
use crate::{
    controller::{
        build::{COMPONENT, MANAGED_BY},
        child::ChildKind,
    },
    slices::pool,
};

/// A watch that failed. It restarts by itself, with a growing pause.
#[derive(Debug, thiserror::Error)]
#[error("watching {what} failed, retrying: {error}")]
pub struct WatchError {
    what: &'static str,
    error: watcher::Error,
}

/// A change that may matter to any config, or a watch failure.
pub type Changes = BoxStream<'static, Result<(), WatchError>>;

/// Everything that is watched, except the configs themselves.
#[derive(Clone)]
pub struct Caches {
    children: BTreeMap<ChildKind, Store<Cached<Live>>>,
    slices: Store<Cached<Arc<ResourceSlice>>>,
    pods: Store<Cached<PluginPod>>,
    nodes: Store<Cached<NodeFacts>>,
    claims: Store<Cached<ClaimFacts>>,
}

impl Caches {
    /// Caches, and the stream that fills them while it is polled.
    pub fn new(client: &Client, namespace: &str) -> (Self, Changes) {
        let ours = watcher::Config::default().labels(&format!("{}={}", MANAGED_BY.0, MANAGED_BY.1));
        let plugins = watcher::Config::default().labels(&format!("{}={}", COMPONENT.0, COMPONENT.1));
        let everything = watcher::Config::default;
        let mut changes = Vec::new();
        let children = ChildKind::ALL
            .into_iter()
            .map(|kind| {
                let api = child_api(client, namespace, kind);
                // All DeviceClasses are watched, because a name that we want may be taken by another owner.
                let config = if kind == ChildKind::DeviceClass { everything() } else { ours.clone() };
                let store = follow(kind.as_str(), api, config, &mut changes, move |o| Live::of(kind, o));
                (kind, store)
            })
            .collect();
        let slices = follow("ResourceSlice", Api::all(client.clone()), everything(), &mut changes, |mut slice| {
            pool::prune(&mut slice);
            Arc::new(slice)
        });
        let pods = follow("Pod", Api::namespaced(client.clone(), namespace), plugins, &mut changes, |pod: Pod| {
            PluginPod::of(&pod)
        });
        let nodes =
            follow("Node", Api::all(client.clone()), everything(), &mut changes, |node: Node| NodeFacts::of(&node));
        let claims =
            follow("ResourceClaim", Api::all(client.clone()), everything(), &mut changes, |claim: ResourceClaim| {
                ClaimFacts::of(&claim)
            });
        (Self { children, slices, pods, nodes, claims }, futures::stream::select_all(changes).boxed())
    }

    /// Waits until every cache has been filled once; forever if one cannot be filled.
    pub async fn filled(&self) {
        for children in self.children.values() {
            children.wait_until_ready().await.ok();
        }
        self.slices.wait_until_ready().await.ok();
        self.pods.wait_until_ready().await.ok();
        self.nodes.wait_until_ready().await.ok();
        self.claims.wait_until_ready().await.ok();
    }

    /// Whether every cache has been filled once.
    pub fn are_ready(&self) -> bool {
        self.filled().now_or_never().is_some()
    }

    /// All watched objects of children's kinds.
    pub fn children(&self) -> Vec<Live> {
        self.children.values().flat_map(values).collect()
    }

    /// All slices.
    pub fn slices(&self) -> Vec<Arc<ResourceSlice>> {
        values(&self.slices)
    }

    /// All node plugins' pods.
    pub fn pods(&self) -> Vec<PluginPod> {
        values(&self.pods)
    }

    /// All nodes.
    pub fn nodes(&self) -> Vec<NodeFacts> {
        values(&self.nodes)
    }

    /// All claims that hold devices.
    pub fn claims(&self) -> Vec<ClaimFacts> {
        let mut claims = values(&self.claims);
        claims.retain(|claim| !claim.devices.is_empty());
        claims
    }
}

/// The API of a kind of child.
pub fn child_api(client: &Client, namespace: &str, kind: ChildKind) -> Api<DynamicObject> {
    let resource = kind.resource();
    if kind.is_namespaced() {
        Api::namespaced_with(client.clone(), namespace, &resource)
    } else {
        Api::all_with(client.clone(), &resource)
    }
}

fn values<T: Clone>(store: &Store<Cached<T>>) -> Vec<T> {
    store.state().iter().map(|kept| kept.value.clone()).collect()
}

/// Watches one kind; only a change of what is kept is a change.
fn follow<K, T>(
    what: &'static str,
    api: Api<K>,
    config: watcher::Config,
    changes: &mut Vec<Changes>,
    keep: impl Fn(K) -> T + Send + Sync + 'static,
) -> Store<Cached<T>>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
    K::DynamicType: Clone + Send + Sync,
    T: Clone + PartialEq + Send + Sync + 'static,
{
    let writer = Writer::<Cached<T>>::new(());
    let store = writer.as_reader();
    let events = watcher(api, config).default_backoff().map(move |event| {
        event.map(|event| map(event, |object| Cached::of(object, &keep))).map_err(|error| WatchError { what, error })
    });
    changes.push(visible(writer, events).boxed());
    store
}

/// Writes events to the cache, and passes on those that change it.
fn visible<T>(
    mut writer: Writer<Cached<T>>,
    events: impl Stream<Item = Result<Event<Cached<T>>, WatchError>> + Send + 'static,
) -> impl Stream<Item = Result<(), WatchError>> + Send
where
    T: Clone + PartialEq + Send + Sync + 'static,
{
    let store = writer.as_reader();
    events.filter_map(move |event| {
        let change = match event {
            Err(error) => Some(Err(error)),
            Ok(event) => {
                let seen = match &event {
                    Event::Apply(kept) => store.get(&kept.reference()).is_none_or(|old| old.value != kept.value),
                    Event::Delete(_) | Event::InitDone => true,
                    Event::Init | Event::InitApply(_) => false,
                };
                writer.apply_watcher_event(&event);
                seen.then_some(Ok(()))
            }
        };
        futures::future::ready(change)
    })
}

fn map<K, T>(event: Event<K>, keep: impl Fn(K) -> T) -> Event<T> {
    match event {
        Event::Apply(object) => Event::Apply(keep(object)),
        Event::Delete(object) => Event::Delete(keep(object)),
        Event::Init => Event::Init,
        Event::InitApply(object) => Event::InitApply(keep(object)),
        Event::InitDone => Event::InitDone,
    }
}

/// The kept part of an object, with its name.
#[derive(Clone, Debug)]
struct Cached<T> {
    name: String,
    namespace: Option<String>,
    value: T,
}

impl<T: Clone> Cached<T> {
    fn of<K: Resource>(object: K, keep: impl Fn(K) -> T) -> Self {
        let metadata = object.meta();
        Self {
            name: metadata.name.clone().unwrap_or_default(),
            namespace: metadata.namespace.clone(),
            value: keep(object),
        }
    }

    fn reference(&self) -> ObjectRef<Self> {
        self.to_object_ref(())
    }
}

impl<T> Lookup for Cached<T> {
    type DynamicType = ();

    fn kind((): &()) -> Cow<'_, str> {
        "Cached".into()
    }

    fn group((): &()) -> Cow<'_, str> {
        "".into()
    }

    fn version((): &()) -> Cow<'_, str> {
        "".into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        "".into()
    }

    fn name(&self) -> Option<Cow<'_, str>> {
        Some(self.name.as_str().into())
    }

    fn namespace(&self) -> Option<Cow<'_, str>> {
        self.namespace.as_deref().map(Into::into)
    }

    fn resource_version(&self) -> Option<Cow<'_, str>> {
        None
    }

    fn uid(&self) -> Option<Cow<'_, str>> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(name: &str, value: u8) -> Cached<u8> {
        Cached { name: name.into(), namespace: None, value }
    }

    #[tokio::test]
    async fn only_a_change_of_what_is_kept_is_a_change() {
        let writer = Writer::new(());
        let store = writer.as_reader();
        let events = [
            Event::Init,
            Event::InitApply(kept("a", 1)),
            Event::InitDone,
            Event::Apply(kept("a", 1)),
            Event::Apply(kept("a", 2)),
            Event::Apply(kept("b", 1)),
            Event::Delete(kept("a", 2)),
        ];
        let changes = visible(writer, futures::stream::iter(events.map(Ok))).count().await;
        assert_eq!(changes, 4);
        assert!(store.wait_until_ready().now_or_never().is_some());
        assert_eq!(values(&store), [1]);
    }
}
