//! Two instances on one node, as in a rolling update: who owns the state. IO: two lock files in the state directory.
//!
//! The active instance holds `leader.lock`. A starting one takes `next.lock` and waits for `leader.lock`; the active one
//! looks every now and then whether `next.lock` is taken, and if so steps down. A passive instance takes `leader.lock`
//! back when nobody holds it: its successor has died. The kernel lets go of a dead process's locks.

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    time::Duration,
};

use rustix::fs::{FlockOperation, flock};

/// How often an active instance looks for a successor, and a passive one for a dead leader.
const LOOK: Duration = Duration::from_millis(200);
/// How often a starting instance tries for a lock.
const TRY: Duration = Duration::from_millis(50);

/// The lock files cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("cannot lock {path}: {source}; the state directory must be a local one of the host, and writable")]
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

/// Held while this instance is the active one; dropped, another may be.
#[derive(Debug)]
pub struct Leadership {
    lock: File,
}

impl Handover {
    /// The locks in `state_dir`, which is made if it is not there.
    pub fn within(state_dir: &Path) -> Result<Self, LockError> {
        fs::create_dir_all(state_dir).map_err(|source| LockError { path: state_dir.to_owned(), source })?;
        Ok(Self { leader: state_dir.join("leader.lock"), next: state_dir.join("next.lock") })
    }

    /// Becomes active as a starting instance: the one that is active now steps down.
    pub async fn take_over(&self) -> Result<Leadership, LockError> {
        let _next = wait_for(&self.next, TRY).await?;
        Ok(Leadership { lock: wait_for(&self.leader, TRY).await? })
    }

    /// Returns when another instance waits to become active, or may be active already: who removed the lock file has made
    /// room for one.
    pub async fn challenged(&self, leadership: &Leadership) {
        let mut problem = None;
        while is_at(&leadership.lock, &self.leader) {
            match try_lock(&self.next) {
                Ok(None) => return,
                Ok(Some(_)) => problem = None,
                // That no file can be opened now is no reason to stop serving.
                Err(error) => {
                    let error = error.to_string();
                    if problem.as_ref() != Some(&error) {
                        tracing::warn!("{error}; looking again");
                    }
                    problem = Some(error);
                }
            }
            tokio::time::sleep(LOOK).await;
        }
        tracing::warn!(path = %self.leader.display(), "the lock file was removed");
    }

    /// Becomes active again after having stepped down, when the successor is dead and no other waits.
    pub async fn come_back(&self) -> Result<Leadership, LockError> {
        loop {
            tokio::time::sleep(LOOK).await;
            // The leader's lock first: a look at the other while somebody leads would pass for a challenge.
            let Some(lock) = try_lock(&self.leader)? else { continue };
            if try_lock(&self.next)?.is_some() {
                return Ok(Leadership { lock });
            }
        }
    }
}

/// Whether the file is the one that others find at the path.
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
    use super::*;
    use tokio::time::timeout;

    const SOON: Duration = Duration::from_secs(5);

    fn handover() -> (tempfile::TempDir, Handover) {
        let dir = tempfile::tempdir().unwrap();
        let handover = Handover::within(&dir.path().join("plugins/dra.cpu")).unwrap();
        (dir, handover)
    }

    #[tokio::test]
    async fn an_instance_alone_is_active_at_once_and_not_challenged() {
        let (_dir, handover) = handover();
        let leading = timeout(Duration::from_millis(20), handover.take_over()).await.unwrap().unwrap();
        assert!(timeout(2 * LOOK, handover.challenged(&leading)).await.is_err());
    }

    #[tokio::test]
    async fn a_starting_instance_takes_over_and_when_it_dies_the_old_one_comes_back() {
        let (_dir, handover) = handover();
        let old = handover.take_over().await.unwrap();
        let successor = tokio::spawn({
            let handover = handover.clone();
            async move { handover.take_over().await.unwrap() }
        });
        timeout(SOON, handover.challenged(&old)).await.unwrap();
        assert!(!successor.is_finished(), "two are active");
        drop(old);
        let new = timeout(SOON, successor).await.unwrap().unwrap();
        assert!(timeout(2 * LOOK, handover.come_back()).await.is_err(), "two are active");
        assert!(timeout(2 * LOOK, handover.challenged(&new)).await.is_err(), "a passive instance challenges");
        drop(new);
        timeout(SOON, handover.come_back()).await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn one_whose_lock_file_was_removed_steps_down_for_another_may_lead() {
        let (dir, handover) = handover();
        let old = handover.take_over().await.unwrap();
        fs::remove_dir_all(dir.path()).unwrap();
        timeout(SOON, handover.challenged(&old)).await.unwrap();
    }

    #[tokio::test]
    async fn one_that_cannot_look_for_others_goes_on() {
        let (_dir, handover) = handover();
        let leading = handover.take_over().await.unwrap();
        // Nobody can open it for writing, not even root.
        fs::remove_file(&handover.next).unwrap();
        fs::create_dir(&handover.next).unwrap();
        assert!(timeout(2 * LOOK, handover.challenged(&leading)).await.is_err());
    }

    #[tokio::test]
    async fn one_that_starts_goes_before_one_that_stepped_down() {
        let (_dir, handover) = handover();
        let leading = handover.take_over().await.unwrap();
        let starting = tokio::spawn({
            let handover = handover.clone();
            async move { handover.take_over().await.unwrap() }
        });
        timeout(SOON, handover.challenged(&leading)).await.unwrap();
        let passive = tokio::spawn({
            let handover = handover.clone();
            async move { handover.come_back().await.unwrap() }
        });
        drop(leading);
        let _new = timeout(SOON, starting).await.unwrap().unwrap();
        assert!(!passive.is_finished());
        passive.abort();
    }
}
