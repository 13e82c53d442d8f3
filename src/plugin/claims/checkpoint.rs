//! The prepared claims on disk. IO: one file in the state directory.
//!
//! A write is atomic and durable: a second file is synced and takes the first one's place, then the directory is
//! synced. An unreadable checkpoint is never overwritten: the caller fails closed until someone has fixed it.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use crate::{
    digest::sha256,
    plugin::claims::prepared::PreparedClaim,
    replace::{Durability, replace},
};

/// The version of the format that this release writes. A later release may write a higher version, which this one
/// cannot read.
const VERSION: u64 = 1;

/// The file size is rounded up to a multiple of this, so that it rarely changes.
const BLOCK: usize = 4096;

/// Why the checkpoint cannot be read or written. Each message says what to do.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// It cannot be read.
    #[error(
        "cannot read checkpoint {path}: {source}; until it is readable, claims on this node can be neither prepared nor unprepared"
    )]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The content is damaged.
    #[error(
        "checkpoint {path} is damaged ({problem}), so claims on this node can be neither prepared nor unprepared: restore the file, or drain the node's pods that use this driver's claims and delete the file"
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// A later release wrote it.
    #[error(
        "checkpoint {path} has version {found}, but this release reads only versions up to {VERSION}: go back to the release that wrote it, or drain the node's pods that use this driver's claims and delete the file"
    )]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u64,
    },
    /// It is missing, but CDI files show that claims are prepared.
    #[error(
        "checkpoint {path} is missing, but {cdi_file} shows that claims are prepared, so claims on this node can be neither prepared nor unprepared: restore the checkpoint, or drain the node's pods that use this driver's claims and delete its CDI files"
    )]
    Missing {
        /// The file.
        path: PathBuf,
        /// One of the CDI files.
        cdi_file: PathBuf,
    },
    /// It cannot be written.
    #[error("cannot write checkpoint {path}: {source}; free up or repair its disk; the kubelet retries")]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

#[derive(Deserialize)]
struct Envelope {
    version: u64,
    checksum: String,
    data: serde_json::Value,
}

#[derive(Serialize, Deserialize)]
struct Data<T> {
    claims: T,
}

/// The checkpoint file of one driver.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    path: PathBuf,
}

impl Checkpoint {
    /// The checkpoint in `state_dir`.
    pub fn within(state_dir: &Path) -> Self {
        Self { path: state_dir.join("checkpoint.json") }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The prepared claims; `None` when there is no file.
    pub fn read(&self) -> Result<Option<Vec<PreparedClaim>>, CheckpointError> {
        let bytes = match fs::read(&self.path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(CheckpointError::Read { path: self.path.clone(), source }),
        };
        let damaged = |problem: String| CheckpointError::Damaged { path: self.path.clone(), problem };
        let envelope: Envelope = serde_json::from_slice(&bytes).map_err(|error| damaged(error.to_string()))?;
        if envelope.version > VERSION {
            return Err(CheckpointError::Newer { path: self.path.clone(), found: envelope.version });
        }
        let found = checksum(envelope.data.to_string().as_bytes());
        if found != envelope.checksum {
            return Err(damaged("its checksum does not match its content".to_owned()));
        }
        let data: Data<Vec<PreparedClaim>> =
            serde_json::from_value(envelope.data).map_err(|error| damaged(error.to_string()))?;
        Ok(Some(data.claims))
    }

    /// Writes what [`encode`] returned. A machine crash leaves the old content before this returns, and the new content
    /// afterwards.
    pub fn write(&self, encoded: &[u8]) -> Result<(), CheckpointError> {
        // Spaces before the content keep the file's size: see Durability::Machine.
        let mut content = vec![b' '; encoded.len().next_multiple_of(BLOCK) - encoded.len()];
        content.extend_from_slice(encoded);
        replace(&self.path, &content, Durability::Machine)
            .map_err(|source| CheckpointError::Write { path: self.path.clone(), source })
    }
}

/// The file's content for these claims.
pub fn encode<'a>(claims: impl Iterator<Item = &'a PreparedClaim>) -> serde_json::Result<Vec<u8>> {
    // Goes through a Value, so that the checksum covers the same text that reading and rewriting the file would
    // produce.
    let data = serde_json::to_value(Data { claims: claims.collect::<Vec<_>>() })?.to_string();
    let sum = checksum(data.as_bytes());
    Ok(format!("{{\"version\":{VERSION},\"checksum\":\"{sum}\",\"data\":{data}}}\n").into_bytes())
}

fn checksum(data: &[u8]) -> String {
    format!("sha256:{}", sha256(data))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

    use super::*;
    use crate::{
        drivers::grant::{DeviceNode, Grant, Mount, NetDevice, Share},
        plugin::claims::prepared::{PodRef, PreparedDevice, PreparedRequest},
    };

    fn claims() -> Vec<PreparedClaim> {
        vec![PreparedClaim {
            uid: "u1".into(),
            namespace: "apps".into(),
            name: "cores".into(),
            requests: vec![PreparedRequest {
                name: "main".into(),
                token: "t".into(),
                devices: vec![PreparedDevice {
                    pool: "node-1".into(),
                    device: "core-0-1".into(),
                    share_id: None,
                    admin_access: false,
                }],
                grant: Grant {
                    cpus: "1,65".parse().unwrap(),
                    env: [("DRA_CPUS_MAIN".to_owned(), "1,65".to_owned())].into(),
                    ..Grant::default()
                },
            }],
            pods: vec![PodRef { uid: "p1".into(), name: "web-1".into() }],
        }]
    }

    fn written(claims: &[PreparedClaim]) -> (tempfile::TempDir, Checkpoint) {
        let dir = tempfile::tempdir().unwrap();
        let checkpoint = Checkpoint::within(dir.path());
        checkpoint.write(&encode(claims.iter()).unwrap()).unwrap();
        (dir, checkpoint)
    }

    #[test]
    fn what_is_written_is_read_back() {
        let (_dir, checkpoint) = written(&claims());
        assert_eq!(checkpoint.read().unwrap(), Some(claims()));
    }

    #[test]
    fn the_format_on_disk_stays() {
        let (_dir, checkpoint) = written(&claims());
        insta::assert_snapshot!(fs::read_to_string(checkpoint.path()).unwrap().trim_start());
    }

    #[test]
    fn every_field_of_a_grant_is_kept() {
        let grant = Grant {
            device_nodes: vec![DeviceNode {
                path: "/dev/a".into(),
                host_path: "/dev/b".into(),
                permissions: "rw".into(),
            }],
            mounts: vec![Mount { host_path: "/a".into(), container_path: "/b".into(), options: vec!["ro".into()] }],
            memory_limit: Some(1 << 30),
            huge_page_limits: [("2MB".to_owned(), 4 << 20)].into(),
            net_devices: vec![NetDevice { host_name: "eth7".into(), pod_name: "net1".into() }],
            shares: vec![Share {
                device: "nic-0".into(),
                consumed: [("bandwidth".to_owned(), Quantity("10G".into()))].into(),
            }],
            ..claims()[0].requests[0].grant.clone()
        };
        let mut claims = claims();
        claims[0].requests[0].grant = grant;
        let (_dir, checkpoint) = written(&claims);
        insta::assert_snapshot!(fs::read_to_string(checkpoint.path()).unwrap().trim_start());
        assert_eq!(checkpoint.read().unwrap(), Some(claims));
    }

    /// The checkpoint as the first release wrote it.
    const FIRST: &str = r#"{"version":1,"checksum":"sha256:a75303dc074d3d2988c0e848f73e0e7c4fc8e625d03e9bec2d0c243d23db0449","data":{"claims":[{"name":"cores","namespace":"apps","requests":[{"devices":[{"device":"core-0-1","pool":"node-1"}],"grant":{"cpus":"1,65","env":{"DRA_CPUS_MAIN":"1,65"},"memoryNodes":""},"name":"main","token":"t"}],"uid":"u1"}]}}"#;

    #[test]
    fn a_checkpoint_without_the_fields_that_were_added_later_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let checkpoint = Checkpoint::within(dir.path());
        fs::write(checkpoint.path(), FIRST).unwrap();
        assert_eq!(checkpoint.read().unwrap(), Some(vec![PreparedClaim { pods: vec![], ..claims().remove(0) }]));
    }

    #[test]
    fn no_file_is_no_claims() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(Checkpoint::within(dir.path()).read().unwrap(), None);
    }

    #[test]
    fn an_unreadable_file_is_an_error_and_does_not_count_as_empty() {
        let dir = tempfile::tempdir().unwrap();
        let checkpoint = Checkpoint::within(dir.path());
        fs::create_dir(checkpoint.path()).unwrap();
        assert!(matches!(checkpoint.read(), Err(CheckpointError::Read { .. })));
    }

    #[test]
    fn a_truncated_checkpoint_is_rejected() {
        let (_dir, checkpoint) = written(&claims());
        let whole = fs::read(checkpoint.path()).unwrap();
        // The last byte is the newline after the JSON.
        let content = whole.iter().position(|byte| *byte != b' ').unwrap();
        for length in (0..content).step_by(512).chain(content..whole.len() - 1) {
            fs::write(checkpoint.path(), &whole[..length]).unwrap();
            let error = checkpoint.read().unwrap_err().to_string();
            assert!(error.contains("checkpoint.json is damaged") && error.contains("drain the node"), "{error}");
        }
    }

    #[test]
    fn a_changed_digit_is_rejected_even_if_the_json_is_well_formed() {
        let (_dir, checkpoint) = written(&claims());
        let text = fs::read_to_string(checkpoint.path()).unwrap().replace("1,65\"", "1,66\"");
        fs::write(checkpoint.path(), text).unwrap();
        assert!(checkpoint.read().unwrap_err().to_string().contains("checksum"));
    }

    #[test]
    fn a_later_version_is_rejected_but_not_called_damaged() {
        let (_dir, checkpoint) = written(&claims());
        let text = fs::read_to_string(checkpoint.path()).unwrap().replace("\"version\":1", "\"version\":2");
        fs::write(checkpoint.path(), text).unwrap();
        assert!(checkpoint.read().unwrap_err().to_string().contains("has version 2"));
    }

    #[test]
    fn two_files_swap_places_and_grow_only_with_their_content() {
        let (dir, checkpoint) = written(&claims());
        let many: Vec<_> = (0..100).flat_map(|_| claims()).collect();
        for (claims, size) in
            [(claims(), BLOCK), (vec![], BLOCK), (claims(), BLOCK), (many, 7 * BLOCK), (vec![], BLOCK)]
        {
            checkpoint.write(&encode(claims.iter()).unwrap()).unwrap();
            assert_eq!(checkpoint.read().unwrap(), Some(claims));
            assert_eq!(fs::metadata(checkpoint.path()).unwrap().len(), size as u64);
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
    }

    #[test]
    fn a_crash_before_the_rename_leaves_the_old_content() {
        let (dir, checkpoint) = written(&claims());
        fs::write(dir.path().join("checkpoint.json.tmp"), b"{\"ver").unwrap();
        assert_eq!(checkpoint.read().unwrap(), Some(claims()));
        checkpoint.write(&encode([].iter()).unwrap()).unwrap();
        assert_eq!(checkpoint.read().unwrap(), Some(vec![]));
    }
}
