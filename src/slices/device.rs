//! What a published device says about itself, and whether a claim can get it. Pure.

use std::collections::HashSet;

use k8s_openapi::api::resource::v1::{Device, DeviceAttribute, DeviceRequestAllocationResult};

use crate::slices::pool::PoolId;

/// The value of an attribute as text; `None` for a list of values, or for a type that a later Kubernetes version adds.
pub fn text(attribute: &DeviceAttribute) -> Option<String> {
    match attribute {
        DeviceAttribute { bool: Some(value), .. } => Some(value.to_string()),
        DeviceAttribute { int: Some(value), .. } => Some(value.to_string()),
        DeviceAttribute { string: Some(value), .. } | DeviceAttribute { version: Some(value), .. } => {
            Some(value.clone())
        }
        _ => None,
    }
}

/// Whether a taint keeps claims without a toleration away. A taint with the effect `None` is only informational.
pub fn is_tainted(device: &Device) -> bool {
    device.taints.iter().flatten().any(|taint| taint.effect != "None")
}

/// How a claim holds a device that is allocated to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    /// Exclusively: no other claim can get the device.
    Whole,
    /// A share of a device that allows multiple allocations. How much of its capacity is left is not counted here.
    Share,
    /// With admin access, which takes nothing from other claims.
    Admin,
}

impl Hold {
    /// How the device of an allocation result is held.
    pub fn of(result: &DeviceRequestAllocationResult) -> Self {
        if result.admin_access == Some(true) {
            Self::Admin
        } else if result.share_id.is_some() {
            Self::Share
        } else {
            Self::Whole
        }
    }
}

/// The devices that no further claim can get, given the devices that claims hold: pool, device and hold.
pub fn taken<'a>(held: impl IntoIterator<Item = (PoolId<'a>, &'a str, Hold)>) -> HashSet<(PoolId<'a>, &'a str)> {
    let whole = held.into_iter().filter(|(.., hold)| *hold == Hold::Whole);
    whole.map(|(pool, device, _)| (pool, device)).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn result(extra: &Value) -> DeviceRequestAllocationResult {
        let mut result = json!({"request": "r", "driver": "d", "pool": "p", "device": "x"});
        result.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        serde_json::from_value(result).unwrap()
    }

    #[test]
    fn only_an_exclusive_hold_takes_a_device() {
        for (extra, hold) in [
            (json!({}), Hold::Whole),
            (json!({"adminAccess": false}), Hold::Whole),
            (json!({"adminAccess": true}), Hold::Admin),
            (json!({"shareID": "s", "consumedCapacity": {"memory": "1Gi"}}), Hold::Share),
            (json!({"shareID": "s", "adminAccess": true}), Hold::Admin),
        ] {
            assert_eq!(Hold::of(&result(&extra)), hold, "{extra}");
        }
        let pool = PoolId { driver: "d", pool: "p" };
        let held = [(pool, "a", Hold::Whole), (pool, "b", Hold::Share), (pool, "c", Hold::Admin)];
        assert_eq!(taken(held), HashSet::from([(pool, "a")]));
    }

    #[test]
    fn a_taint_with_the_effect_none_is_only_informational() {
        let device = |effects: &[&str]| Device {
            taints: Some(
                effects
                    .iter()
                    .map(|effect| serde_json::from_value(json!({"key": "k", "effect": effect})).unwrap())
                    .collect(),
            ),
            ..Device::default()
        };
        assert!(!is_tainted(&Device::default()) && !is_tainted(&device(&["None"])));
        assert!(is_tainted(&device(&["None", "NoSchedule"])) && is_tainted(&device(&["NoExecute"])));
    }

    #[test]
    fn a_single_value_is_shown_as_text_and_a_list_is_not() {
        let shown = |attribute: Value| text(&serde_json::from_value(attribute).unwrap());
        assert_eq!(shown(json!({"bool": false})).as_deref(), Some("false"));
        assert_eq!(shown(json!({"int": 8})).as_deref(), Some("8"));
        assert_eq!(shown(json!({"string": "Xeon"})).as_deref(), Some("Xeon"));
        assert_eq!(shown(json!({"version": "1.2.0"})).as_deref(), Some("1.2.0"));
        assert_eq!(shown(json!({"ints": [1]})), None);
    }
}
