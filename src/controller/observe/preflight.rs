//! Checks what the cluster must have before anything is rolled out. IO: lists the API groups.

use kube::Client;

/// What the cluster lacks, as a message; `None` if it has everything.
pub async fn missing_api(client: &Client) -> Result<Option<String>, kube::Error> {
    let groups = client.list_api_groups().await?;
    let served: Vec<_> = groups
        .groups
        .iter()
        .filter(|group| group.name == "resource.k8s.io")
        .flat_map(|group| group.versions.iter().map(|version| version.version.as_str()))
        .collect();
    Ok(judge(&served))
}

fn judge(served: &[&str]) -> Option<String> {
    if served.contains(&"v1") {
        return None;
    }
    let instead = if served.is_empty() { String::new() } else { format!(", only {}", served.join(", ")) };
    Some(format!(
        "the API server does not serve resource.k8s.io/v1 (Dynamic Resource Allocation){instead}: upgrade to Kubernetes 1.34 or later, and do not disable this API with --runtime-config"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_for_a_cluster_without_the_api_says_what_it_needs() {
        assert_eq!(judge(&["v1", "v1beta2"]), None);
        assert!(judge(&[]).unwrap().contains("(Dynamic Resource Allocation): upgrade to Kubernetes 1.34 or later"));
        assert!(judge(&["v1beta1"]).unwrap().contains("only v1beta1: upgrade"));
    }
}
