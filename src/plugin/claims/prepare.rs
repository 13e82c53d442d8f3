//! Prepare and Unprepare of one claim, step by step. IO: the API server, the checkpoint, CDI files.

use tokio::{task::yield_now, time::Instant};

use super::{
    Claims,
    allocation::{Allocated, ClaimRef},
    checkpoint::encode,
    error::ClaimError,
    prepared::{Arrival, HeldError, PreparedClaim, PreparedClaims, PreparedDevice, PreparedRequest, by_request},
    reader::ClaimReader,
};

impl Claims {
    /// Prepares a claim unless it is prepared already. Afterwards the checkpoint and the CDI file exist.
    ///
    /// When a pod is deleted by force, the API server forgets it at once, and its devices can be allocated again while
    /// its containers still run. The new claim waits here for the Unprepare: after an error the kubelet would retry
    /// only a minute later.
    pub async fn prepare(
        &self,
        claim: &ClaimRef,
        arrival: Arrival,
        reader: &ClaimReader,
    ) -> Result<PreparedClaim, ClaimError> {
        let deadline = Instant::now() + self.held_timeout;
        let done = loop {
            // Subscribe before the attempt, so that no Unprepare is missed.
            let unprepared = self.unprepared.notified();
            match self.try_prepare(claim, arrival, reader).await {
                Err(ClaimError::Held(held)) if held.passes() => {
                    if let Err(held) = self.wait_for_holder(claim, held, unprepared, deadline).await {
                        break Err(held.into());
                    }
                }
                done => break done,
            }
        };
        self.lock().ended(arrival);
        done
    }

    /// The steps of one attempt.
    async fn try_prepare(
        &self,
        claim: &ClaimRef,
        arrival: Arrival,
        reader: &ClaimReader,
    ) -> Result<PreparedClaim, ClaimError> {
        // Hold the lock to the end, so that the state is not handed to another instance in the middle of a call.
        let _active = self.active().await?;

        // Read the allocation from the API server.
        let allocated = reader.read(claim, &self.driver_name, &self.pool).await?;

        // Grant the devices and record the claim, unless another claim holds them.
        let (taken, state) = self.change(|prepared| self.take(prepared, claim, arrival, &allocated));
        taken?;

        // Write the checkpoint before answering, so that the claim survives a crash.
        self.save(state).await?;

        // Write the CDI file: the runtime injects its content into the containers.
        let done = self.inject(claim, arrival, &allocated)?;

        // Without NRI, the claim's containers would start unconfined.
        self.enforced().await?;
        Ok(done)
    }

    /// Unprepares a claim. It is not an error if the claim is not prepared or no longer exists in the API.
    pub async fn unprepare(&self, claim: &ClaimRef) -> Result<(), ClaimError> {
        let _active = self.active().await?;
        let (_, state) = self.change(|prepared| prepared.remove(&claim.uid));
        self.unprepared.notify_waiters();
        self.save(state).await?;

        // Remove the file under the lock, so that a concurrent Prepare does not lose the file it has just written.
        let prepared = self.lock();
        if !prepared.contains(&claim.uid) {
            self.cdi.remove(&claim.uid)?;
        }
        Ok(())
    }

    /// Records the claim as prepared, unless it is already.
    fn take(
        &self,
        prepared: &mut PreparedClaims,
        claim: &ClaimRef,
        arrival: Arrival,
        allocated: &Allocated,
    ) -> Result<(), ClaimError> {
        if prepared.find(claim, arrival, &allocated.devices)?.is_none() {
            let granted = self.grant(claim, allocated)?;
            prepared.insert(granted, self.driver.as_ref())?;
        }
        prepared.reserve(&claim.uid, &allocated.pods);
        Ok(())
    }

    /// What the claim's containers get for each request, in the order of the allocation.
    fn grant(&self, claim: &ClaimRef, allocated: &Allocated) -> Result<PreparedClaim, ClaimError> {
        let mut grouped = by_request(&allocated.devices);
        let mut requests = vec![];
        for device in &allocated.devices {
            // All devices of a request are granted together, with its first one.
            let Some(devices) = grouped.remove(device.request.as_str()) else { continue };
            let name = device.request.clone();
            let grant = self.driver.grant(&devices)?;
            // A device may have become unusable since it was published.
            if let Err(source) = self.driver.check(&grant) {
                return Err(ClaimError::Unusable { request: name, source });
            }
            let devices = devices.iter().map(PreparedDevice::of).collect();
            requests.push(PreparedRequest { name, token: token()?, devices, grant });
        }
        Ok(PreparedClaim {
            uid: claim.uid.clone(),
            namespace: claim.namespace.clone(),
            name: claim.name.clone(),
            requests,
            pods: allocated.pods.clone(),
        })
    }

    /// Returns once state `state` is in the checkpoint. One write includes all earlier changes, so calls that are about
    /// to change the state run first.
    ///
    /// Blocks the thread, which only serves the kubelet (see [`kubelet`](crate::plugin::kubelet)). That is faster than
    /// waking another thread and being woken by it.
    async fn save(&self, state: u64) -> Result<(), ClaimError> {
        yield_now().await;
        let mut written = self.written.lock().await;
        if *written >= state {
            return Ok(());
        }
        let (state, encoded) = {
            let prepared = self.lock();
            (prepared.revision(), encode(prepared.iter()))
        };
        self.checkpoint.write(&encoded.map_err(|error| ClaimError::Task(error.to_string()))?)?;
        *written = state;
        Ok(())
    }

    /// Writes the CDI file of a recorded claim, and returns the claim.
    fn inject(&self, claim: &ClaimRef, arrival: Arrival, allocated: &Allocated) -> Result<PreparedClaim, ClaimError> {
        // Write the file under the lock, so that a concurrent Unprepare does not leave it behind.
        let prepared = self.lock();
        let done = prepared.find(claim, arrival, &allocated.devices)?;
        let done = done.ok_or_else(|| HeldError::Unprepared { claim: claim.to_string() })?;
        self.cdi.write(done)?;
        Ok(done.clone())
    }
}

/// 128 random bits in hexadecimal.
fn token() -> Result<String, ClaimError> {
    let high = getrandom::u64().map_err(ClaimError::Random)?;
    let low = getrandom::u64().map_err(ClaimError::Random)?;
    Ok(format!("{high:016x}{low:016x}"))
}
