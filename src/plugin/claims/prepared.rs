//! The claims that are prepared on this node, and the rules for conflicts between them. Pure.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::{
    drivers::{AllocatedDevice, Conflict, Driver, Grant},
    plugin::claims::allocation::ClaimRef,
};

/// A prepared claim, as the checkpoint keeps it: fields are only ever added.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PreparedClaim {
    /// The claim's UID.
    pub uid: String,
    /// The claim's namespace. Its token is valid only there.
    pub namespace: String,
    /// The claim's name, used in messages.
    pub name: String,
    /// Its requests that have devices of this driver, in the order of the allocation.
    pub requests: Vec<PreparedRequest>,
    /// The pods that it was reserved for at each Prepare. The kubelet does not call Prepare for a second pod while the
    /// claim is prepared for the first, so later pods of a shared claim may be missing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pods: Vec<PodRef>,
}

/// A pod that may use a claim.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodRef {
    /// The pod's UID.
    pub uid: String,
    /// The pod's name; its namespace is the claim's.
    pub name: String,
}

/// One request of a claim, and what a container that uses it gets.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PreparedRequest {
    /// The base request's name.
    pub name: String,
    /// A token in the environment of the containers that use this request. It is random, so other containers cannot
    /// know it.
    pub token: String,
    /// The devices.
    pub devices: Vec<PreparedDevice>,
    /// What the container gets for the devices.
    pub grant: Grant,
}

/// One device of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PreparedDevice {
    /// Its pool.
    pub pool: String,
    /// Its name.
    pub device: String,
    /// Which share of the device, if several claims may hold it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share_id: Option<String>,
    /// Held with admin access: other claims may hold it too.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub admin_access: bool,
}

impl PreparedDevice {
    /// The device of an allocation.
    pub fn of(device: &AllocatedDevice) -> Self {
        Self {
            pool: device.pool.clone(),
            device: device.device.clone(),
            share_id: device.share_id.clone(),
            admin_access: device.admin_access,
        }
    }

    /// Whether two claims cannot hold these two devices at the same time.
    fn excludes(&self, other: &Self) -> bool {
        let both_shared = self.share_id.is_some() && other.share_id.is_some() && self.share_id != other.share_id;
        (&self.pool, &self.device) == (&other.pool, &other.device)
            && !(self.admin_access || other.admin_access || both_shared)
    }
}

impl PreparedRequest {
    /// Whether it holds its devices exclusively: neither with admin access nor as shares.
    pub fn exclusive(&self) -> bool {
        self.devices.iter().all(|device| device.share_id.is_none() && !device.admin_access)
    }

    /// Whether it holds its devices with admin access, which takes nothing from others.
    pub fn admin(&self) -> bool {
        self.devices.iter().all(|device| device.admin_access)
    }
}

impl PreparedClaim {
    /// `namespace/name`.
    fn named(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    /// Whether the claim holds these devices, in this order, for these requests.
    pub fn holds(&self, devices: &[AllocatedDevice]) -> bool {
        let mut left = by_request(devices);
        self.requests.iter().all(|request| {
            left.remove(request.name.as_str()).is_some_and(|devices| {
                request.devices.iter().eq(devices.iter().map(PreparedDevice::of).collect::<Vec<_>>().iter())
            })
        }) && left.is_empty()
    }
}

/// The devices of each base request.
pub fn by_request(devices: &[AllocatedDevice]) -> BTreeMap<&str, Vec<AllocatedDevice>> {
    let mut requests: BTreeMap<&str, Vec<AllocatedDevice>> = BTreeMap::new();
    for device in devices {
        requests.entry(&device.request).or_default().push(device.clone());
    }
    requests
}

/// Why a claim cannot be prepared.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeldError {
    /// Another claim holds the device.
    #[error(
        "device {device} is still held by claim {holder} ({uid}) on this node; the kubelet retries until that claim's pod is gone"
    )]
    Device {
        /// The device.
        device: String,
        /// `namespace/name` of who holds it.
        holder: String,
        /// Its UID.
        uid: String,
    },
    /// Another claim holds the same resources through another device (for example after a change of granularity) or
    /// another share.
    #[error(
        "request {request:?} conflicts with claim {holder} ({uid}) over {what}; the kubelet retries until that claim's pod is gone"
    )]
    Conflict {
        /// The request.
        request: String,
        /// What both want, as the kind of device describes it.
        what: String,
        /// `namespace/name` of who holds it.
        holder: String,
        /// Its UID.
        uid: String,
    },
    /// The claim was unprepared while it was being prepared.
    #[error("claim {claim} was unprepared while it was being prepared: the pod is gone")]
    Unprepared {
        /// `namespace/name`.
        claim: String,
    },
    /// The claim was reallocated without an Unprepare in between.
    #[error(
        "claim {claim} is prepared with different devices than it is allocated now: delete the pod that uses it, so that the kubelet unprepares the claim first"
    )]
    OtherDevices {
        /// `namespace/name`.
        claim: String,
    },
}

impl HeldError {
    /// Whether unpreparing another claim may resolve the conflict.
    pub fn passes(&self) -> bool {
        matches!(self, Self::Device { .. } | Self::Conflict { .. })
    }
}

/// When a Prepare arrived, to tell whether its claim was unprepared later.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Clone, Copy)]
pub struct Arrival(u64);

/// All prepared claims of this driver on this node.
#[derive(Debug, Default)]
pub struct PreparedClaims {
    claims: BTreeMap<String, PreparedClaim>,
    /// Token → claim UID and index of the request.
    tokens: BTreeMap<String, (String, usize)>,
    /// Counts the changes of the set of prepared claims.
    revision: u64,
    /// Counts arrivals of Prepare and Unprepare.
    clock: u64,
    /// Prepare calls that have not ended.
    preparing: BTreeSet<u64>,
    /// Tombstones: when claims were last unprepared. Kept until every older Prepare has ended.
    unprepared: BTreeMap<String, u64>,
}

impl PreparedClaims {
    /// The claims of a checkpoint.
    pub fn restored(claims: Vec<PreparedClaim>) -> Self {
        let mut restored = Self::default();
        restored.reset(claims);
        restored
    }

    /// Replaces the current claims with those of a checkpoint.
    pub fn reset(&mut self, claims: Vec<PreparedClaim>) {
        self.claims.clear();
        self.tokens.clear();
        self.revision += 1;
        for claim in claims {
            self.put(claim);
        }
    }

    /// Grows with every change of what is prepared.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// All prepared claims, by UID.
    pub fn iter(&self) -> impl Iterator<Item = &PreparedClaim> {
        self.claims.values()
    }

    /// Whether the claim with this UID is prepared.
    pub fn contains(&self, uid: &str) -> bool {
        self.claims.contains_key(uid)
    }

    /// The claim and request that a token stands for.
    pub fn by_token(&self, token: &str) -> Option<(&PreparedClaim, &PreparedRequest)> {
        let (uid, index) = self.tokens.get(token)?;
        let claim = self.claims.get(uid)?;
        Some((claim, claim.requests.get(*index)?))
    }

    /// The grants of the claims that are reserved for a pod, one per request.
    pub fn of_pod(&self, uid: &str) -> Vec<Grant> {
        let claims = self.claims.values().filter(|claim| claim.pods.iter().any(|pod| pod.uid == uid));
        claims.flat_map(|claim| &claim.requests).map(|request| request.grant.clone()).collect()
    }

    /// All grants except those with admin access.
    pub fn held(&self) -> Vec<&Grant> {
        self.claims
            .values()
            .flat_map(|claim| &claim.requests)
            .filter(|request| !request.admin())
            .map(|request| &request.grant)
            .collect()
    }

    /// Records that a Prepare begins; [`PreparedClaims::ended`] must follow.
    pub fn arrives(&mut self) -> Arrival {
        self.clock += 1;
        self.preparing.insert(self.clock);
        Arrival(self.clock)
    }

    /// Records that a Prepare has ended, and drops tombstones that no running Prepare needs.
    pub fn ended(&mut self, arrival: Arrival) {
        self.preparing.remove(&arrival.0);
        let oldest = self.preparing.first().copied().unwrap_or(u64::MAX);
        self.unprepared.retain(|_, at| *at > oldest);
    }

    /// The prepared claim, if it is prepared with these devices. An error if it must not be prepared.
    pub fn find(
        &self,
        claim: &ClaimRef,
        arrival: Arrival,
        devices: &[AllocatedDevice],
    ) -> Result<Option<&PreparedClaim>, HeldError> {
        if self.unprepared.get(&claim.uid).is_some_and(|at| *at > arrival.0) {
            return Err(HeldError::Unprepared { claim: claim.to_string() });
        }
        match self.claims.get(&claim.uid) {
            Some(prepared) if !prepared.holds(devices) => Err(HeldError::OtherDevices { claim: claim.to_string() }),
            prepared => Ok(prepared),
        }
    }

    /// Adds a claim, unless another one holds what it wants.
    pub fn insert(&mut self, claim: PreparedClaim, driver: &dyn Driver) -> Result<(), HeldError> {
        let others: Vec<(&PreparedClaim, &PreparedRequest)> = self
            .claims
            .values()
            .filter(|other| other.uid != claim.uid)
            .flat_map(|other| other.requests.iter().map(move |request| (other, request)))
            .collect();
        // Admin access neither blocks another claim nor is blocked by one.
        let held: Vec<_> = others.iter().filter(|(_, request)| !request.admin()).collect();
        let grants: Vec<&Grant> = held.iter().map(|(_, request)| &request.grant).collect();

        for request in &claim.requests {
            let taken = |other: &PreparedRequest| {
                request.devices.iter().find(|device| other.devices.iter().any(|held| device.excludes(held)))
            };
            if let Some((holder, device)) = others.iter().find_map(|(claim, held)| Some((claim, taken(held)?))) {
                return Err(HeldError::Device {
                    device: device.device.clone(),
                    holder: holder.named(),
                    uid: holder.uid.clone(),
                });
            }

            if !request.admin()
                && let Some(Conflict { what, with }) = driver.conflict(&request.grant, &grants)
            {
                // An index that is not among the held ones is a fault of the kind, and no reason to give a device twice.
                let named = |(holder, _): &&(&PreparedClaim, _)| (holder.named(), holder.uid.clone());
                let (holder, uid) = held.get(with).map_or_else(|| ("of unknown name".into(), "?".into()), named);
                return Err(HeldError::Conflict { request: request.name.clone(), what, holder, uid });
            }
        }
        self.put(claim);
        Ok(())
    }

    /// Adds the pods that a prepared claim is reserved for now. Removes none: a pod deleted by force loses its
    /// reservation at once, while its sandbox may still run.
    pub fn reserve(&mut self, uid: &str, pods: &[PodRef]) {
        let Some(claim) = self.claims.get_mut(uid) else { return };
        let new: Vec<PodRef> = pods.iter().filter(|pod| !claim.pods.contains(pod)).cloned().collect();
        if !new.is_empty() {
            claim.pods.extend(new);
            self.revision += 1;
        }
    }

    /// Removes a claim and leaves a tombstone for a Prepare that began earlier. `None` if the claim is not prepared.
    pub fn remove(&mut self, uid: &str) -> Option<PreparedClaim> {
        self.clock += 1;
        if !self.preparing.is_empty() {
            self.unprepared.insert(uid.to_owned(), self.clock);
        }
        let claim = self.claims.remove(uid)?;
        self.revision += 1;
        for request in &claim.requests {
            self.tokens.remove(&request.token);
        }
        Some(claim)
    }

    fn put(&mut self, claim: PreparedClaim) {
        self.revision += 1;
        for (index, request) in claim.requests.iter().enumerate() {
            self.tokens.insert(request.token.clone(), (claim.uid.clone(), index));
        }
        self.claims.insert(claim.uid.clone(), claim);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures::future::BoxFuture;
    use tokio::sync::watch;

    use super::*;
    use crate::{
        api::Granularity,
        cpuset::CpuSet,
        drivers::{GrantError, Inventory, cpu::CpuDriver, cpuset_fields::CpusetFields},
        host::Host,
    };

    fn claim(uid: &str, device: &str, cpus: &str) -> PreparedClaim {
        PreparedClaim {
            uid: uid.into(),
            namespace: "apps".into(),
            name: format!("claim-{uid}"),
            requests: vec![PreparedRequest {
                name: "main".into(),
                token: format!("token-{uid}"),
                devices: vec![PreparedDevice {
                    pool: "node-1".into(),
                    device: device.into(),
                    share_id: None,
                    admin_access: false,
                }],
                grant: Grant { cpus: cpus.parse().unwrap(), ..Grant::default() },
            }],
            pods: vec![pod(uid)],
        }
    }

    fn pod(claim: &str) -> PodRef {
        PodRef { uid: format!("pod-uid-of-{claim}"), name: format!("pod-of-{claim}") }
    }

    fn cpus() -> CpuDriver {
        CpuDriver::observe(Host::at("/nowhere"), Granularity::Core, &CpuSet::new())
    }

    fn shared(mut claim: PreparedClaim, share: &str) -> PreparedClaim {
        claim.requests[0].devices[0].share_id = Some(share.into());
        claim
    }

    fn admin(mut claim: PreparedClaim) -> PreparedClaim {
        claim.requests[0].devices[0].admin_access = true;
        claim
    }

    fn allocated(device: &str) -> AllocatedDevice {
        AllocatedDevice {
            request: "main".into(),
            pool: "node-1".into(),
            device: device.into(),
            share_id: None,
            admin_access: false,
            consumed_capacity: BTreeMap::new(),
            parameters: vec![],
        }
    }

    fn named(uid: &str) -> ClaimRef {
        ClaimRef { namespace: "apps".into(), name: format!("claim-{uid}"), uid: uid.into() }
    }

    /// A kind that says that nothing goes together, and names a grant that is not there.
    struct Confused(CpuDriver);

    impl Driver for Confused {
        fn inventory(&self) -> watch::Receiver<Arc<Inventory>> {
            self.0.inventory()
        }

        fn grant(&self, devices: &[AllocatedDevice]) -> Result<Grant, GrantError> {
            self.0.grant(devices)
        }

        fn conflict(&self, _: &Grant, held: &[&Grant]) -> Option<Conflict> {
            Some(Conflict { what: "everything".into(), with: held.len() })
        }

        fn check(&self, grant: &Grant) -> Result<(), GrantError> {
            self.0.check(grant)
        }

        fn remainder(&self, held: &[&Grant]) -> Option<Grant> {
            self.0.remainder(held)
        }

        fn overlapping(&self, held: &[&Grant]) -> Vec<String> {
            self.0.overlapping(held)
        }

        fn changed(&self) -> BoxFuture<'_, String> {
            self.0.changed()
        }

        fn cpuset_fields(&self) -> CpusetFields {
            self.0.cpuset_fields()
        }
    }

    #[test]
    fn a_conflict_with_no_known_grant_is_a_conflict_all_the_same() {
        let cpus = CpuDriver::observe(Host::at("/nonexistent"), Granularity::Core, &CpuSet::new());
        let mut claims = PreparedClaims::restored(vec![claim("a", "core-0-1", "1")]);
        let error = claims.insert(claim("b", "core-0-2", "2"), &Confused(cpus)).unwrap_err();
        assert!(error.to_string().contains("over everything") && error.passes(), "{error}");
    }

    #[test]
    fn a_device_is_refused_until_the_claim_that_holds_it_is_unprepared() {
        let mut claims = PreparedClaims::restored(vec![claim("a", "core-0-1", "1")]);
        let error = claims.insert(claim("b", "core-0-1", "1"), &cpus()).unwrap_err();
        assert!(error.to_string().contains("held by claim apps/claim-a (a)"), "{error}");
        assert!(claims.remove("a").is_some());
        assert_eq!(claims.insert(claim("b", "core-0-1", "1"), &cpus()), Ok(()));
    }

    #[test]
    fn a_cpu_is_not_granted_twice_through_devices_of_another_granularity() {
        let mut claims = PreparedClaims::restored(vec![claim("z", "core-0-0", "0,64"), claim("a", "core-0-1", "1,65")]);
        let error = claims.insert(claim("b", "cpu-65", "65"), &cpus()).unwrap_err();
        assert!(error.to_string().contains("conflicts with claim apps/claim-a (a) over CPUs 65"), "{error}");
        assert!(error.passes());
    }

    #[test]
    fn an_admin_access_claim_and_an_exclusive_one_do_not_block_each_other() {
        // Through the same device, and through another one with the same CPU.
        for device in ["core-0-1", "cpu-1"] {
            let mut claims = PreparedClaims::restored(vec![claim("a", "core-0-1", "1")]);
            assert_eq!(claims.insert(admin(claim("b", device, "1")), &cpus()), Ok(()));
            let mut claims = PreparedClaims::restored(vec![admin(claim("a", "core-0-1", "1"))]);
            assert_eq!(claims.insert(claim("b", device, "1"), &cpus()), Ok(()));
            assert_eq!(claims.insert(admin(claim("c", device, "1")), &cpus()), Ok(()));
        }
    }

    #[test]
    fn several_claims_can_hold_a_device_but_not_the_same_share() {
        let mut claims = PreparedClaims::restored(vec![shared(claim("a", "l3-0", ""), "s1")]);
        assert_eq!(claims.insert(shared(claim("b", "l3-0", ""), "s2"), &cpus()), Ok(()));
        assert!(claims.insert(shared(claim("c", "l3-0", ""), "s2"), &cpus()).is_err(), "the same share twice");
        assert!(claims.insert(claim("d", "l3-0", ""), &cpus()).is_err(), "the whole device while shares are held");
    }

    #[test]
    fn admin_access_takes_nothing_from_the_others() {
        let claims = PreparedClaims::restored(vec![claim("a", "core-0-1", "1"), admin(claim("b", "core-0-2", "2"))]);
        let held: Vec<String> = claims.held().iter().map(|grant| grant.cpus.to_string()).collect();
        assert_eq!(held, ["1"]);
    }

    #[test]
    fn a_prepare_that_began_before_the_unprepare_does_not_restore_the_claim() {
        let mut claims = PreparedClaims::default();
        let late = claims.arrives();
        claims.remove("a");
        let error = claims.find(&named("a"), late, &[allocated("core-0-1")]).unwrap_err();
        assert!(
            error.to_string().contains("apps/claim-a") && error.to_string().contains("unprepared while"),
            "{error}"
        );
        let next = claims.arrives();
        assert_eq!(claims.find(&named("a"), next, &[allocated("core-0-1")]), Ok(None), "a new pod may use it again");
    }

    #[test]
    fn tombstones_are_dropped_when_no_older_prepare_is_running() {
        let mut claims = PreparedClaims::default();
        let (first, second) = (claims.arrives(), claims.arrives());
        claims.remove("a");
        claims.ended(second);
        assert_eq!(claims.unprepared.len(), 1);
        claims.ended(first);
        assert_eq!(claims.unprepared.len(), 0);
        claims.remove("b");
        assert_eq!(claims.unprepared.len(), 0, "no Prepare is running");
    }

    #[test]
    fn a_prepared_claim_is_found_again_and_other_devices_are_refused() {
        let mut claims = PreparedClaims::restored(vec![claim("a", "core-0-1", "1")]);
        let arrival = claims.arrives();
        assert!(claims.find(&named("a"), arrival, &[allocated("core-0-1")]).unwrap().is_some());
        let error = claims.find(&named("a"), arrival, &[allocated("core-0-2")]).unwrap_err();
        assert!(error.to_string().contains("different devices"), "{error}");
        assert!(claims.find(&named("a"), arrival, &[allocated("core-0-1"), allocated("core-0-3")]).is_err());
    }

    #[test]
    fn a_pod_has_what_every_claim_reserved_for_it_holds_and_a_pod_that_comes_later_is_added() {
        let mut claims = PreparedClaims::restored(vec![claim("a", "core-0-1", "1"), claim("b", "core-0-2", "2")]);
        let cpus_of = |claims: &PreparedClaims, uid: &str| -> Vec<String> {
            claims.of_pod(uid).iter().map(|grant| grant.cpus.to_string()).collect()
        };
        let before = claims.revision();
        claims.reserve("b", &[pod("b")]);
        assert_eq!(claims.revision(), before, "nothing new to keep");
        claims.reserve("b", &[pod("a")]);
        assert_eq!(claims.revision(), before + 1);
        assert_eq!(cpus_of(&claims, "pod-uid-of-a"), ["1", "2"]);
        assert_eq!(cpus_of(&claims, "pod-uid-of-b"), ["2"], "it stays");
        assert_eq!(cpus_of(&claims, "pod-of-a"), [""; 0], "a name is not a UID");
    }

    #[test]
    fn a_token_leads_to_its_request_while_the_claim_is_prepared() {
        let mut claims = PreparedClaims::restored(vec![claim("a", "core-0-1", "1")]);
        assert_eq!(claims.by_token("token-a").unwrap().1.name, "main");
        claims.remove("a");
        assert!(claims.by_token("token-a").is_none());
    }
}
