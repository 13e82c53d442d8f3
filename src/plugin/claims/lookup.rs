//! Answers what NRI asks about the claims. Pure: from memory.

use std::collections::BTreeSet;

use tokio::sync::watch;

use super::{Claims, cdi::token_of};
use crate::{
    drivers::{Grant, GrantError, cpuset_fields::CpusetFields},
    plugin::grants::{ContainerIdentity, Grants, Refusal},
};

impl Grants for Claims {
    fn of_container(&self, container: &ContainerIdentity<'_>) -> Result<Option<Grant>, Refusal> {
        let prepared = self.lock();

        // A container may use several requests. Each has its own mark, and counts once even if the mark occurs twice: the
        // pod's author can write a mark that is known from another pod of the claim.
        let mut seen = BTreeSet::new();
        let tokens = container.env.iter().filter_map(|variable| token_of(&self.driver_name, variable));
        let mut whole: Option<Grant> = None;
        for token in tokens.filter(|token| seen.insert(*token)) {
            let (driver, namespace) = (self.driver_name.clone(), container.pod_namespace.to_owned());
            let (pod, named) = (container.pod_name.to_owned(), container.container_name.to_owned());
            let Some((claim, request)) = prepared.by_token(token) else {
                return Err(Refusal::NotPrepared { driver, namespace, pod, container: named });
            };
            if claim.namespace != container.pod_namespace {
                return Err(Refusal::OtherNamespace { driver, namespace, pod, container: named });
            }
            whole.get_or_insert_default().add(&request.grant);
        }

        // A CDI device of this driver without a mark means that the runtime did not apply the device.
        if whole.is_none() && container.cdi_devices.iter().any(|device| self.cdi.is_own(device)) {
            let (namespace, pod) = (container.pod_namespace.to_owned(), container.pod_name.to_owned());
            let (driver, container) = (self.driver_name.clone(), container.container_name.to_owned());
            return Err(Refusal::NotInjected { driver, namespace, pod, container });
        }
        Ok(whole)
    }

    fn is_mark(&self, variable: &str) -> bool {
        token_of(&self.driver_name, variable).is_some()
    }

    fn of_pod(&self, pod_uid: &str) -> Vec<Grant> {
        self.lock().of_pod(pod_uid)
    }

    fn cpuset_fields(&self) -> CpusetFields {
        self.driver.cpuset_fields()
    }

    fn check(&self, grant: &Grant) -> Result<(), GrantError> {
        self.driver.check(grant)
    }

    fn remainder(&self) -> Option<Grant> {
        self.driver.remainder(&self.lock().held())
    }

    fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }
}
