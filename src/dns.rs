//! The rule for Kubernetes object names (RFC 1123, as in `IsDNS1123Subdomain` of k8s.io/apimachinery). Pure.

/// Maximum length of a DNS subdomain, in bytes.
pub const MAX_SUBDOMAIN: usize = 253;

/// Whether `name` is a DNS subdomain: labels of lower-case letters, digits and inner '-', joined by '.', of at most
/// [`MAX_SUBDOMAIN`] bytes. Some names have a lower limit, which the caller must check.
pub fn is_subdomain(name: &str) -> bool {
    let is_label = |label: &str| {
        let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        !label.is_empty() && label.bytes().all(allowed) && !label.starts_with('-') && !label.ends_with('-')
    };
    name.len() <= MAX_SUBDOMAIN && name.split('.').all(is_label)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subdomain_is_what_kubernetes_accepts_as_one() {
        let longest = "a".repeat(MAX_SUBDOMAIN);
        for name in ["a", "dra.cpu", "0", "a-b.c--d", longest.as_str()] {
            assert!(is_subdomain(name), "{name:?}");
        }
        let too_long = "a".repeat(MAX_SUBDOMAIN + 1);
        for name in ["", ".", "a.", ".a", "a..b", "-a", "a-", "a.-b", "a-.b", "A", "ä", "a_b", "a b", "../x", &too_long]
        {
            assert!(!is_subdomain(name), "{name:?}");
        }
    }
}
