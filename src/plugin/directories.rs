//! Detects removed files in directories that other processes may empty. IO: inotify.

use std::{path::PathBuf, time::Duration};

use futures::StreamExt;
use inotify::{EventStream, Inotify, WatchMask};
use tokio::time::{sleep, timeout};

/// How long to wait for the end of a burst of removals.
const SETTLE: Duration = Duration::from_millis(50);
/// How often to check even without an event, because a directory may be new or the host may be out of inotify
/// instances.
const CHECK: Duration = Duration::from_secs(10);

/// The directories that are watched.
pub struct Directories {
    paths: Vec<PathBuf>,
    events: Option<EventStream<[u8; 1024]>>,
}

impl Directories {
    /// Watches these directories, even if they are created later.
    pub fn new(paths: Vec<PathBuf>) -> Self {
        let events = Inotify::init().and_then(|inotify| inotify.into_event_stream([0; 1024]));
        if let Err(error) = &events {
            tracing::warn!(%error, "inotify is not available: checking for removed files every {} s", CHECK.as_secs());
        }
        let directories = Self { paths, events: events.ok() };
        directories.watch();
        directories
    }

    /// Returns when a file may have been removed. The caller then checks whether all its files exist.
    pub async fn changed(&mut self) {
        let Some(events) = &mut self.events else { return sleep(CHECK).await };
        let removal = async {
            // The plugin first writes its own files under a temporary name, whose removal can be ignored.
            while let Some(Ok(event)) = events.next().await {
                if event.name.is_none_or(|name| !name.as_encoded_bytes().ends_with(b".tmp")) {
                    return;
                }
            }
        };
        if timeout(CHECK, removal).await.is_ok() {
            sleep(SETTLE).await;
        }

        // inotify treats a recreated directory as a different one. An unchanged directory stays watched.
        self.watch();
    }

    fn watch(&self) {
        let Some(events) = &self.events else { return };
        let gone = WatchMask::DELETE | WatchMask::MOVED_FROM | WatchMask::DELETE_SELF | WatchMask::MOVE_SELF;
        for path in &self.paths {
            if let Err(error) = events.watches().add(path, gone) {
                tracing::debug!(path = %path.display(), %error, "not watched yet");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[tokio::test]
    async fn a_removed_file_is_noticed_at_once_and_a_new_one_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let mut directories = Directories::new(vec![dir.path().to_owned()]);
        fs::write(dir.path().join("a"), "").unwrap();
        assert!(timeout(Duration::from_millis(200), directories.changed()).await.is_err());
        fs::remove_file(dir.path().join("a")).unwrap();
        timeout(Duration::from_secs(2), directories.changed()).await.unwrap();
    }

    #[tokio::test]
    async fn a_recreated_directory_is_watched_again() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("cdi");
        fs::create_dir(&dir).unwrap();
        let mut directories = Directories::new(vec![dir.clone()]);
        fs::remove_dir(&dir).unwrap();
        fs::create_dir(&dir).unwrap();
        timeout(Duration::from_secs(2), directories.changed()).await.unwrap();
        // Events from the removal itself may still arrive.
        while timeout(Duration::from_millis(200), directories.changed()).await.is_ok() {}
        fs::write(dir.join("a"), "").unwrap();
        fs::remove_file(dir.join("a")).unwrap();
        timeout(Duration::from_secs(2), directories.changed()).await.unwrap();
    }
}
