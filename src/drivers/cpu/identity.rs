//! The vendor, family and generation of a processor. Pure.
//!
//! Facts that `/proc/cpuinfo` does not contain are left out, such as a cloud's own name for an Arm server (Graviton).

use crate::host::cpuinfo::{Architecture, ArmPart, CpuInfo};

use super::arm;

/// The identity of a processor. Unknown values are `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Identity {
    pub(super) vendor: Option<String>,
    /// The product line: Xeon, EPYC, Neoverse.
    pub(super) family: Option<&'static str>,
    /// Its generation, as the vendor counts it.
    pub(super) generation: Option<i64>,
    pub(super) model: Option<String>,
    /// The vendor's domain, under which these attributes are also published.
    pub(super) domain: Option<&'static str>,
}

/// Identifies the processor of a CPU. On Arm, cores may differ.
pub(super) fn identify(info: &CpuInfo, part: Option<ArmPart>) -> Identity {
    if info.architecture.is_some_and(Architecture::is_arm) {
        return arm(part);
    }
    let model = info.model_name.as_deref().map(plain).filter(|model| !model.is_empty());
    let name = model.as_deref().unwrap_or_default();
    let (vendor, family, generation, domain) = match info.vendor_id.as_deref() {
        Some("GenuineIntel") => {
            (Some("Intel"), intel_family(name, info), intel_generation(name, info), Some("cpu.intel.com"))
        }
        Some("AuthenticAMD") => (Some("AMD"), amd_family(name), amd_generation(name, info), Some("cpu.amd.com")),
        Some("HygonGenuine") => (Some("Hygon"), None, None, None),
        Some("CentaurHauls" | "  Shanghai  " | "Shanghai") => (Some("Zhaoxin"), None, None, None),
        Some("IBM/S390") => (Some("IBM"), None, None, None),
        Some("Loongson") => (Some("Loongson"), None, None, None),
        other => match info.architecture {
            Some(Architecture::Ppc64le | Architecture::Ppc64) if name.starts_with("POWER") => {
                (Some("IBM"), Some("POWER"), power_generation(name), None)
            }
            _ => (other, None, None, None),
        },
    };
    let vendor = vendor.map(plain).filter(|vendor| !vendor.is_empty());
    Identity { vendor, family, generation, model, domain }
}

fn arm(part: Option<ArmPart>) -> Identity {
    let core = part.and_then(arm::identify);
    let known = core.and_then(|core| core.known);
    Identity {
        vendor: core.map(|core| core.vendor.to_owned()),
        family: known.map(|known| known.family),
        generation: known.and_then(|known| known.generation),
        model: known.map(|known| known.model.to_owned()),
        // Arm is the vendor of the architecture, not necessarily of the chip.
        domain: Some("cpu.arm.com"),
    }
}

/// The text with single spaces and without unprintable characters.
fn plain(text: &str) -> String {
    let printable: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    printable.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Whether a model's name contains a word, ignoring case: later Xeons are in capitals (`INTEL(R) XEON(R) PLATINUM 8592+`).
fn says(name: &str, word: &str) -> bool {
    name.to_ascii_lowercase().contains(&word.to_ascii_lowercase())
}

fn intel_family(name: &str, info: &CpuInfo) -> Option<&'static str> {
    if info.architecture == Some(Architecture::Ia64) {
        return Some("Itanium");
    }
    ["Xeon", "Atom", "Celeron", "Pentium", "Core"].into_iter().find(|family| says(name, family))
}

/// The generation of Xeon Scalable and Xeon 6 by family, model and stepping, and of Core by its name.
///
/// Sources: the kernel's arch/x86/include/asm/intel-family.h for the code names, Intel's product pages for the
/// generations. Skylake, Cascade Lake and Cooper Lake share a model and differ in stepping.
fn intel_generation(name: &str, info: &CpuInfo) -> Option<i64> {
    if !says(name, "Xeon") {
        let (number, rest) = name.split_once(' ')?;
        let digits = number.trim_end_matches(|c: char| c.is_ascii_lowercase());
        return if rest.starts_with("Gen ") { digits.parse().ok() } else { None };
    }
    match (info.family?, info.model?, info.stepping) {
        (6, 85, Some(0..=4)) => Some(1),
        (6, 85, Some(5..=7)) => Some(2),
        (6, 85, Some(10..=11)) | (6, 106 | 108, _) => Some(3),
        (6, 143, _) => Some(4),
        (6, 207, _) => Some(5),
        (6, 173..=175, _) => Some(6),
        _ => None,
    }
}

fn amd_family(name: &str) -> Option<&'static str> {
    ["EPYC", "Threadripper", "Ryzen", "Opteron", "Athlon"].into_iter().find(|family| says(name, family))
}

/// The generation of EPYC, by family and model.
///
/// Sources: the kernel's arch/x86/kernel/cpu/amd.c for the Zen version of each model, AMD's product pages for the
/// generations: Naples 1, Rome 2, Milan 3, Genoa, Bergamo and Siena 4, Turin 5.
fn amd_generation(name: &str, info: &CpuInfo) -> Option<i64> {
    if !says(name, "EPYC") {
        return None;
    }
    match (info.family?, info.model?) {
        (0x17, 0x00..=0x0f) => Some(1),
        (0x17, 0x30..=0x3f) => Some(2),
        (0x19, 0x00..=0x0f) => Some(3),
        // 0x60 to 0x6f is the desktop die, sold as EPYC 4004.
        (0x19, 0x10..=0x1f | 0x60..=0x6f | 0xa0..=0xaf) => Some(4),
        // 0x40 to 0x4f likewise, as EPYC 4005.
        (0x1a, 0x00..=0x1f | 0x40..=0x4f) => Some(5),
        _ => None,
    }
}

fn power_generation(name: &str) -> Option<i64> {
    let number = name.strip_prefix("POWER")?;
    number.get(..number.find(|c: char| !c.is_ascii_digit()).unwrap_or(number.len()))?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn x86(vendor: &str, name: &str, family: u32, model: u32, stepping: u32) -> Identity {
        let info = CpuInfo {
            architecture: Some(Architecture::Amd64),
            vendor_id: Some(vendor.into()),
            family: Some(family),
            model: Some(model),
            stepping: Some(stepping),
            model_name: Some(name.into()),
            ..CpuInfo::default()
        };
        identify(&info, None)
    }

    #[rstest]
    #[case("Intel(R) Xeon(R) Platinum 8180 CPU @ 2.50GHz", 85, 4, Some("Xeon"), Some(1))]
    #[case("Intel(R) Xeon(R) Gold 6230 CPU @ 2.10GHz", 85, 7, Some("Xeon"), Some(2))]
    #[case("Intel(R) Xeon(R) Platinum 8380H CPU @ 2.90GHz", 85, 11, Some("Xeon"), Some(3))]
    #[case("Intel(R) Xeon(R) Platinum 8380 CPU @ 2.30GHz", 106, 6, Some("Xeon"), Some(3))]
    #[case("Intel(R) Xeon(R) Platinum 8480+", 143, 8, Some("Xeon"), Some(4))]
    #[case("INTEL(R) XEON(R) PLATINUM 8592+", 207, 2, Some("Xeon"), Some(5))]
    #[case("Intel(R) Xeon(R) 6980P", 173, 1, Some("Xeon"), Some(6))]
    #[case("Intel(R) Xeon(R) 6780E", 175, 3, Some("Xeon"), Some(6))]
    #[case("Intel(R) Xeon(R) CPU E5-2680 0 @ 2.70GHz", 45, 7, Some("Xeon"), None)]
    #[case("Intel(R) Core(TM) i9-7900X CPU @ 3.30GHz", 85, 4, Some("Core"), None)]
    #[case("13th Gen Intel(R) Core(TM) i7-1370P", 186, 2, Some("Core"), Some(13))]
    #[case("Genuine Intel(R) CPU @ 2.66GHz", 29, 1, None, None)]
    #[case("", 207, 2, None, None)]
    fn intel(
        #[case] name: &str,
        #[case] model: u32,
        #[case] stepping: u32,
        #[case] family: Option<&str>,
        #[case] generation: Option<i64>,
    ) {
        let identity = x86("GenuineIntel", name, 6, model, stepping);
        assert_eq!((identity.family, identity.generation), (family, generation));
        assert_eq!((identity.vendor.as_deref(), identity.domain), (Some("Intel"), Some("cpu.intel.com")));
    }

    #[rstest]
    #[case("AMD EPYC 7451 24-Core Processor", 23, 1, Some("EPYC"), Some(1))]
    #[case("AMD EPYC 7742 64-Core Processor", 23, 49, Some("EPYC"), Some(2))]
    #[case("AMD EPYC 7763 64-Core Processor", 25, 1, Some("EPYC"), Some(3))]
    #[case("AMD EPYC 9654 96-Core Processor", 25, 17, Some("EPYC"), Some(4))]
    #[case("AMD EPYC 9754 128-Core Processor", 25, 160, Some("EPYC"), Some(4))]
    #[case("AMD EPYC 9755 128-Core Processor", 26, 2, Some("EPYC"), Some(5))]
    #[case("AMD EPYC 9965 192-Core Processor", 26, 17, Some("EPYC"), Some(5))]
    #[case("AMD Ryzen 9 7950X 16-Core Processor", 25, 97, Some("Ryzen"), None)]
    #[case("AMD Opteron(TM) Processor 6276                 ", 21, 1, Some("Opteron"), None)]
    fn amd(
        #[case] name: &str,
        #[case] cpu_family: u32,
        #[case] model: u32,
        #[case] family: Option<&str>,
        #[case] generation: Option<i64>,
    ) {
        let identity = x86("AuthenticAMD", name, cpu_family, model, 0);
        assert_eq!((identity.family, identity.generation), (family, generation));
        assert_eq!((identity.vendor.as_deref(), identity.domain), (Some("AMD"), Some("cpu.amd.com")));
        assert_eq!(identity.model.as_deref(), Some(name.trim()));
    }

    #[rstest]
    #[case(0x41, 0xd0c, "Arm", Some("Neoverse-N1"), Some("Neoverse"), Some(1))]
    #[case(0x41, 0xd4f, "Arm", Some("Neoverse-V2"), Some("Neoverse"), Some(2))]
    #[case(0x41, 0xd4e, "Arm", Some("Cortex-X3"), Some("Cortex"), None)]
    #[case(0xc0, 0xac4, "Ampere", Some("Ampere-1a"), Some("AmpereOne"), None)]
    #[case(0x41, 0xfff, "Arm", None, None, None)]
    fn arm_cores_are_known_by_implementer_and_part(
        #[case] implementer: u32,
        #[case] part: u32,
        #[case] vendor: &str,
        #[case] model: Option<&str>,
        #[case] family: Option<&str>,
        #[case] generation: Option<i64>,
    ) {
        let info = CpuInfo { architecture: Some(Architecture::Arm64), ..CpuInfo::default() };
        let identity = identify(&info, Some(ArmPart { implementer, part }));
        assert_eq!(identity.vendor.as_deref(), Some(vendor));
        assert_eq!(identity.model.as_deref(), model);
        assert_eq!((identity.family, identity.generation), (family, generation));
        assert_eq!(identity.domain, Some("cpu.arm.com"));
    }
}
