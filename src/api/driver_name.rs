//! The name of a driver. Pure.

use std::{fmt, ops::Deref, str::FromStr};

use crate::dns::is_subdomain;

/// The name under which a driver registers and publishes: a DNS subdomain of at most 63 characters, as `spec.driver` of
/// a ResourceSlice must be. Paths and object names contain it, so no other characters are allowed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DriverName(String);

/// The text is not a driver name.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0:?} is not a DNS subdomain of at most 63 characters (a-z, 0-9, '-', '.'), such as dra.cpu")]
pub struct DriverNameError(String);

impl DriverName {
    /// Maximum length (`DriverNameMaxLength` in the resource.k8s.io API).
    pub const LONGEST: usize = 63;

    /// Stands for a driver name that cannot be determined. No driver can have this name (`.invalid` is reserved, RFC
    /// 2606).
    pub fn unknown() -> Self {
        Self("unknown.invalid".into())
    }
}

impl FromStr for DriverName {
    type Err = DriverNameError;

    fn from_str(text: &str) -> Result<Self, DriverNameError> {
        let fits = text.len() <= Self::LONGEST && is_subdomain(text);
        if fits { Ok(Self(text.into())) } else { Err(DriverNameError(text.into())) }
    }
}

impl Deref for DriverName {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for DriverName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_name_is_a_dns_subdomain_of_63_characters_at_most() {
        for good in ["dra.cpu", "a", "cpu-2.example.com", &"a".repeat(63)] {
            assert_eq!(good.parse::<DriverName>().unwrap().to_string(), good);
        }
        for bad in ["", "DRA", "a..b", ".a", "a.", "-a", "a-", "a.-b", "../x", "a_b", "ä", &"a".repeat(64)] {
            let error = bad.parse::<DriverName>().unwrap_err().to_string();
            assert!(error.contains(&format!("{bad:?} is not a DNS subdomain")), "{error}");
        }
    }
}
