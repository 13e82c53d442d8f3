//! Decides which of two instances on a node owns the state, for example during a rolling update. IO: two lock files in
//! the state directory.
//!
//! The active instance holds `leader.lock`. A starting instance takes `next.lock` and waits for `leader.lock`. The
//! active instance regularly checks whether `next.lock` is taken, and if so steps down. An instance that has stepped
//! down takes `leader.lock` back when it is free and no other instance is starting, because its successor has died. The
//! kernel releases the locks of a dead process.

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    time::Duration,
};

use rustix::fs::{FlockOperation, flock};

/// How often an active instance checks for a successor, and a passive one for a dead leader.
const CHECK: Duration = Duration::from_millis(200);
/// How often a starting instance tries to take a lock.
const RETRY: Duration = Duration::from_millis(50);

/// A lock file cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("cannot lock {path}: {source}; the state directory must be writable and on a file system local to the host")]
pub struct LockError {
    path: PathBuf,
    source: io::Error,
}

/// The two locks.
#[derive(Clone, Debug)]
pub struct Handover {
    leader: PathBuf,
    next: PathBuf,
}

/// Held while this instance is the active one. Once it is dropped, another instance may become active.
#[derive(Debug)]
pub struct Leadership {
    lock: File,
}

impl Handover {
    /// The locks in `state_dir`, which is created if it does not exist.
    pub fn within(state_dir: &Path) -> Result<Self, LockError> {
        fs::create_dir_all(state_dir).map_err(|source| LockError { path: state_dir.to_owned(), source })?;
        Ok(Self { leader: state_dir.join("leader.lock"), next: state_dir.join("next.lock") })
    }

    /// Called by a starting instance. Becomes active once the active instance has stepped down.
    pub async fn take_over(&self) -> Result<Leadership, LockError> {
        let _next = wait_for(&self.next, RETRY).await?;
        Ok(Leadership { lock: wait_for(&self.leader, RETRY).await? })
    }

    /// Returns when another instance is waiting to become active, or may already be active because the lock file was
    /// removed.
    pub async fn challenged(&self, leadership: &Leadership) {
        let mut problem = None;
        while is_at(&leadership.lock, &self.leader) {
            match try_lock(&self.next) {
                Ok(None) => return,
                Ok(Some(_)) => problem = None,
                // A file that cannot be opened at the moment is not a reason to stop serving.
                Err(error) => {
                    let error = error.to_string();
                    if problem.as_ref() != Some(&error) {
                        tracing::warn!("{error}; retrying");
                    }
                    problem = Some(error);
                }
            }
            tokio::time::sleep(CHECK).await;
        }
        tracing::warn!(path = %self.leader.display(), "the lock file was removed: stepping down because another instance may be active");
    }

    /// Called after stepping down. Becomes active again once the successor has died and no other instance is starting.
    pub async fn come_back(&self) -> Result<Leadership, LockError> {
        loop {
            tokio::time::sleep(CHECK).await;
            // Take the leader's lock first: taking the other one would make an active instance step down.
            let Some(lock) = try_lock(&self.leader)? else { continue };
            if try_lock(&self.next)?.is_some() {
                return Ok(Leadership { lock });
            }
        }
    }
}

/// Whether the path still refers to this file.
fn is_at(file: &File, path: &Path) -> bool {
    let found = fs::symlink_metadata(path).map(|found| (found.dev(), found.ino()));
    match (file.metadata(), found) {
        (Ok(held), Ok(found)) => (held.dev(), held.ino()) == found,
        (_, Err(error)) => error.kind() != io::ErrorKind::NotFound,
        (Err(_), _) => true,
    }
}

async fn wait_for(path: &Path, pause: Duration) -> Result<File, LockError> {
    loop {
        if let Some(lock) = try_lock(path)? {
            return Ok(lock);
        }
        tokio::time::sleep(pause).await;
    }
}

/// The lock, held until the file is dropped; `None` while another holds it.
fn try_lock(path: &Path) -> Result<Option<File>, LockError> {
    let error = |source| LockError { path: path.to_owned(), source };
    let file = OpenOptions::new().create(true).truncate(false).write(true).open(path).map_err(error)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(file)),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
        Err(errno) => Err(error(errno.into())),
    }
}

#[cfg(test)]
mod tests {
    use tokio::{task::JoinHandle, time::timeout};

    use super::*;

    fn handover() -> (tempfile::TempDir, Handover) {
        let dir = tempfile::tempdir().unwrap();
        let handover = Handover::within(&dir.path().join("plugins/dra.cpu")).unwrap();
        (dir, handover)
    }

    /// A starting instance, which becomes active when it can.
    fn start(handover: &Handover) -> JoinHandle<Leadership> {
        let handover = handover.clone();
        tokio::spawn(async move { handover.take_over().await.unwrap() })
    }

    /// Whether an instance that has stepped down becomes active again, within the time of many checks.
    async fn comes_back(handover: &Handover) -> Option<Leadership> {
        timeout(10 * CHECK, handover.come_back()).await.ok().map(Result::unwrap)
    }

    async fn is_challenged(handover: &Handover, leadership: &Leadership) -> bool {
        timeout(10 * CHECK, handover.challenged(leadership)).await.is_ok()
    }

    #[tokio::test(start_paused = true)]
    async fn a_single_instance_is_active_at_once_and_unchallenged() {
        let (_dir, handover) = handover();
        let leading = timeout(RETRY / 2, handover.take_over()).await.unwrap().unwrap();
        assert!(!is_challenged(&handover, &leading).await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_starting_instance_takes_over_and_the_old_one_returns_when_it_dies() {
        let (_dir, handover) = handover();
        let old = handover.take_over().await.unwrap();
        let successor = start(&handover);
        assert!(is_challenged(&handover, &old).await);
        assert!(!successor.is_finished(), "two are active");
        drop(old);
        let new = successor.await.unwrap();
        assert!(comes_back(&handover).await.is_none(), "two are active");
        assert!(!is_challenged(&handover, &new).await, "an instance that stepped down challenges");
        drop(new);
        assert!(comes_back(&handover).await.is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn an_instance_whose_lock_file_was_removed_steps_down_because_another_may_lead() {
        let (dir, handover) = handover();
        let old = handover.take_over().await.unwrap();
        fs::remove_dir_all(dir.path()).unwrap();
        assert!(is_challenged(&handover, &old).await);
    }

    #[tokio::test(start_paused = true)]
    async fn an_instance_whose_lock_file_was_replaced_steps_down() {
        let (_dir, handover) = handover();
        let old = handover.take_over().await.unwrap();
        // It exists beside the old one first, so that it cannot have the same inode.
        let new = handover.leader.with_extension("new");
        fs::write(&new, "").unwrap();
        fs::rename(new, &handover.leader).unwrap();
        assert!(is_challenged(&handover, &old).await);
    }

    #[tokio::test(start_paused = true)]
    async fn an_instance_that_cannot_check_for_others_stays_active() {
        let (_dir, handover) = handover();
        let leading = handover.take_over().await.unwrap();
        // A directory cannot be opened for writing, not even by root.
        fs::remove_file(&handover.next).unwrap();
        fs::create_dir(&handover.next).unwrap();
        assert!(!is_challenged(&handover, &leading).await);
    }

    #[tokio::test(start_paused = true)]
    async fn an_instance_that_stepped_down_gives_way_to_a_starting_one() {
        let (_dir, handover) = handover();
        let starting = try_lock(&handover.next).unwrap().expect("no instance starts");
        assert!(comes_back(&handover).await.is_none(), "no instance leads, but one starts");
        assert!(try_lock(&handover.leader).unwrap().is_some(), "the starting instance finds the lock free");
        drop(starting);
        assert!(comes_back(&handover).await.is_some(), "it has died");
    }
}
