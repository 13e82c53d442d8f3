//! Reads the claims that the kubelet names. IO: the API server.

use std::time::Duration;

use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::{Api, Client};
use tokio::{sync::Semaphore, time::timeout};

use crate::{
    causes::causes,
    plugin::claims::{
        allocation::{Allocated, ClaimRef, allocated},
        error::ClaimError,
    },
};

/// How long one read of a claim may take; the kubelet gives the whole call 45 s.
const TIMEOUT: Duration = Duration::from_secs(10);
/// How many reads run at a time. Each needs a connection with TLS buffers, and the API server answers within a
/// millisecond or two.
const PARALLEL: usize = 4;

/// Reads claims, a few at a time.
pub struct ClaimReader {
    client: Client,
    permits: Semaphore,
}

impl ClaimReader {
    /// A reader that uses this client.
    pub fn new(client: Client) -> Self {
        Self { client, permits: Semaphore::new(PARALLEL) }
    }

    /// What is allocated to the claim now from this driver and this node's pool.
    pub async fn read(&self, claim: &ClaimRef, driver: &str, pool: &str) -> Result<Allocated, ClaimError> {
        let object = self.get(claim).await?;
        Ok(allocated(&object, claim, driver, pool)?)
    }

    async fn get(&self, claim: &ClaimRef) -> Result<ResourceClaim, ClaimError> {
        let (namespace, name) = (claim.namespace.clone(), claim.name.clone());
        // The semaphore is never closed, so this cannot fail. A permit only limits connections.
        let _permit = self.permits.acquire().await.ok();
        let api: Api<ResourceClaim> = Api::namespaced(self.client.clone(), &claim.namespace);
        match timeout(TIMEOUT, api.get_opt(&claim.name)).await {
            Ok(Ok(Some(object))) => Ok(object),
            Ok(Ok(None)) => Err(ClaimError::Gone { namespace, name }),
            Ok(Err(error)) => Err(ClaimError::Read { namespace, name, problem: causes(&error) }),
            Err(_) => {
                let problem = format!("no answer in {} s", TIMEOUT.as_secs());
                Err(ClaimError::Read { namespace, name, problem })
            }
        }
    }
}
