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
    /// Prepares a claim, or finds it prepared. Afterwards checkpoint and CDI file are there.
    ///
    /// The API server forgets a pod that was deleted by force at once, and what it held is allocated again while its
    /// containers still run. Such claims wait here for the Unprepare: after an error the kubelet would come back only a
    /// minute later.
    pub async fn prepare(
        &self,
        claim: &ClaimRef,
        arrival: Arrival,
        reader: &ClaimReader,
    ) -> Result<PreparedClaim, ClaimError> {
        let deadline = Instant::now() + self.held_timeout;
        let done = loop {
            // Before the attempt, so that no Unprepare is missed.
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
        // Held to the end: the state is not handed to another instance in the middle of a call.
        let _active = self.active().await?;

        // Read: what the API server says is allocated to the claim.
        let allocated = reader.read(claim, &self.driver_name, &self.pool).await?;

        // Grant and take: what its containers get, unless another claim holds it.
        let (taken, state) = self.change(|prepared| self.take(prepared, claim, arrival, &allocated));
        taken?;

        // Checkpoint, before anything is answered: the claim outlives a crash.
        self.save(state).await?;

        // CDI: the runtime gives containers what the file says.
        let done = self.inject(claim, arrival, &allocated)?;

        // Without NRI, the claim's containers would start unconfined.
        self.enforced().await?;
        Ok(done)
    }

    /// Unprepares a claim. One that is not prepared, or is gone from the API, is not an error.
    pub async fn unprepare(&self, claim: &ClaimRef) -> Result<(), ClaimError> {
        let _active = self.active().await?;
        let (_, state) = self.change(|prepared| prepared.remove(&claim.uid));
        self.unprepared.notify_waiters();
        self.save(state).await?;

        // Under the lock: a Prepare that came meanwhile must not find its CDI file removed after it.
        let prepared = self.lock();
        if prepared.get(&claim.uid).is_none() {
            self.cdi.remove(&claim.uid)?;
        }
        Ok(())
    }

    /// Takes the claim among the prepared ones, unless it is there already.
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

    /// What the claim's containers get, request by request in the order of the allocation.
    fn grant(&self, claim: &ClaimRef, allocated: &Allocated) -> Result<PreparedClaim, ClaimError> {
        let mut grouped = by_request(&allocated.devices);
        let mut requests = vec![];
        for device in &allocated.devices {
            // All devices of a request come with its first one.
            let Some(devices) = grouped.remove(device.request.as_str()) else { continue };
            let name = device.request.clone();
            let grant = self.driver.grant(&devices)?;
            // What was allocated may have become unusable since it was published.
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

    /// Returns once the checkpoint has state `state`. One write takes along all changes that came before it, so calls
    /// that are about to make theirs go first.
    ///
    /// Blocks the thread, which is the kubelet's own (see [`kubelet`](crate::plugin::kubelet)): that costs less time than
    /// another thread's waking, twice.
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

    /// Writes the CDI file of a claim that was taken, and returns the claim.
    fn inject(&self, claim: &ClaimRef, arrival: Arrival, allocated: &Allocated) -> Result<PreparedClaim, ClaimError> {
        // Under the lock: an Unprepare that came meanwhile must not find its CDI file written after it.
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
