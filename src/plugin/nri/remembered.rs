//! Which containers are kept to less than they had, remembered over restarts of the plugin. IO: a file in the state
//! directory.
//!
//! Without it, nobody could tell a container that this plugin moved from one that was narrow before, and it would never
//! be given back what it had. It is written before the runtime is asked for a change, and lost in a reboot without harm:
//! the containers are lost too. A disk that hangs is not waited for: NRI has two seconds for an answer, and that a container
//! is kept off claimed CPUs matters more than that it is given them back after a crash just then.

use std::{
    collections::HashMap,
    fs, io,
    path::PathBuf,
    sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    thread,
    time::Duration,
};

use serde::{Deserialize, Serialize};

use super::containers::{Containers, Remembered};
use crate::replace::{Durability, replace};

const VERSION: u32 = 1;

/// How long a write is waited for.
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
    /// What is in it, or soon will be, as far as known.
    content: Option<String>,
    writer: Option<Writer>,
}

/// The thread that writes. It ends with this.
#[derive(Debug)]
struct Writer {
    contents: Sender<String>,
    results: Receiver<Written>,
    /// Contents whose result has not come.
    pending: usize,
}

/// How many of the contents were seen, of which the newest was written; and whether that went well.
#[derive(Debug)]
struct Written {
    seen: usize,
    result: io::Result<()>,
}

impl RememberedFile {
    pub fn new(path: PathBuf) -> Self {
        Self { path, content: None, writer: None }
    }

    /// What was remembered: nothing, if that cannot be read, because it is only needed to give something back.
    pub fn load(&self) -> HashMap<String, Remembered> {
        let read = || -> io::Result<Content<HashMap<String, Remembered>>> {
            let content: Content<_> = serde_json::from_str(&fs::read_to_string(&self.path)?)?;
            if content.version != VERSION {
                return Err(io::Error::other(format!("version {} is not known", content.version)));
            }
            Ok(content)
        };
        match read() {
            Ok(content) => content.containers,
            Err(error) if error.kind() == io::ErrorKind::NotFound => HashMap::new(),
            Err(error) => {
                tracing::warn!(
                    "{} cannot be read ({error}): containers that were kept off claimed CPUs are not given them back \
                     until they are restarted",
                    self.path.display()
                );
                HashMap::new()
            }
        }
    }

    /// Remembers what these containers had.
    pub fn save(&mut self, containers: &Containers) {
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
            self.content = None;
            tracing::warn!(
                "{} cannot be written ({error}): after a restart of this plugin, containers may stay off CPUs that are \
                 no longer claimed",
                self.path.display()
            );
        }
    }
}

impl Writer {
    fn start(path: PathBuf) -> io::Result<Self> {
        let (contents, to_write) = channel::<String>();
        let (written, results) = channel();
        let main = move || {
            while let Ok(content) = to_write.recv() {
                let newer: Vec<String> = to_write.try_iter().collect();
                let newest = newer.last().unwrap_or(&content);
                let result = replace(&path, newest.as_bytes(), Durability::Process);
                if written.send(Written { seen: 1 + newer.len(), result }).is_err() {
                    break;
                }
            }
        };
        thread::Builder::new().name("nri.json".to_owned()).spawn(main)?;
        Ok(Self { contents, results, pending: 0 })
    }

    /// Has the content written. While the disk hangs it returns before that, at once from the second time on.
    fn write(&mut self, content: String) -> io::Result<()> {
        let hung = self.pending > 0;
        let died = || io::Error::other("the thread that writes it died");
        self.contents.send(content).map_err(|_| died())?;
        self.pending += 1;
        while self.pending > 0 {
            match self.results.recv_timeout(if hung { Duration::ZERO } else { PATIENCE }) {
                Ok(Written { seen, result }) => {
                    self.pending -= seen;
                    result?;
                }
                Err(RecvTimeoutError::Timeout) => {
                    if !hung {
                        tracing::warn!("the state directory's disk takes longer than {PATIENCE:?} to write: going on");
                    }
                    break;
                }
                Err(RecvTimeoutError::Disconnected) => return Err(died()),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;
    use crate::plugin::nri::{
        containers::{Observed, Use},
        cpuset::Cpuset,
    };

    fn on(cpus: &str) -> Cpuset {
        Cpuset::of_cpus(cpus.parse().unwrap())
    }

    /// A container on 0-5, kept to a share.
    fn containers(share: Option<&str>) -> Containers {
        let observed = Observed { id: "a".into(), usage: Use::Free, placement: on("0-5") };
        let share = share.map(|share| share.parse().unwrap());
        Containers::synchronize([observed], &HashMap::new(), share, "0-7".parse().unwrap())
    }

    #[test]
    fn what_is_saved_is_loaded_and_forgotten_when_it_is_given_back() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("nri.json");
        let mut file = RememberedFile::new(path.clone());
        file.save(&containers(Some("4-7")));
        let loaded = RememberedFile::new(path.clone()).load();
        assert_eq!(loaded, [("a".to_owned(), Remembered { before: on("0-5"), given: vec![on("4-5")] })].into());
        file.save(&containers(None));
        assert_eq!(RememberedFile::new(path).load(), HashMap::new());
    }

    #[test]
    fn a_disk_that_hangs_is_not_waited_for_and_has_the_newest_once_it_goes_on() {
        let directory = tempfile::tempdir().unwrap();
        let (path, disk) = (directory.path().join("nri.json"), directory.path().join("nri.json.tmp"));
        // Opening a FIFO hangs until somebody reads from it.
        rustix::fs::mknodat(rustix::fs::CWD, &disk, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        let (saved, has_saved) = channel();
        thread::spawn({
            let path = path.clone();
            move || {
                let mut file = RememberedFile::new(path);
                for share in ["4-7", "3-7", "2-7"] {
                    file.save(&containers(Some(share)));
                }
                saved.send(file).unwrap();
            }
        });
        let _file = has_saved.recv_timeout(Duration::from_millis(1500)).expect("the runtime waits for 2 s");
        fs::File::open(&disk).unwrap().read_to_end(&mut vec![]).unwrap();
        let start = std::time::Instant::now();
        while !fs::symlink_metadata(&path).is_ok_and(|found| found.is_file()) {
            assert!(start.elapsed() < Duration::from_secs(10), "never written");
            thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(RememberedFile::new(path).load()["a"].given, [on("2-5")]);
    }

    #[test]
    fn what_cannot_be_written_is_tried_again() {
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
    fn a_file_that_cannot_be_read_is_as_none() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("nri.json");
        for content in [
            "",
            "{",
            r#"{"version":2,"containers":{}}"#,
            r#"{"version":1,"containers":{"a":{"before":{"cpus":"x"},"given":[]}}}"#,
        ] {
            fs::write(&path, content).unwrap();
            assert_eq!(RememberedFile::new(path.clone()).load(), HashMap::new(), "{content}");
        }
    }
}
