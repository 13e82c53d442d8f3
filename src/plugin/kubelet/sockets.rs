//! The plugin's unix sockets: their names, and the removal of those that dead instances left behind. IO: two
//! directories of the kubelet.

use std::{
    fs, io,
    os::unix::fs::{FileTypeExt, MetadataExt},
    path::{Path, PathBuf},
};

use tokio::net::UnixListener;

use crate::digest::short_sha256;

/// The longest path of a unix socket: `sockaddr_un.sun_path` has 108 bytes including the terminating zero (unix(7)).
const MAX_PATH: usize = 107;

/// A socket could not be created.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// Listening on it failed.
    #[error("cannot listen on {path}: {source}; check that the directory is mounted from the host and writable")]
    Listen {
        /// The socket.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The directory's path is so long that no file name fits.
    #[error(
        "directory {directory} is too long for a unix socket path ({MAX_PATH} bytes including the file name): use a shorter kubelet root directory"
    )]
    Long {
        /// The directory.
        directory: PathBuf,
    },
}

/// Where the two sockets of one instance are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SocketPaths {
    /// The registration socket, which the kubelet finds in its registry directory.
    pub registration: PathBuf,
    /// The DRA service.
    pub dra: PathBuf,
}

impl SocketPaths {
    /// The sockets of `driver` for a kubelet with this root directory. The pod's UID in the name allows two instances
    /// at once.
    pub fn new(root: &Path, state: &Path, driver: &str, pod_uid: Option<&str>) -> Result<Self, SocketError> {
        Ok(Self {
            registration: fitting(&root.join("plugins_registry"), driver, pod_uid, REGISTRATION)?,
            dra: fitting(state, "dra", pod_uid, DRA)?,
        })
    }
}

/// The kubelet dials the bare path, so grpc-go sends it, percent-escaped, as `:authority`. Rust's h2 rejects that as
/// malformed unless an `@` turns it into a user and a host (verified with kubelet 1.37.2).
const REGISTRATION: &str = "@reg.sock";
const DRA: &str = ".sock";

/// `<directory>/<stem>-<pod's UID><tail>`, with hashes of stem and UID if that is too long.
fn fitting(directory: &Path, stem: &str, pod_uid: Option<&str>, tail: &str) -> Result<PathBuf, SocketError> {
    let named = |stem: &str, uid: Option<String>| {
        directory.join(format!("{stem}{}{tail}", uid.map(|uid| format!("-{uid}")).unwrap_or_default()))
    };
    [named(stem, pod_uid.map(str::to_owned)), named(&hash(stem), pod_uid.map(hash))]
        .into_iter()
        .find(|path| path.as_os_str().len() <= MAX_PATH)
        .ok_or_else(|| SocketError::Long { directory: directory.to_owned() })
}

fn hash(text: &str) -> String {
    short_sha256(text, 8)
}

/// A socket that this process listens on.
#[derive(Debug)]
pub struct OwnSocket {
    path: PathBuf,
    /// Device and inode, because another instance may have created its own socket under the same name.
    file: (u64, u64),
}

impl OwnSocket {
    /// Listens on `path`, replacing any existing socket.
    pub fn listen(path: &Path) -> Result<(Self, UnixListener), SocketError> {
        let error = |source| SocketError::Listen { path: path.to_owned(), source };
        remove_if(path, |_| true);
        let listener = UnixListener::bind(path).map_err(error)?;
        let metadata = fs::symlink_metadata(path).map_err(error)?;
        Ok((Self { path: path.to_owned(), file: (metadata.dev(), metadata.ino()) }, listener))
    }

    /// Whether the socket still exists under its name.
    pub fn is_there(&self) -> bool {
        fs::symlink_metadata(&self.path).is_ok_and(|found| (found.dev(), found.ino()) == self.file)
    }

    /// Whether another process is now listening under its name.
    pub fn is_replaced(&self) -> bool {
        !self.is_there() && fs::symlink_metadata(&self.path).is_ok()
    }
}

impl Drop for OwnSocket {
    fn drop(&mut self) {
        if self.is_there() {
            remove_if(&self.path, |_| true);
        }
    }
}

/// Removes the sockets that killed instances of this driver left behind: those with its names on which no process
/// listens.
pub fn remove_stale(paths: &SocketPaths, driver: &str) {
    let of_driver = |name: &str, stem: &str, tail: &str| {
        name.strip_prefix(stem)
            .and_then(|rest| rest.strip_suffix(tail))
            .is_some_and(|uid| uid.is_empty() || uid.starts_with('-'))
    };
    for (path, stem, tail) in [(&paths.registration, driver, REGISTRATION), (&paths.dra, "dra", DRA)] {
        let entries = path.parent().and_then(|directory| fs::read_dir(directory).ok());
        for entry in entries.into_iter().flatten().flatten() {
            let own = |name: &str| of_driver(name, stem, tail) || of_driver(name, &hash(stem), tail);
            if entry.file_name().to_str().is_some_and(own) {
                remove_if(&entry.path(), is_dead);
            }
        }
    }
}

/// Whether the process that bound the socket is gone, so that no one accepts connections.
fn is_dead(path: &Path) -> bool {
    std::os::unix::net::UnixStream::connect(path).is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

fn remove_if(path: &Path, condition: impl Fn(&Path) -> bool) {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket());
    if is_socket
        && condition(path)
        && let Err(error) = fs::remove_file(path)
    {
        tracing::warn!(path = %path.display(), %error, "cannot remove the socket of an earlier instance");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What grpc-go sends for a target without a scheme: the escaped path as the authority.
    fn authority(path: &Path) -> String {
        path.to_str().unwrap().replace('/', "%2F")
    }

    #[test]
    fn the_registration_sockets_path_is_an_authority_that_h2_accepts() {
        let root = Path::new("/var/lib/kubelet");
        let state = root.join("plugins/dra.cpu");
        for uid in [None, Some("2f3c1e5a-8f0e-4d6c-9d3a-0123456789ab")] {
            let paths = SocketPaths::new(root, &state, "dra.cpu", uid).unwrap();
            let parsed = http::uri::Authority::try_from(authority(&paths.registration));
            assert!(parsed.is_ok(), "{paths:?}: {parsed:?}");
        }
        assert!(http::uri::Authority::try_from(authority(&root.join("plugins_registry/dra.cpu-reg.sock"))).is_err());
    }

    #[test]
    fn a_path_that_is_too_long_gets_a_hash_that_is_unique_to_the_instance() {
        let root = PathBuf::from(format!("/var/lib/{}", "k".repeat(50)));
        let driver = "a-rather-long-name-of-a-driver.example.com";
        let state = root.join("plugins").join("d");
        let of = |uid| SocketPaths::new(&root, &state, driver, Some(uid)).unwrap();
        let (one, other) = (of("2f3c1e5a-8f0e-4d6c-9d3a-0123456789ab"), of("2f3c1e5a-8f0e-4d6c-9d3a-0123456789ac"));
        for path in [&one.registration, &one.dra, &other.registration] {
            assert!(path.as_os_str().len() <= MAX_PATH, "{path:?}");
        }
        assert_ne!(one.registration, other.registration);
        assert!(one.registration.to_str().unwrap().ends_with("@reg.sock"));
        let error = SocketPaths::new(Path::new(&"/d".repeat(60)), &state, driver, None).unwrap_err();
        assert!(error.to_string().contains("shorter"), "{error}");
    }

    #[tokio::test]
    async fn sockets_of_dead_instances_are_removed_and_all_others_stay() {
        let root = tempfile::tempdir().unwrap();
        let registry = root.path().join("plugins_registry");
        fs::create_dir(&registry).unwrap();
        let live = OwnSocket::listen(&registry.join("dra.cpu-live@reg.sock")).unwrap();
        let dead = |name: &str| drop(std::os::unix::net::UnixListener::bind(registry.join(name)).unwrap());
        dead("dra.cpu-dead@reg.sock");
        dead("dra.cpus@reg.sock");
        // The name that is used when the directory's path is too long.
        dead(&format!("{}-{}@reg.sock", hash("dra.cpu"), hash("dead")));
        let paths = SocketPaths::new(root.path(), root.path(), "dra.cpu", Some("mine")).unwrap();
        remove_stale(&paths, "dra.cpu");
        let mut names: Vec<_> = fs::read_dir(&registry).unwrap().map(|e| e.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["dra.cpu-live@reg.sock", "dra.cpus@reg.sock"]);
        assert!(live.0.is_there());
    }

    #[tokio::test]
    async fn an_instance_removes_its_own_socket_but_not_its_successors() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("dra.sock");
        let (first, _listener) = OwnSocket::listen(&path).unwrap();
        let (second, _listener) = OwnSocket::listen(&path).unwrap();
        assert!(first.is_replaced() && !first.is_there());
        drop(first);
        assert!(second.is_there());
        drop(second);
        assert!(!path.exists());
    }
}
