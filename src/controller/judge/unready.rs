//! The message about a plugin pod that is not ready and not known to be in trouble. Pure.

use crate::controller::observe::PluginPod;

/// Which pod, and where to look. The reference of the node plugin says of each part of `/readyz` what it needs.
pub fn message(pod: &PluginPod) -> String {
    let name = &pod.name;
    if pod.unready.is_some_and(|unready| unready.runs) {
        format!(
            "pod {name} is running but not ready: its log, and /readyz on its port 8081, name the part that fails (see Readiness in the node plugin reference)"
        )
    } else {
        format!("pod {name} has not started its container: see `kubectl describe pod {name}`")
    }
}
