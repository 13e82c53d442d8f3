//! What Prepare waits for: other claims that hold what it wants, and the connection to NRI. IO: none.

use std::time::Duration;

use tokio::{
    sync::futures::Notified,
    time::{Instant, sleep_until, timeout},
};

use super::{Claims, allocation::ClaimRef, error::ClaimError, prepared::HeldError};

/// How long Prepare waits for the NRI connection to be established.
const NRI_CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

impl Claims {
    /// Returns when a claim has been unprepared since `unprepared` was created, because the devices may be free now. An
    /// error if this takes too long or the plugin stops.
    pub(super) async fn wait_for_holder(
        &self,
        claim: &ClaimRef,
        held: HeldError,
        unprepared: Notified<'_>,
        deadline: Instant,
    ) -> Result<(), HeldError> {
        tracing::info!(%claim, uid = claim.uid, "waiting: {held}");
        tokio::select! {
            () = unprepared => Ok(()),
            () = sleep_until(deadline) => Err(held),
            () = self.stop.cancelled() => Err(held),
        }
    }

    /// Waits for a connection to NRI, but not until other containers have left the claim's CPUs. NRI asks the runtime
    /// for that at once, and repeats whatever is unconfirmed when the claim's container is created.
    pub(super) async fn enforced(&self) -> Result<(), ClaimError> {
        let Some(mut nri) = self.nri.clone() else { return Ok(()) };
        let connected = timeout(NRI_CONNECT_TIMEOUT, nri.wait_for(|nri| nri.connected));
        if matches!(connected.await, Ok(Ok(_))) {
            return Ok(());
        }
        let problem = nri.borrow().problem.clone().unwrap_or_else(|| "no answer yet".to_owned());
        Err(ClaimError::Nri { problem })
    }
}
