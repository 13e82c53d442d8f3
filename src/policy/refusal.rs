//! Rewrites API server errors about a DeviceClass in terms of the policy that the class was built from. Pure.

use crate::api::DeviceClassPolicy;

use super::device_class;

/// The message, with each path such as `spec.selectors[1].cel.expression` replaced by the policy field that it came
/// from.
pub fn in_terms_of_policy(policies: &[DeviceClassPolicy], driver_name: &str, class: &str, message: &str) -> String {
    let Some(index) = policies.iter().position(|policy| policy.name == class) else {
        return message.to_owned();
    };
    let policy = &policies[index];
    let at = format!("spec.deviceClasses[{index}]");
    let made = device_class(policy, driver_name).ok().and_then(|class| class.selectors).map_or(0, |all| all.len());
    let first_raw = made.saturating_sub(policy.selectors.len());
    let mut message = message.to_owned();
    for selector in 0..made {
        let field = match selector.checked_sub(first_raw) {
            Some(raw) => format!("{at}.selectors[{raw}]"),
            None => format!("{at} (its preset and matches)"),
        };
        let path = format!("spec.selectors[{selector}]");
        message = message.replace(&format!("{path}.cel.expression"), &field).replace(&path, &field);
    }
    for field in ["config", "extendedResourceName"] {
        message = message.replace(&format!(": spec.{field}"), &format!(": {at}.{field}"));
    }
    message
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_refusal_names_the_field_that_the_admin_wrote() {
        let policies: Vec<DeviceClassPolicy> = serde_json::from_value(json!([
            {"name": "a", "preset": "Intel"},
            {"name": "b", "preset": "Intel", "selectors": ["true", "device.driver =="]},
        ]))
        .unwrap();
        let said = |class, path: &str| {
            let message = format!("DeviceClass \"{class}\" is invalid: {path}: Invalid value: x");
            in_terms_of_policy(&policies, "dra.cpu", class, &message)
        };
        let wanted = |path| format!("DeviceClass \"b\" is invalid: {path}: Invalid value: x");
        assert_eq!(said("b", "spec.selectors[2].cel.expression"), wanted("spec.deviceClasses[1].selectors[1]"));
        assert_eq!(
            said("b", "spec.selectors[0].cel.expression"),
            wanted("spec.deviceClasses[1] (its preset and matches)")
        );
        assert_eq!(said("b", "spec.config[0].opaque.driver"), wanted("spec.deviceClasses[1].config[0].opaque.driver"));
        assert!(said("gone", "spec.selectors[0]").contains("spec.selectors[0]"));
    }
}
