//! Writes what the container runtime injects: one CDI file per claim, one CDI device per request. IO: files in the CDI
//! directory.
//!
//! The files can always be recreated from the prepared claims, so they are not synced: a reboot wipes the directory.

use std::{
    collections::BTreeSet,
    ffi::OsStr,
    fs, io,
    path::{Path, PathBuf},
};

use serde_json::json;

use crate::{
    drivers::grant::{DeviceNode, Grant, Mount},
    plugin::claims::prepared::{PreparedClaim, PreparedRequest},
    replace::{Durability, replace},
};

/// The first version in which a device name may begin with a digit, as a UID may.
const CDI_VERSION: &str = "0.5.0";

/// A CDI file could not be written, read or removed.
#[derive(Debug, thiserror::Error)]
#[error("cannot access CDI {what} {path}: {source}; check that nodePlugin.cdiDir is mounted and writable")]
pub struct CdiError {
    what: &'static str,
    path: PathBuf,
    source: io::Error,
}

/// The CDI files of one driver.
#[derive(Clone, Debug)]
pub struct Cdi {
    directory: PathBuf,
    driver: String,
}

impl Cdi {
    /// The files of `driver` in `directory`.
    pub fn new(directory: &Path, driver: &str) -> Self {
        Self { directory: directory.to_owned(), driver: driver.to_owned() }
    }

    /// The directory of the files.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The full name of a request's CDI device, as the kubelet passes it on: `k8s.dra.cpu/claim=<uid>-<request>`.
    pub fn device_id(&self, uid: &str, request: &str) -> String {
        format!("{}={}", self.kind(), device_name(uid, request))
    }

    /// Whether a CDI device belongs to a claim of this driver.
    pub fn is_own(&self, device: &str) -> bool {
        device.split_once('=').is_some_and(|(kind, _)| kind == self.kind())
    }

    /// Writes the claim's file unless its content is already correct.
    pub fn write(&self, claim: &PreparedClaim) -> Result<(), CdiError> {
        let path = self.path(&claim.uid);
        let content = self.spec(claim).to_string();
        if fs::read(&path).is_ok_and(|found| found == content.as_bytes()) {
            return Ok(());
        }
        self.replace(&path, content.as_bytes()).map_err(|source| CdiError { what: "file", path, source })
    }

    /// Removes the claim's file, if there is one.
    pub fn remove(&self, uid: &str) -> Result<(), CdiError> {
        remove(self.path(uid))
    }

    /// Writes the files of `claims` that are missing, and removes those of other claims. Does not read the files.
    pub fn restore<'a>(&self, claims: impl Iterator<Item = &'a PreparedClaim>) -> Result<(), CdiError> {
        let mut found: BTreeSet<PathBuf> = self.own_files()?.into_iter().collect();
        for claim in claims {
            if !found.remove(&self.path(&claim.uid)) {
                self.write(claim)?;
            }
        }
        found.into_iter().try_for_each(remove)
    }

    /// This driver's files, including those of claims that are no longer prepared.
    pub fn own_files(&self) -> Result<Vec<PathBuf>, CdiError> {
        let error = |source| CdiError { what: "directory", path: self.directory.clone(), source };
        let prefix = self.prefix();
        let entries = match fs::read_dir(&self.directory) {
            Ok(entries) => entries,
            Err(missing) if missing.kind() == io::ErrorKind::NotFound => return Ok(vec![]),
            Err(source) => return Err(error(source)),
        };
        let mut own = vec![];
        for entry in entries {
            let path = entry.map_err(error)?.path();
            let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
            if name.strip_prefix(&prefix).is_some_and(|rest| rest.contains(".json")) {
                own.push(path);
            }
        }
        Ok(own)
    }

    fn replace(&self, path: &Path, content: &[u8]) -> io::Result<()> {
        fs::create_dir_all(&self.directory)?;
        // The runtime reads only names that end in .json or .yaml, so it does not see the temporary file.
        replace(path, content, Durability::Process)
    }

    fn spec(&self, claim: &PreparedClaim) -> serde_json::Value {
        let devices: Vec<_> = claim
            .requests
            .iter()
            .map(|request| {
                json!({
                    "name": device_name(&claim.uid, &request.name),
                    "containerEdits": self.edits(claim, request),
                })
            })
            .collect();
        json!({"cdiVersion": CDI_VERSION, "kind": self.kind(), "devices": devices})
    }

    /// What the runtime changes in a container that uses the request. Empty lists are left out.
    fn edits(&self, claim: &PreparedClaim, request: &PreparedRequest) -> serde_json::Value {
        let Grant { device_nodes, mounts, .. } = &request.grant;
        let mut edits = json!({"env": self.env(claim, request)});
        if !device_nodes.is_empty() {
            edits["deviceNodes"] = device_nodes.iter().map(device_node).collect();
        }
        if !mounts.is_empty() {
            edits["mounts"] = mounts.iter().map(mount).collect();
        }
        edits
    }

    /// The grant's variables (the driver names them by request) and the mark by which NRI knows the container.
    fn env(&self, claim: &PreparedClaim, request: &PreparedRequest) -> Vec<String> {
        let mark = format!("{}={}", mark_variable(&claim.uid, &request.name), mark(&self.driver, &request.token));
        request.grant.env.iter().map(|(name, value)| format!("{name}={value}")).chain([mark]).collect()
    }

    fn kind(&self) -> String {
        format!("k8s.{}/claim", self.driver)
    }

    fn prefix(&self) -> String {
        format!("k8s.{}-claim_", self.driver)
    }

    fn path(&self, uid: &str) -> PathBuf {
        self.directory.join(format!("{}{uid}.json", self.prefix()))
    }
}

fn device_node(node: &DeviceNode) -> serde_json::Value {
    json!({"path": node.path, "hostPath": node.host_path, "permissions": node.permissions})
}

fn mount(mount: &Mount) -> serde_json::Value {
    json!({"hostPath": mount.host_path, "containerPath": mount.container_path, "options": mount.options})
}

fn remove(path: PathBuf) -> Result<(), CdiError> {
    match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(CdiError { what: "file", path, source: error }),
        _ => Ok(()),
    }
}

fn device_name(uid: &str, request: &str) -> String {
    format!("{uid}-{request}")
}

/// The prefix of the variables that carry a mark.
const MARK: &str = "DRA_CLAIM_";

/// Unique by claim and request, so that the marks of several do not overwrite one another in one container.
fn mark_variable(uid: &str, request: &str) -> String {
    format!("{MARK}{}_{}", variable(uid), variable(request))
}

fn mark(driver: &str, token: &str) -> String {
    format!("{driver}/{token}")
}

/// The token of `driver` that a container's `NAME=value` carries, if it is a mark of this driver.
pub fn token_of<'a>(driver: &str, variable: &'a str) -> Option<&'a str> {
    let (_, value) = variable.strip_prefix(MARK)?.split_once('=')?;
    value.strip_prefix(driver)?.strip_prefix('/')
}

fn variable(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(uid: &str) -> PreparedClaim {
        let request = |name: &str, cpus: &str| PreparedRequest {
            name: name.into(),
            token: format!("token-{name}"),
            devices: vec![],
            grant: Grant {
                cpus: cpus.parse().unwrap(),
                env: [(format!("DRA_CPUS_{}", variable(name)), cpus.to_owned())].into(),
                ..Grant::default()
            },
        };
        PreparedClaim {
            uid: uid.into(),
            namespace: "apps".into(),
            name: "cores".into(),
            requests: vec![request("main", "1,65"), request("side-car", "2,66")],
            pods: vec![],
        }
    }

    fn names(directory: &Path) -> Vec<String> {
        let mut names: Vec<_> =
            fs::read_dir(directory).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_claim_is_one_file_with_a_device_for_each_request() {
        let dir = tempfile::tempdir().unwrap();
        let cdi = Cdi::new(dir.path(), "dra.cpu");
        cdi.write(&claim("0a1b")).unwrap();
        assert_eq!(names(dir.path()), ["k8s.dra.cpu-claim_0a1b.json"]);
        let text = fs::read_to_string(dir.path().join("k8s.dra.cpu-claim_0a1b.json")).unwrap();
        let spec: serde_json::Value = serde_json::from_str(&text).unwrap();
        insta::assert_snapshot!(serde_json::to_string_pretty(&spec).unwrap());
        assert_eq!(cdi.device_id("0a1b", "side-car"), "k8s.dra.cpu/claim=0a1b-side-car");
    }

    #[test]
    fn device_nodes_and_mounts_are_edits_of_the_container() {
        let cdi = Cdi::new(Path::new("/var/run/cdi"), "dra.cpu");
        let mut claim = claim("0a1b");
        claim.requests.truncate(1);
        claim.requests[0].grant = Grant {
            device_nodes: vec![DeviceNode {
                path: "/dev/infiniband/uverbs0".into(),
                host_path: "/dev/infiniband/uverbs3".into(),
                permissions: "rw".into(),
            }],
            mounts: vec![Mount {
                host_path: "/var/lib/model".into(),
                container_path: "/model".into(),
                options: vec!["ro".into(), "bind".into()],
            }],
            ..Grant::default()
        };
        assert_eq!(
            cdi.spec(&claim)["devices"],
            json!([{
                "name": "0a1b-main",
                "containerEdits": {
                    "env": ["DRA_CLAIM_0A1B_MAIN=dra.cpu/token-main"],
                    "deviceNodes": [
                        {"path": "/dev/infiniband/uverbs0", "hostPath": "/dev/infiniband/uverbs3", "permissions": "rw"},
                    ],
                    "mounts": [
                        {"hostPath": "/var/lib/model", "containerPath": "/model", "options": ["ro", "bind"]},
                    ],
                },
            }])
        );
    }

    #[test]
    fn only_a_mark_of_this_driver_yields_a_token() {
        let dir = tempfile::tempdir().unwrap();
        let cdi = Cdi::new(dir.path(), "dra.cpu");
        let claim = claim("0a1b");
        let env = cdi.env(&claim, &claim.requests[1]);
        let tokens: Vec<_> = env.iter().filter_map(|variable| token_of("dra.cpu", variable)).collect();
        assert_eq!(tokens, ["token-side-car"]);
        assert_eq!(env.iter().find_map(|variable| token_of("dra.cp", variable)), None);
        assert_eq!(token_of("dra.cpu", "PATH=dra.cpu/token-main"), None);
    }

    #[test]
    fn restore_recreates_missing_files_and_removes_only_this_drivers_stale_ones() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("cdi");
        let cdi = Cdi::new(&dir, "dra.cpu");
        let claims = [claim("a"), claim("b")];
        cdi.restore(claims.iter()).unwrap();
        fs::remove_file(dir.join("k8s.dra.cpu-claim_b.json")).unwrap();
        for file in ["k8s.dra.cpu-claim_old.json", "k8s.dra.cpu-claim_old.json.tmp", "nvidia.json"] {
            fs::write(dir.join(file), "{}").unwrap();
        }
        cdi.restore(claims.iter()).unwrap();
        assert_eq!(names(&dir), ["k8s.dra.cpu-claim_a.json", "k8s.dra.cpu-claim_b.json", "nvidia.json"]);
        fs::write(dir.join("k8s.dra.cpu-claim_a.json"), "{}").unwrap();
        cdi.write(&claims[0]).unwrap();
        assert!(fs::read_to_string(dir.join("k8s.dra.cpu-claim_a.json")).unwrap().contains("0.5.0"));
        cdi.remove("a").unwrap();
        cdi.remove("a").unwrap();
        assert_eq!(names(&dir), ["k8s.dra.cpu-claim_b.json", "nvidia.json"]);
    }

    #[test]
    fn a_directory_that_cannot_be_read_and_a_file_that_cannot_be_removed_are_errors() {
        let dir = tempfile::tempdir().unwrap();
        let blocker = dir.path().join("k8s.dra.cpu-claim_a.json");
        fs::create_dir(&blocker).unwrap();
        let error = Cdi::new(dir.path(), "dra.cpu").remove("a").unwrap_err();
        assert_eq!((error.what, &error.path), ("file", &blocker));

        let file = dir.path().join("nvidia.json");
        fs::write(&file, "{}").unwrap();
        let error = Cdi::new(&file, "dra.cpu").own_files().unwrap_err();
        assert_eq!((error.what, &error.path), ("directory", &file));
    }
}
