//! How an instance takes the claims over from disk, and gives them up. IO: the checkpoint, CDI files.

use std::{iter, sync::Arc};

use super::{
    Claims, Phase,
    cdi::CdiError,
    checkpoint::{CheckpointError, encode},
    prepared::PreparedClaim,
};

impl Claims {
    /// Takes the state over from disk. If it cannot be trusted, calls are answered with the reason and nothing on disk
    /// is touched; call again to retry.
    pub async fn activate(&self) -> Result<(), CheckpointError> {
        let mut phase = self.phase.write().await;
        match self.read_checkpoint() {
            Ok(claims) => {
                let mut written = self.written.lock().await;
                *written = self.change(|prepared| prepared.reset(claims)).1;
                *phase = Phase::Active;
                Ok(())
            }
            Err(error) => {
                *phase = Phase::Broken(Arc::from(error.to_string()));
                Err(error)
            }
        }
    }

    /// Gives the state up, once every call in flight has ended or waits for another claim; those that wait end then.
    pub async fn deactivate(&self) {
        *self.phase.write().await = Phase::Passive;
        self.unprepared.notify_waiters();
    }

    /// Restores CDI files that are missing, and removes those of claims that are not prepared. Does nothing while
    /// another instance owns the state.
    pub async fn restore_cdi(&self) -> Result<(), CdiError> {
        let phase = self.phase.read().await;
        if !matches!(*phase, Phase::Active) {
            return Ok(());
        }
        self.cdi.restore(self.lock().iter())
    }

    /// The same, and writes those again whose content is not what it should be: another release may have written them.
    pub async fn rewrite_cdi(&self) -> Result<(), CdiError> {
        let phase = self.phase.read().await;
        if !matches!(*phase, Phase::Active) {
            return Ok(());
        }
        let prepared = self.lock();
        prepared.iter().try_for_each(|claim| self.cdi.write(claim))?;
        self.cdi.restore(prepared.iter())
    }

    fn read_checkpoint(&self) -> Result<Vec<PreparedClaim>, CheckpointError> {
        if let Some(claims) = self.checkpoint.read()? {
            return Ok(claims);
        }

        // A lost checkpoint must not pass for an empty node: after a reboot the CDI files are gone too, and a first
        // start has none. That they cannot be listed shows when they are written.
        let path = || self.checkpoint.path().to_owned();
        if let Some(cdi_file) = self.cdi.own_files().unwrap_or_default().into_iter().next() {
            return Err(CheckpointError::Missing { path: path(), cdi_file });
        }

        // Written at once: if the checkpoint of a first claim cannot be written, its CDI file may still be restored.
        let none = encode(iter::empty());
        self.checkpoint.write(&none.map_err(|error| CheckpointError::Write { path: path(), source: error.into() })?)?;
        Ok(vec![])
    }
}
