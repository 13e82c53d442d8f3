//! The message about a plugin pod that is not ready and not known to be in trouble. Pure.

use crate::controller::observe::PluginPod;

/// Names the pod and where to look. The node plugin reference explains what each part of `/readyz` needs.
pub fn message(pod: &PluginPod) -> String {
    let name = &pod.name;
    if pod.unready.is_some_and(|unready| unready.runs) {
        format!(
            "pod {name} is running but not ready: see its log or /readyz on port 8081 (Readiness in the node plugin reference explains each part)"
        )
    } else {
        format!("pod {name} has not started its container: see `kubectl describe pod {name}`")
    }
}
