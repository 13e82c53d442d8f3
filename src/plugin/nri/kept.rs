//! Which containers are kept to less than they had, remembered over restarts of the plugin. IO: a file in the state
//! directory.
//!
//! Without it, nobody could tell a container that this plugin moved from one that was narrow before, and it would never
//! be given back what it had. It is written before the runtime is asked for a change, and lost in a reboot without harm:
//! the containers are lost too.

use std::{collections::HashMap, io, path::PathBuf};

use serde::{Deserialize, Serialize};

use super::containers::{Containers, Kept};

const VERSION: u32 = 1;

#[derive(Default, Serialize, Deserialize)]
struct Content<K> {
    version: u32,
    containers: K,
}

/// The file.
#[derive(Debug)]
pub(super) struct KeptFile {
    path: PathBuf,
    /// What is in it, as far as known.
    content: Option<String>,
}

impl KeptFile {
    pub fn new(path: PathBuf) -> Self {
        Self { path, content: None }
    }

    /// What was remembered: nothing, if that cannot be read, because it is only needed to give something back.
    pub fn load(&self) -> HashMap<String, Kept> {
        let read = || -> io::Result<Content<HashMap<String, Kept>>> {
            let content: Content<_> = serde_json::from_str(&std::fs::read_to_string(&self.path)?)?;
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
        let kept: std::collections::BTreeMap<_, _> = containers.kept().collect();
        if kept.is_empty() && self.content.is_none() && !self.path.exists() {
            return;
        }
        let written = serde_json::to_string(&Content { version: VERSION, containers: kept })
            .map_err(io::Error::from)
            .and_then(|content| {
                if self.content.as_ref() == Some(&content) {
                    return Ok(());
                }
                let temporary = self.path.with_extension("new");
                std::fs::write(&temporary, &content)?;
                std::fs::rename(&temporary, &self.path)?;
                self.content = Some(content);
                Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugin::nri::{
        containers::{Observed, Use},
        placement::Placement,
    };

    fn on(cpus: &str) -> Placement {
        Placement { cpus: cpus.parse().unwrap(), ..Placement::default() }
    }

    fn containers(share: Option<Placement>) -> Containers {
        let observed = Observed { id: "a".into(), usage: Use::Free, placement: on("0-5") };
        Containers::synchronize([observed], &HashMap::new(), share, on("0-7"))
    }

    #[test]
    fn what_is_saved_is_loaded_and_forgotten_when_it_is_given_back() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("nri.json");
        let mut file = KeptFile::new(path.clone());
        file.save(&containers(Some(on("4-7"))));
        let loaded = KeptFile::new(path.clone()).load();
        assert_eq!(loaded, [("a".to_owned(), Kept { before: on("0-5"), given: vec![on("4-5")] })].into());
        file.save(&containers(None));
        assert_eq!(KeptFile::new(path).load(), HashMap::new());
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
            std::fs::write(&path, content).unwrap();
            assert_eq!(KeptFile::new(path.clone()).load(), HashMap::new(), "{content}");
        }
    }
}
