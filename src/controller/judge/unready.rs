//! What a person is told of a plugin's pod that is not ready, and not known to be in trouble. Pure.

use crate::controller::observe::PluginPod;

/// Which pod, and where to look.
pub fn in_words(pod: &PluginPod) -> String {
    let name = &pod.name;
    if pod.unready.is_some_and(|unready| unready.runs) {
        format!(
            "pod {name} runs and is not ready: its log and its /readyz (`kubectl port-forward` to its port 8081) say which part is missing: registration, where spec.nodePlugin.kubeletRootDir is not the root directory of the node's kubelet; nri, where the container runtime has NRI turned off; slices, where the API server takes none; checkpoint or cdi, where a file of the node cannot be read or written"
        )
    } else {
        format!("pod {name} has not started its container: see `kubectl describe pod {name}`")
    }
}
