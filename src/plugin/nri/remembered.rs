//! Remembers across restarts which containers are restricted to fewer CPUs than they had. IO: a file in the state
//! directory.
//!
//! Without the file, a restarted plugin could not distinguish a container that it moved from one that had few CPUs
//! before, and would never give back what the container had. The file is written before the runtime is asked for a
//! change. It may be lost in a reboot, because the containers are lost too. The plugin does not wait for a disk that
//! hangs: it must answer NRI within two seconds, and keeping containers off claimed CPUs matters more than being able
//! to give those CPUs back after a crash at that moment.

use std::{
    collections::HashMap,
    fs, io,
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, channel, sync_channel},
    },
    thread,
    time::Duration,
};

use serde::{Deserialize, Serialize};

use super::containers::{Containers, Remembered};
use crate::replace::{Durability, replace};

const VERSION: u32 = 1;

/// How long to wait for a write.
const PATIENCE: Duration = Duration::from_millis(200);

#[derive(Default, Serialize, Deserialize)]
struct Content<K> {
    version: u32,
    containers: K,
}

/// The file.
#[derive(Debug)]
pub(super) struct RememberedFile {
    path: PathBuf,
    /// The content of the file, or what is being written to it, if known.
    content: Option<String>,
    writer: Option<Writer>,
}

/// The thread that writes. It ends when this is dropped.
#[derive(Debug)]
struct Writer {
    /// What to write next, with its number. Newer content replaces content that is not written yet.
    next: Arc<Mutex<Option<(u64, String)>>>,
    wake: SyncSender<()>,
    /// The numbers of the contents that were written, and whether that succeeded.
    results: Receiver<(u64, io::Result<()>)>,
    last_sent: u64,
    last_written: u64,
}

impl RememberedFile {
    pub fn new(path: PathBuf) -> Self {
        Self { path, content: None, writer: None }
    }

    /// What was remembered. Empty if the file cannot be read: it is only needed to give CPUs back.
    pub fn load(&self) -> HashMap<String, Remembered> {
        let read = || -> io::Result<Content<HashMap<String, Remembered>>> {
            let content: Content<_> = serde_json::from_str(&fs::read_to_string(&self.path)?)?;
            if content.version != VERSION {
                return Err(io::Error::other(format!("unknown version {}", content.version)));
            }
            Ok(content)
        };
        match read() {
            Ok(content) => content.containers,
            Err(error) if error.kind() == io::ErrorKind::NotFound => HashMap::new(),
            Err(error) => {
                tracing::warn!(
                    "cannot read {}: {error}; containers that were kept off claimed CPUs do not get them back until they \
                     are restarted",
                    self.path.display()
                );
                HashMap::new()
            }
        }
    }

    /// Remembers what these containers had.
    pub fn save(&mut self, containers: &Containers) {
        // An earlier write that nobody waited for may have failed since.
        if let Err(error) = self.writer.as_mut().map_or(Ok(()), Writer::collect) {
            self.failed(&error);
        }

        let to_remember: std::collections::BTreeMap<_, _> = containers.to_remember().collect();
        if to_remember.is_empty() && self.content.is_none() && !self.path.exists() {
            return;
        }
        let encoded =
            serde_json::to_string(&Content { version: VERSION, containers: to_remember }).map_err(io::Error::from);
        let written = encoded.and_then(|content| {
            if self.content.as_ref() == Some(&content) {
                return Ok(());
            }
            self.content = Some(content.clone());
            match &mut self.writer {
                Some(writer) => writer,
                none => none.insert(Writer::start(self.path.clone())?),
            }
            .write(content)
        });
        if let Err(error) = written {
            self.failed(&error);
        }
    }

    fn failed(&mut self, error: &io::Error) {
        self.content = None;
        tracing::warn!(
            "cannot write {}: {error}; after a restart of this plugin, containers may stay off CPUs that are no longer \
             claimed",
            self.path.display()
        );
    }
}

impl Writer {
    fn start(path: PathBuf) -> io::Result<Self> {
        let next = Arc::<Mutex<Option<(u64, String)>>>::default();
        let (wake, woken) = sync_channel(1);
        let (done, results) = channel();
        let to_write = Arc::clone(&next);
        let main = move || {
            while let Ok(()) = woken.recv() {
                let Some((number, content)) = lock(&to_write).take() else { continue };
                let result = replace(&path, content.as_bytes(), Durability::Process);
                if done.send((number, result)).is_err() {
                    break;
                }
            }
        };
        thread::Builder::new().name("nri.json".to_owned()).spawn(main)?;
        Ok(Self { next, wake, results, last_sent: 0, last_written: 0 })
    }

    /// Queues the content for writing. Waits only if earlier writes have finished, and for a limited time.
    fn write(&mut self, content: String) -> io::Result<()> {
        let hangs = !self.has_caught_up();
        self.last_sent += 1;
        *lock(&self.next) = Some((self.last_sent, content));
        if let Err(TrySendError::Disconnected(())) = self.wake.try_send(()) {
            return Err(died());
        }
        if hangs {
            return Ok(());
        }
        match self.results.recv_timeout(PATIENCE) {
            Ok((number, result)) => {
                self.last_written = number;
                result
            }
            Err(RecvTimeoutError::Timeout) => {
                tracing::warn!(
                    "writing to the state directory takes longer than {PATIENCE:?}; continuing without waiting for it"
                );
                Ok(())
            }
            Err(RecvTimeoutError::Disconnected) => Err(died()),
        }
    }

    /// Takes the results that have arrived. An error if the last write failed.
    fn collect(&mut self) -> io::Result<()> {
        let mut last = Ok(());
        while let Ok((number, result)) = self.results.try_recv() {
            self.last_written = number;
            last = result;
        }
        last
    }

    /// Whether everything was written.
    fn has_caught_up(&self) -> bool {
        self.last_written == self.last_sent
    }
}

fn died() -> io::Error {
    io::Error::other("the writer thread died")
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;
    use crate::{
        logged,
        plugin::nri::{
            containers::{Observed, Use},
            cpuset::Cpuset,
        },
    };

    fn on(cpus: &str) -> Cpuset {
        Cpuset::of_cpus(cpus.parse().unwrap())
    }

    /// A container on CPUs 0-5, restricted to a share.
    fn containers(share: Option<&str>) -> Containers {
        let observed = Observed { id: "a".into(), usage: Use::Free, placement: on("0-5"), is_running: true };
        let share = share.map(|share| share.parse().unwrap());
        Containers::synchronize([observed], &HashMap::new(), share, "0-7".parse().unwrap())
    }

    #[test]
    fn saved_placements_are_loaded_and_forgotten_once_given_back() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("nri.json");
        let mut file = RememberedFile::new(path.clone());
        file.save(&containers(Some("4-7")));
        let loaded = RememberedFile::new(path.clone()).load();
        assert_eq!(
            loaded,
            [("a".to_owned(), Remembered { before: on("0-5"), given: vec![on("4-5")], changing: true })].into()
        );
        file.save(&containers(None));
        assert_eq!(RememberedFile::new(path).load(), HashMap::new());
    }

    #[test]
    fn a_hanging_disk_blocks_nothing_and_gets_the_newest_content_once_it_works_again() {
        let directory = tempfile::tempdir().unwrap();
        let (path, disk) = (directory.path().join("nri.json"), directory.path().join("nri.json.tmp"));
        // Opening a FIFO for writing hangs until it is opened for reading.
        rustix::fs::mknodat(rustix::fs::CWD, &disk, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        let (saved, has_saved) = channel();
        thread::spawn({
            let path = path.clone();
            move || {
                let mut file = RememberedFile::new(path);
                for share in ["4-7", "3-7", "2-7"].into_iter().cycle().take(15) {
                    file.save(&containers(Some(share)));
                }
                saved.send(file).unwrap();
            }
        });
        let mut file = has_saved.recv_timeout(Duration::from_millis(1500)).expect("the runtime waits for 2 s");
        fs::File::open(&disk).unwrap().read_to_end(&mut vec![]).unwrap();
        eventually(|| fs::symlink_metadata(&path).is_ok_and(|found| found.is_file()));
        assert_eq!(RememberedFile::new(path.clone()).load()["a"].given, [on("2-5")]);

        // From then on a change is on the disk again before the runtime is asked for it.
        eventually(|| {
            let writer = file.writer.as_mut().unwrap();
            writer.collect().unwrap();
            writer.has_caught_up()
        });
        for share in ["1-7", "3-7", "4-7"] {
            file.save(&containers(Some(share)));
            assert!(file.writer.as_ref().unwrap().has_caught_up());
        }
        assert_eq!(RememberedFile::new(path).load()["a"].given, [on("4-5")]);
    }

    fn eventually(mut condition: impl FnMut() -> bool) {
        let start = std::time::Instant::now();
        while !condition() {
            assert!(start.elapsed() < Duration::from_secs(10), "never");
            thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn a_failed_write_that_nobody_waited_for_is_retried() {
        let directory = tempfile::tempdir().unwrap();
        let (path, disk) = (directory.path().join("nri.json"), directory.path().join("nri.json.tmp"));
        rustix::fs::mknodat(rustix::fs::CWD, &disk, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        let (log, _guard) = logged::capture();
        let mut file = RememberedFile::new(path.clone());
        file.save(&containers(Some("4-7")));
        // The rename will fail.
        fs::create_dir(&path).unwrap();
        fs::File::open(&disk).unwrap().read_to_end(&mut vec![]).unwrap();
        eventually(|| {
            file.save(&containers(Some("4-7")));
            log.text().contains("cannot write")
        });
        assert_eq!(file.writer.as_ref().unwrap().last_sent, 2);
    }

    #[test]
    fn a_write_that_failed_is_retried() {
        let directory = tempfile::tempdir().unwrap();
        let (path, blocker) = (directory.path().join("nri.json"), directory.path().join("nri.json.tmp"));
        fs::create_dir(&blocker).unwrap();
        let mut file = RememberedFile::new(path.clone());
        file.save(&containers(Some("4-7")));
        fs::remove_dir(&blocker).unwrap();
        file.save(&containers(Some("4-7")));
        assert_eq!(RememberedFile::new(path).load().len(), 1);
    }

    #[test]
    fn a_file_that_cannot_be_read_counts_as_empty() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("nri.json");
        let (log, _guard) = logged::capture();
        assert_eq!(RememberedFile::new(path.clone()).load(), HashMap::new());
        assert_eq!(log.text(), "", "there is none before the first change");
        for content in [
            "",
            "{",
            r#"{"version":2,"containers":{}}"#,
            r#"{"version":1,"containers":{"a":{"before":{"cpus":"x"},"given":[]}}}"#,
        ] {
            fs::write(&path, content).unwrap();
            assert_eq!(RememberedFile::new(path.clone()).load(), HashMap::new(), "{content}");
        }
        assert_eq!(log.text().matches("cannot read").count(), 4);
    }
}
