//! Translates policies into DeviceClasses, with presets and matches as guarded CEL, and counts what a class matches.
//! Pure.
//!
//! A device without an attribute, or with an attribute of another type, must not abort a claim's allocation. So every
//! expression generated here is total: it is true or false for any possible device. Only raw `selectors` can fail; they
//! come last, after the driver name and the matches have ruled out other drivers' devices.

mod cel;
mod demand;
mod error;
mod preset;
pub mod preview;
mod refusal;

pub use error::PolicyError;
pub use preset::Terms;
pub use refusal::in_terms_of_policy;

use std::collections::BTreeSet;

use k8s_openapi::api::resource::v1::{CELDeviceSelector, DeviceClassSpec, DeviceSelector};

use crate::{api::DeviceClassPolicy, dns::is_subdomain};
use demand::{Demand, demands};

/// Maximum length of a selector's expression, in bytes (`CELSelectorExpressionMaxLength` in the resource.k8s.io API).
pub const MAX_EXPRESSION: usize = 10 * 1024;
/// Maximum number of selectors in a class (`DeviceSelectorsMaxSize`).
pub const MAX_SELECTORS: usize = 32;

/// Every class of a DraDriverConfig: its name and the class to create, or an error with the field's path from `spec`.
pub fn device_classes<'a>(
    policies: &'a [DeviceClassPolicy],
    driver_name: &str,
) -> Vec<(&'a str, Result<DeviceClassSpec, PolicyError>)> {
    let mut names = BTreeSet::new();
    let classes = policies.iter().enumerate();
    classes
        .map(|(index, policy)| {
            let class = if names.insert(policy.name.as_str()) {
                device_class(policy, driver_name)
            } else {
                Err(PolicyError::new("name", format!("{:?} is used twice: give each class its own name", policy.name)))
            };
            (policy.name.as_str(), class.map_err(|error| error.within(&format!("spec.deviceClasses[{index}]"))))
        })
        .collect()
}

/// The DeviceClass that a policy describes. An error names the field relative to the policy: `matchAttributes[0].value`.
pub fn device_class(policy: &DeviceClassPolicy, driver_name: &str) -> Result<DeviceClassSpec, PolicyError> {
    check_name(&policy.name)?;
    let mut terms = vec![cel::driver(driver_name)];
    terms.extend(demands(policy, driver_name)?.iter().map(Demand::expression));
    if terms.len() == 1 && policy.preset.is_none() && policy.selectors.is_empty() {
        return Err(PolicyError::new(
            "preset",
            "a device class needs a preset, matchAttributes, matchCapacity or selectors: an empty policy would match every device of the driver",
        ));
    }

    let mut expressions = join(terms, policy)?;
    for (index, selector) in policy.selectors.iter().enumerate() {
        expressions.push(raw(selector).map_err(|error| error.within(&format!("selectors[{index}]")))?);
    }
    if expressions.len() > MAX_SELECTORS {
        return Err(PolicyError::new(
            "selectors",
            format!(
                "together with the matches there are {} selectors, but a DeviceClass allows {MAX_SELECTORS}: combine some with &&",
                expressions.len()
            ),
        ));
    }
    let selector = |expression| DeviceSelector { cel: Some(CELDeviceSelector { expression }) };
    Ok(DeviceClassSpec {
        selectors: Some(expressions.into_iter().map(selector).collect()),
        extended_resource_name: policy.extended_resource_name.clone(),
        config: (!policy.config.is_empty()).then(|| policy.config.clone()),
    })
}

fn check_name(name: &str) -> Result<(), PolicyError> {
    if is_subdomain(name) {
        Ok(())
    } else {
        Err(PolicyError::new(
            "name",
            format!(
                "{name:?} is not a DNS subdomain: use lower-case letters, digits and '-', such as high-performance"
            ),
        ))
    }
}

/// Joins terms into as few expressions as the length limit allows. A class's selectors must all be true and are
/// evaluated in order, so it does not matter where the terms are split.
fn join(terms: Vec<String>, policy: &DeviceClassPolicy) -> Result<Vec<String>, PolicyError> {
    let mut expressions: Vec<String> = Vec::new();
    for term in terms {
        if term.len() > MAX_EXPRESSION {
            let longest = policy.match_attributes.iter().chain(&policy.match_capacity);
            let key =
                longest.max_by_key(|one| one.values.as_ref().map_or(0, Vec::len)).map_or("", |one| one.key.as_str());
            return Err(PolicyError::new(
                "matchAttributes",
                format!(
                    "the values of {key:?} make an expression of {} bytes, but a selector allows {MAX_EXPRESSION}: use fewer or shorter values",
                    term.len()
                ),
            ));
        }
        match expressions.last_mut() {
            Some(last) if last.len() + 4 + term.len() <= MAX_EXPRESSION => {
                last.push_str(" && ");
                last.push_str(&term);
            }
            _ => expressions.push(term),
        }
    }
    Ok(expressions)
}

fn raw(selector: &str) -> Result<String, PolicyError> {
    if selector.trim().is_empty() {
        return Err(PolicyError::new(
            "",
            "must not be empty: write a CEL expression over `device`, or remove the entry",
        ));
    }
    if selector.len() > MAX_EXPRESSION {
        return Err(PolicyError::new(
            "",
            format!("is {} bytes long, but a selector allows {MAX_EXPRESSION}: split it at an &&", selector.len()),
        ));
    }
    Ok(selector.to_owned())
}

#[cfg(test)]
mod tests;
