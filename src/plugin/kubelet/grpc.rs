//! The two gRPC services that the kubelet calls: registration and DRA. IO: none of its own.

use std::{future::Future, sync::Arc, time::Instant};

use tokio_util::task::TaskTracker;
use tonic::{Request, Response, Status};

use crate::plugin::{
    claims::{
        Claims,
        allocation::ClaimRef,
        error::ClaimError,
        prepared::{PreparedClaim, PreparedDevice, PreparedRequest},
        reader::ClaimReader,
    },
    metrics::{Call, PluginMetrics},
    readiness::{Part, Readiness},
};

/// The messages of `proto/dra.proto`.
#[expect(missing_docs, clippy::pedantic, reason = "generated")]
pub mod dra {
    tonic::include_proto!("k8s.io.kubelet.pkg.apis.dra.v1");
}

/// The messages of `proto/registration.proto`.
#[expect(missing_docs, clippy::pedantic, reason = "generated")]
pub mod registration {
    tonic::include_proto!("pluginregistration");
}

/// The API versions that the kubelet can call, in order of preference. It uses the first one that it knows, which is v1
/// since 1.34.
const VERSIONS: [&str; 1] = ["v1.DRAPlugin"];

/// Tells the kubelet who this plugin is, and learns whether it was registered.
pub struct RegistrationService {
    /// The driver's name.
    pub driver: String,
    /// The DRA socket.
    pub endpoint: String,
    /// Where the kubelet's answer is recorded.
    pub readiness: Arc<Readiness>,
}

#[tonic::async_trait]
impl registration::registration_server::Registration for RegistrationService {
    async fn get_info(
        &self,
        _: Request<registration::InfoRequest>,
    ) -> Result<Response<registration::PluginInfo>, Status> {
        Ok(Response::new(registration::PluginInfo {
            r#type: "DRAPlugin".to_owned(),
            name: self.driver.clone(),
            endpoint: self.endpoint.clone(),
            supported_versions: VERSIONS.map(str::to_owned).to_vec(),
        }))
    }

    async fn notify_registration_status(
        &self,
        status: Request<registration::RegistrationStatus>,
    ) -> Result<Response<registration::RegistrationStatusResponse>, Status> {
        let status = status.into_inner();
        if status.plugin_registered {
            tracing::info!("registered with the kubelet");
            self.readiness.set(Part::Registration, Ok(()));
        } else {
            tracing::error!(error = status.error, "the kubelet rejected the registration");
            self.readiness
                .set(Part::Registration, Err(format!("the kubelet rejected the registration: {}", status.error)));
        }
        Ok(Response::new(registration::RegistrationStatusResponse {}))
    }
}

/// Prepares and unprepares each claim in its own task, so that a closed connection does not leave a claim half done,
/// and a claim that fails does not fail the others.
#[derive(Clone)]
pub struct DraService {
    /// The claims.
    pub claims: Arc<Claims>,
    /// Reads what is allocated to them.
    pub reader: Arc<ClaimReader>,
    /// The calls in flight. Shutdown waits for them.
    pub calls: TaskTracker,
    /// Call counts and durations.
    pub metrics: PluginMetrics,
}

impl DraService {
    async fn for_each<T: Send + 'static, F: Future<Output = Result<T, ClaimError>> + Send + 'static>(
        &self,
        call: Call,
        claims: Vec<dra::Claim>,
        work: impl Fn(Arc<Claims>, ClaimRef) -> F,
    ) -> Vec<(String, Result<T, ClaimError>)> {
        let tasks: Vec<_> = claims
            .into_iter()
            .map(|claim| {
                let claim = ClaimRef { namespace: claim.namespace, name: claim.name, uid: claim.uid };
                let work = work(Arc::clone(&self.claims), claim.clone());
                let (metrics, claims) = (self.metrics.clone(), Arc::clone(&self.claims));
                let task = self.calls.spawn(async move {
                    let begun = Instant::now();
                    let done = work.await;
                    metrics.ended(call, begun.elapsed(), done.is_ok(), claims.count());
                    done
                });
                (claim, task)
            })
            .collect();
        let mut answers = vec![];
        for (claim, task) in tasks {
            let done = task.await.unwrap_or_else(|error| Err(ClaimError::Task(error.to_string())));
            let named = format!("{}/{}", claim.namespace, claim.name);
            match &done {
                Ok(_) => tracing::info!(claim = named, uid = claim.uid, "{call}"),
                Err(error) => tracing::warn!(claim = named, uid = claim.uid, %error, "{call} failed"),
            }
            answers.push((claim.uid, done));
        }
        answers
    }

    /// One entry per device, with the base name of its request.
    fn devices(claims: &Claims, claim: &PreparedClaim) -> Vec<dra::Device> {
        let of_request = |request: &PreparedRequest| {
            // Each request has a single CDI device, returned with its first device.
            let mut id = Some(claims.cdi_device(claim, request));
            let answer = |device: &PreparedDevice| dra::Device {
                request_names: vec![request.name.clone()],
                pool_name: device.pool.clone(),
                device_name: device.device.clone(),
                cdi_device_ids: id.take().into_iter().collect(),
                share_id: device.share_id.clone(),
            };
            request.devices.iter().map(answer).collect::<Vec<_>>()
        };
        claim.requests.iter().flat_map(of_request).collect()
    }
}

#[tonic::async_trait]
impl dra::dra_plugin_server::DraPlugin for DraService {
    async fn node_prepare_resources(
        &self,
        request: Request<dra::NodePrepareResourcesRequest>,
    ) -> Result<Response<dra::NodePrepareResourcesResponse>, Status> {
        let prepare = |claims: Arc<Claims>, claim: ClaimRef| {
            let (arrival, reader) = (claims.arrives(), Arc::clone(&self.reader));
            async move { claims.prepare(&claim, arrival, &reader).await }
        };
        let answers = self.for_each(Call::Prepare, request.into_inner().claims, prepare).await;
        let answer = |done: Result<PreparedClaim, ClaimError>| match done {
            Ok(claim) => {
                dra::NodePrepareResourceResponse { devices: Self::devices(&self.claims, &claim), error: String::new() }
            }
            Err(error) => dra::NodePrepareResourceResponse { devices: vec![], error: error.to_string() },
        };
        let claims = answers.into_iter().map(|(uid, done)| (uid, answer(done))).collect();
        Ok(Response::new(dra::NodePrepareResourcesResponse { claims }))
    }

    async fn node_unprepare_resources(
        &self,
        request: Request<dra::NodeUnprepareResourcesRequest>,
    ) -> Result<Response<dra::NodeUnprepareResourcesResponse>, Status> {
        let unprepare = |claims: Arc<Claims>, claim: ClaimRef| async move { claims.unprepare(&claim).await };
        let answers = self.for_each(Call::Unprepare, request.into_inner().claims, unprepare).await;
        let answer = |done: Result<(), ClaimError>| dra::NodeUnprepareResourceResponse {
            error: done.err().map(|error| error.to_string()).unwrap_or_default(),
        };
        let claims = answers.into_iter().map(|(uid, done)| (uid, answer(done))).collect();
        Ok(Response::new(dra::NodeUnprepareResourcesResponse { claims }))
    }
}
