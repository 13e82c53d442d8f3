//! How an instance takes over the claims from disk, and hands them over. IO: the checkpoint, CDI files.

use std::{iter, sync::Arc};

use super::{
    Claims, Phase,
    cdi::CdiError,
    checkpoint::{CheckpointError, encode},
    prepared::PreparedClaim,
};

impl Claims {
    /// Takes over the state from disk. If it cannot be trusted, calls fail with the reason and nothing on disk is
    /// changed. Call again to retry.
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

    /// Gives up the state once every call in flight has ended or is waiting for another claim. Waiting calls then end.
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

    /// Like [`Claims::restore_cdi`], but also rewrites files with wrong content: another release may have written them.
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

        // A lost checkpoint must not look like an empty node. After a reboot the CDI files are gone too, and before the
        // first start there are none. If the files cannot be listed, writing them will report that.
        let path = || self.checkpoint.path().to_owned();
        if let Some(cdi_file) = self.cdi.own_files().unwrap_or_default().into_iter().next() {
            return Err(CheckpointError::Missing { path: path(), cdi_file });
        }

        // Write an empty checkpoint now. If writing the first claim's checkpoint failed later, its CDI file might still
        // be restored, and the checkpoint would then look lost.
        let none = encode(iter::empty());
        self.checkpoint.write(&none.map_err(|error| CheckpointError::Write { path: path(), source: error.into() })?)?;
        Ok(vec![])
    }
}
