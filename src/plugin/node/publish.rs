//! Keeps the devices of the node published. IO: the API server, through the publisher.

use std::{collections::BTreeSet, convert::Infallible, future::pending, sync::Arc};

use tokio::sync::watch;

use super::{NodePlugin, follow};
use crate::{
    drivers::Inventory,
    plugin::{claims::Claims, grants::Grants, readiness::Part},
    slices::publish::{Offered, PublishCounters, Published, Publisher},
};

impl NodePlugin {
    /// Publishes the devices as they come and go, except those that claims withhold.
    pub(super) async fn publish(&self, claims: Option<&Claims>) -> Infallible {
        let mut offer = Offer::new(self.driver.inventory(), claims);
        let offered = watch::Sender::new(offer.now());
        let keep_offered = async {
            loop {
                offer.change().await;
                // Do not hold a borrowed value here: changes are announced while the claims are locked.
                let now = offer.now();
                offered.send_if_modified(|offered| {
                    let changed = !same(offered, &now);
                    *offered = now;
                    changed
                });
            }
        };
        tokio::select! {
            never = keep_offered => never,
            never = self.keep_published(offered.subscribe()) => never,
        }
    }

    async fn keep_published(&self, offered: watch::Receiver<Offered>) -> Infallible {
        let settings = &self.settings;
        let counters =
            PublishCounters { writes: self.metrics.slice_writes.clone(), errors: self.metrics.slice_errors.clone() };
        let publisher =
            Publisher::new(self.client.clone(), &settings.driver_name, &settings.node_name, offered, counters);

        let status = watch::Sender::new(Published::default());
        let mut reported = status.subscribe();
        let report = |published: &Published| {
            let problem = || published.problem.clone().unwrap_or_else(|| "not yet".to_owned());
            self.readiness.set(Part::Slices, published.complete.then_some(()).ok_or_else(problem));
        };
        tokio::select! {
            never = publisher.run(&status) => never,
            never = follow(&mut reported, report) => never,
        }
    }
}

/// The devices to offer: the inventory, without what claims withhold.
struct Offer<'a> {
    inventory: watch::Receiver<Arc<Inventory>>,
    claims: Option<(&'a Claims, watch::Receiver<u64>)>,
}

impl<'a> Offer<'a> {
    fn new(inventory: watch::Receiver<Arc<Inventory>>, claims: Option<&'a Claims>) -> Self {
        // Subscribe before reading, so that no change is missed.
        Self { inventory, claims: claims.map(|claims| (claims, claims.changes())) }
    }

    fn now(&mut self) -> Offered {
        let inventory = Arc::clone(&self.inventory.borrow_and_update());
        let withheld =
            self.claims.as_ref().map_or_else(BTreeSet::new, |(claims, _)| claims.withheld(&inventory.devices));
        Offered { devices: inventory, withheld }
    }

    /// Returns when the devices have changed, or the set that claims withhold may have changed.
    async fn change(&mut self) {
        let claims_change = async {
            match &mut self.claims {
                // The claims own the sender and outlive this.
                Some((_, changes)) => changes.changed().await.unwrap_or_default(),
                None => pending().await,
            }
        };
        tokio::select! {
            () = claims_change => {}
            // A kind whose devices never change may have dropped the sender.
            Ok(()) = self.inventory.changed() => {
                let inventory = self.inventory.borrow();
                tracing::info!(devices = inventory.devices.len(), "the devices changed");
                inventory.warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
            }
        }
    }
}

/// Whether the same devices are offered: the identical inventory, and the same withheld devices.
fn same(a: &Offered, b: &Offered) -> bool {
    Arc::ptr_eq(&a.devices, &b.devices) && a.withheld == b.withheld
}
