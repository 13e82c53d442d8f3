//! What the cluster must have before anything is rolled out. IO: lists the API groups.

use kube::Client;

/// What the cluster lacks, as a message; none when it has everything.
pub async fn lacks(client: &Client) -> Result<Option<String>, kube::Error> {
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
    let instead = match served {
        [] => "not at all".to_owned(),
        versions => format!("only as {}", versions.join(", ")),
    };
    Some(format!(
        "the API server serves resource.k8s.io/v1 (Dynamic Resource Allocation) {instead}: Kubernetes 1.34 or newer is needed, with this API not disabled by --runtime-config"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_without_the_api_is_told_what_it_needs() {
        assert_eq!(judge(&["v1", "v1beta2"]), None);
        assert!(judge(&[]).unwrap().contains("not at all: Kubernetes 1.34 or newer is needed"));
        assert!(judge(&["v1beta1"]).unwrap().contains("only as v1beta1"));
    }
}
