//! What the CPU driver needs from the cluster. Pure.

use crate::{
    api::{CpuSettings, NodePluginSettings, Pinning, Preset},
    drivers::kind::{HostPath, Kind},
};

impl Kind for CpuSettings {
    fn devices(&self) -> Option<&str> {
        Some("cpu")
    }

    fn default_driver_name(&self) -> &str {
        Self::DEFAULT_NAME
    }

    fn arguments(&self) -> Vec<String> {
        let mut arguments = vec![
            "cpu".into(),
            format!("--granularity={}", self.granularity.as_str()),
            format!("--pinning={}", self.pinning.as_str()),
        ];
        if !self.reserved_cpus.is_empty() {
            arguments.push(format!("--reserved-cpus={}", self.reserved_cpus));
        }
        arguments
    }

    fn host_paths(&self, plugin: &NodePluginSettings) -> Vec<HostPath> {
        let directory = plugin.nri_socket.rsplit_once('/').map(|(directory, _)| directory.to_owned());
        let nri = directory.filter(|_| self.pinning == Pinning::Nri);
        nri.into_iter().map(|path| HostPath { name: "nri", path, read_only: false }).collect()
    }

    fn has_preset(&self, preset: Preset) -> bool {
        match preset {
            Preset::HighPerformance | Preset::GeneralPurpose | Preset::Arm | Preset::Intel | Preset::Amd => true,
        }
    }

    fn why_no_device(&self) -> String {
        "spec.driver.cpu.reservedCPUs leaves no CPU, or claims made with another granularity hold every CPU".into()
    }

    fn when_all_held(&self) -> Option<String> {
        // Containers without a claim keep the reserved CPUs, and without pinning they may use all CPUs.
        let squeezed = self.reserved_cpus.is_empty() && self.pinning == Pinning::Nri;
        squeezed.then(|| {
            "containers without a claim share the claimed CPUs there: set spec.driver.cpu.reservedCPUs to keep some CPUs for them"
                .into()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Granularity;

    #[test]
    fn the_plugin_gets_the_configured_arguments_and_mounts_the_socket_directory_only_with_pinning() {
        let plugin = NodePluginSettings::default();
        let default = CpuSettings::default();
        assert_eq!(default.arguments(), ["cpu", "--granularity=Core", "--pinning=NRI"]);
        let paths: Vec<_> = default.host_paths(&plugin).into_iter().map(|one| (one.name, one.path)).collect();
        assert_eq!(paths, [("nri", "/var/run/nri".to_owned())]);

        let set = CpuSettings {
            granularity: Granularity::Thread,
            reserved_cpus: "0-1,8".parse().unwrap(),
            pinning: Pinning::None,
        };
        assert_eq!(set.arguments(), ["cpu", "--granularity=Thread", "--pinning=None", "--reserved-cpus=0-1,8"]);
        assert_eq!(set.host_paths(&plugin), []);
    }

    #[test]
    fn claims_that_hold_every_cpu_affect_others_only_with_pinning_and_no_reserved_cpus() {
        let default = CpuSettings::default();
        assert!(default.when_all_held().is_some_and(|words| words.contains("reservedCPUs")));
        let reserved = CpuSettings { reserved_cpus: "0".parse().unwrap(), ..default.clone() };
        assert_eq!(reserved.when_all_held(), None);
        assert_eq!(CpuSettings { pinning: Pinning::None, ..default }.when_all_held(), None);
    }
}
