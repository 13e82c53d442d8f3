//! Reads the processor's base frequency, and whether it may run faster. IO: sysfs.

use super::{file::Files, machine::Machine};

const CPUS: &str = "sys/devices/system/cpu";

/// Whether turbo is on. Intel's driver reports when it is off, the others when it is on.
pub(super) fn observe_turbo(files: &mut Files<'_>) -> Option<bool> {
    let off = files.number(&format!("{CPUS}/intel_pstate/no_turbo")).map(|off| off == 0);
    off.or_else(|| files.number(&format!("{CPUS}/cpufreq/boost")).map(|on| on != 0))
}

/// Fills in each CPU's base frequency from the first source that has it: `base_frequency` of the CPU; the firmware's
/// nominal frequency (ACPI CPPC, for AMD, read once as it may be slow); the one in the model's name; the fixed clock
/// that POWER and s390 report; the firmware's limit, which is the nominal frequency unless it was lowered; the maximum
/// frequency, if that cannot include turbo.
pub(super) fn observe_base(files: &mut Files<'_>, machine: &mut Machine) {
    let x86 = machine.processor.architecture.is_some_and(super::cpuinfo::Architecture::is_x86);
    let named = machine.processor.model_name.as_deref().and_then(from_model_name).or(machine.processor.clock_mhz);
    let mut of_all: Option<Option<u32>> = None;
    for (number, cpu) in &mut machine.cpus {
        let directory = format!("{CPUS}/cpu{number}");
        let mut mhz = |name: &str, units_per_mhz: u32| {
            files
                .number(&format!("{directory}/{name}"))
                .map(|frequency| frequency / units_per_mhz)
                .filter(|&mhz| mhz > 0)
        };
        cpu.base_mhz = mhz("cpufreq/base_frequency", 1000).or_else(|| {
            if x86 {
                *of_all.get_or_insert_with(|| {
                    mhz("acpi_cppc/nominal_freq", 1).or(named).or_else(|| mhz("cpufreq/bios_limit", 1000))
                })
            } else {
                named.or_else(|| mhz("cpufreq/cpuinfo_max_freq", 1000))
            }
        });
    }
}

/// `Intel(R) Xeon(R) Gold 6230 CPU @ 2.10GHz` → 2100.
fn from_model_name(name: &str) -> Option<u32> {
    let (number, thousands) = match name.rsplit_once(' ')?.1 {
        last if last.ends_with("GHz") => (last.trim_end_matches("GHz"), true),
        last => (last.strip_suffix("MHz")?, false),
    };
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    let whole: u32 = whole.parse().ok()?;
    if !thousands {
        return Some(whole);
    }
    let part: u32 = format!("{part:0<3}").get(..3)?.parse().ok()?;
    whole.checked_mul(1000)?.checked_add(part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn on_intel_the_model_name_contains_the_base_frequency() {
        for (name, mhz) in [
            ("Intel(R) Xeon(R) Gold 6230 CPU @ 2.10GHz", Some(2100)),
            ("Intel(R) Core(TM) i5 CPU       M 560  @ 2.67GHz", Some(2670)),
            ("Intel(R) Xeon(TM) CPU 3.00GHz", Some(3000)),
            ("Pentium III 700MHz", Some(700)),
            ("AMD EPYC 7451 24-Core Processor", None),
            ("x 99999999999GHz", None),
            ("x 9999999GHz", None),
            ("x .é9GHz", None),
        ] {
            assert_eq!(from_model_name(name), mhz, "{name}");
        }
    }
}
