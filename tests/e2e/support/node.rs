//! The node itself, which is this machine: processes, files, and the CPUs containers may use. IO.

use std::{fs, path::PathBuf};

use dra_operator::cpuset::CpuSet;
use k8s_openapi::api::resource::v1::ResourceSlice;
use rustix::process::{Pid, Signal, kill_process};

use super::{
    cluster::{Cluster, try_tool},
    eventually,
};

/// Process ids of the node plugin that serves the real node.
pub(crate) fn plugin_processes() -> Vec<i32> {
    processes(|arguments| {
        arguments.iter().any(|a| a == "node-plugin") && !arguments.iter().any(|a| a == "--publish-only")
    })
}

/// Process ids of the controller.
pub(crate) fn controller_processes() -> Vec<i32> {
    processes(|arguments| arguments.get(1).is_some_and(|a| a == "controller") && arguments[0].ends_with("dra-operator"))
}

fn processes(wanted: impl Fn(&[String]) -> bool) -> Vec<i32> {
    let entries =
        fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
    let arguments = |pid: &i32| {
        let line = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.split('\0').map(str::to_owned).collect::<Vec<_>>()
    };
    entries.filter(|pid| wanted(&arguments(pid))).collect()
}

/// `kill -9`; a process that has already exited is fine.
pub(crate) fn kill(pids: &[i32]) {
    for pid in pids {
        let pid = Pid::from_raw(*pid).unwrap();
        match kill_process(pid, Signal::KILL) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => {}
            Err(error) => panic!("kill {pid:?}: {error}"),
        }
    }
}

/// Every CPU of this machine that the cluster may use.
pub(crate) fn online() -> CpuSet {
    fs::read_to_string("/sys/devices/system/cpu/online").unwrap().parse().unwrap()
}

impl Cluster {
    /// The CPUs that a container's first process may use, as the kernel reports inside it.
    pub(crate) fn cpus_of(&self, pod: &str, container: &str) -> CpuSet {
        self.try_cpus_of(pod, container).unwrap()
    }

    fn try_cpus_of(&self, pod: &str, container: &str) -> Result<CpuSet, String> {
        let arguments = ["-n", &self.namespace, "exec", pod, "-c", container, "--", "cat", "/proc/1/status"];
        let status = try_tool("kubectl", &arguments)?;
        let line = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap();
        Ok(line.parse().unwrap())
    }

    /// Waits until a container may use exactly `cpus`.
    pub(crate) async fn container_has(&self, pod: &str, container: &str, cpus: &CpuSet) {
        eventually(&format!("{pod}/{container} has CPUs {cpus}"), || async {
            match self.try_cpus_of(pod, container) {
                Ok(has) if has == *cpus => Ok(()),
                Ok(has) => Err(format!("it has {has}")),
                // The kubelet may be starting.
                Err(said) => Err(said),
            }
        })
        .await;
    }

    /// The node plugin's state directory on the node.
    pub(crate) fn state_dir(&self) -> PathBuf {
        PathBuf::from(self.place("KUBELET_ROOT_DIR")).join("plugins/dra.cpu")
    }

    /// The CPUs that each claim holds: its allocation, looked up in the devices' published attributes.
    pub(crate) async fn cpus_of_claim(&self, claim: &str) -> CpuSet {
        let claim = self.claim(claim).await;
        let slices = self.slices().await;
        let results =
            claim.status.and_then(|s| s.allocation).and_then(|a| a.devices).and_then(|d| d.results).unwrap_or_default();
        results.iter().fold(CpuSet::new(), |cpus, result| cpus.union(&device_cpus(&slices, &result.device)))
    }
}

/// The CPUs of a device as published: `cpuIDs` of a core.
fn device_cpus(slices: &[ResourceSlice], name: &str) -> CpuSet {
    let device = slices.iter().flat_map(|s| s.spec.devices.iter().flatten()).find(|d| d.name == name);
    let attributes = device.and_then(|d| d.attributes.as_ref()).unwrap_or_else(|| panic!("no slice has device {name}"));
    let cpus = attributes.get("cpuIDs").and_then(|v| v.string.as_ref());
    cpus.unwrap_or_else(|| panic!("{name} does not say its CPUs: {attributes:#?}")).parse().unwrap()
}
