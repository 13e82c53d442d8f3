//! The slices as last seen in a watch event or in the response to one of our writes. Pure.

use std::collections::BTreeMap;

use k8s_openapi::api::resource::v1::ResourceSlice;
use kube::runtime::watcher::Event;

/// The driver's slices of this node, by name.
#[derive(Debug, Default)]
pub(super) struct Seen {
    slices: BTreeMap<String, ResourceSlice>,
    /// Items of a list that is not complete yet.
    list: BTreeMap<String, ResourceSlice>,
}

impl Seen {
    /// All slices.
    pub(super) fn slices(&self) -> Vec<&ResourceSlice> {
        self.slices.values().collect()
    }

    /// Records a watch event. Returns whether it is news; events from our own writes are not.
    pub(super) fn note(&mut self, event: Event<ResourceSlice>) -> bool {
        match event {
            Event::Init => {
                self.list.clear();
                false
            }
            Event::InitApply(slice) => {
                put(&mut self.list, slice);
                false
            }
            Event::InitDone => {
                self.slices = std::mem::take(&mut self.list);
                true
            }
            Event::Apply(slice) => {
                let known = slice.metadata.name.as_ref().and_then(|name| self.slices.get(name));
                let news = known.is_none_or(|known| is_later(&slice, known));
                if news {
                    put(&mut self.slices, slice);
                }
                news
            }
            Event::Delete(slice) => {
                let name = slice.metadata.name.unwrap_or_default();
                // If the UID differs, one of our writes has already recreated the slice, and its event is still to
                // come.
                let same = self.slices.get(&name).is_some_and(|known| known.metadata.uid == slice.metadata.uid);
                same && self.slices.remove(&name).is_some()
            }
        }
    }

    /// Records the response to one of our writes.
    pub(super) fn wrote(&mut self, slice: ResourceSlice) {
        put(&mut self.slices, slice);
    }

    /// Records that the slice does not exist.
    pub(super) fn is_gone(&mut self, name: &str) {
        self.slices.remove(name);
    }
}

fn put(slices: &mut BTreeMap<String, ResourceSlice>, mut slice: ResourceSlice) {
    slice.metadata.managed_fields = None;
    slices.insert(slice.metadata.name.clone().unwrap_or_default(), slice);
}

/// Resource versions of one kind are increasing numbers (KEP-5504, guaranteed since 1.35). A version that is not a
/// number counts as later.
fn is_later(slice: &ResourceSlice, known: &ResourceSlice) -> bool {
    let version = |slice: &ResourceSlice| slice.metadata.resource_version.as_deref()?.parse::<u128>().ok();
    match (version(slice), version(known)) {
        (Some(new), Some(old)) => new > old,
        _ => slice.metadata.resource_version != known.metadata.resource_version,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::api::ObjectMeta;

    fn slice(uid: &str, version: &str) -> ResourceSlice {
        ResourceSlice {
            metadata: ObjectMeta {
                name: Some("s".into()),
                uid: Some(uid.into()),
                resource_version: Some(version.into()),
                ..ObjectMeta::default()
            },
            ..ResourceSlice::default()
        }
    }

    #[test]
    fn events_from_our_own_writes_and_older_events_are_not_news() {
        let mut seen = Seen::default();
        seen.wrote(slice("a", "10"));
        assert!(!seen.note(Event::Apply(slice("a", "10"))));
        assert!(!seen.note(Event::Apply(slice("a", "9"))), "as text 9 is later than 10");
        assert!(seen.note(Event::Apply(slice("a", "11"))));
    }

    #[test]
    fn the_deletion_of_a_slice_that_was_recreated_is_not_news() {
        let mut seen = Seen::default();
        seen.wrote(slice("b", "12"));
        assert!(!seen.note(Event::Delete(slice("a", "11"))));
        assert_eq!(seen.slices().len(), 1);
        assert!(seen.note(Event::Delete(slice("b", "13"))));
        assert_eq!(seen.slices().len(), 0);
    }

    #[test]
    fn a_new_list_replaces_the_old_one_once_it_is_complete() {
        let mut seen = Seen::default();
        seen.wrote(slice("a", "10"));
        seen.note(Event::Init);
        assert_eq!(seen.slices().len(), 1);
        assert!(seen.note(Event::InitDone));
        assert_eq!(seen.slices().len(), 0);
    }
}
