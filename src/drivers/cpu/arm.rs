//! Arm cores by implementer and part, the fields of the main ID register (MIDR). Pure.
//!
//! Sources: Arm's and the implementers' technical reference manuals, and the list in the kernel's
//! arch/arm64/include/asm/cputype.h.

use crate::host::cpuinfo::ArmPart;

/// What an Arm core is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ArmCore {
    /// Who designed it.
    pub(super) vendor: &'static str,
    /// Its model and, for a design of a named product line, the family and generation.
    pub(super) known: Option<Known>,
}

/// A core from the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Known {
    pub(super) model: &'static str,
    pub(super) family: &'static str,
    /// The number in the name of a Neoverse: N2 and V2 are of generation 2.
    pub(super) generation: Option<i64>,
}

const fn core(model: &'static str, family: &'static str) -> Known {
    Known { model, family, generation: None }
}

const fn neoverse(model: &'static str, generation: i64) -> Known {
    Known { model, family: "Neoverse", generation: Some(generation) }
}

/// Looks up a core. `None` for an unknown implementer.
pub(super) fn identify(part: ArmPart) -> Option<ArmCore> {
    let vendor = match part.implementer {
        0x41 => "Arm",
        0x42 => "Broadcom",
        0x43 => "Cavium",
        0x46 => "Fujitsu",
        0x48 => "HiSilicon",
        0x4e => "NVIDIA",
        0x50 => "APM",
        0x51 => "Qualcomm",
        0x53 => "Samsung",
        0x56 => "Marvell",
        0x61 => "Apple",
        0x6d => "Microsoft",
        0x70 => "Phytium",
        0xc0 => "Ampere",
        _ => return None,
    };
    let known = match (part.implementer, part.part) {
        (0x41, part) => of_arm(part),
        (0x43, 0xa1) => Some(core("ThunderX-88XX", "ThunderX")),
        (0x43, 0xaf) | (0x42, 0x516) => Some(core("ThunderX2", "ThunderX")),
        (0x43, 0xb8) => Some(core("ThunderX3", "ThunderX")),
        (0x46, 0x001) => Some(core("A64FX", "A64FX")),
        (0x46, 0x003) => Some(core("Monaka", "Monaka")),
        (0x48, 0xd01) => Some(core("TaiShan-v110", "Kunpeng")),
        (0x48, 0xd02) => Some(core("TaiShan-v120", "Kunpeng")),
        (0x4e, 0x004) => Some(core("Carmel", "Carmel")),
        (0x4e, 0x010) => Some(core("Olympus", "Olympus")),
        (0x6d, 0xd49) => Some(core("Cobalt-100", "Cobalt")),
        (0xc0, 0xac3) => Some(core("Ampere-1", "AmpereOne")),
        (0xc0, 0xac4) => Some(core("Ampere-1a", "AmpereOne")),
        (0xc0, 0xac5) => Some(core("Ampere-1b", "AmpereOne")),
        _ => None,
    };
    Some(ArmCore { vendor, known })
}

fn of_arm(part: u32) -> Option<Known> {
    Some(match part {
        0xc07 => core("Cortex-A7", "Cortex"),
        0xc08 => core("Cortex-A8", "Cortex"),
        0xc09 => core("Cortex-A9", "Cortex"),
        0xc0f => core("Cortex-A15", "Cortex"),
        0xd03 => core("Cortex-A53", "Cortex"),
        0xd04 => core("Cortex-A35", "Cortex"),
        0xd05 => core("Cortex-A55", "Cortex"),
        0xd07 => core("Cortex-A57", "Cortex"),
        0xd08 => core("Cortex-A72", "Cortex"),
        0xd09 => core("Cortex-A73", "Cortex"),
        0xd0a => core("Cortex-A75", "Cortex"),
        0xd0b => core("Cortex-A76", "Cortex"),
        0xd0c => neoverse("Neoverse-N1", 1),
        0xd0d => core("Cortex-A77", "Cortex"),
        0xd40 => neoverse("Neoverse-V1", 1),
        0xd41 => core("Cortex-A78", "Cortex"),
        0xd42 => core("Cortex-A78AE", "Cortex"),
        0xd44 => core("Cortex-X1", "Cortex"),
        0xd46 => core("Cortex-A510", "Cortex"),
        0xd47 => core("Cortex-A710", "Cortex"),
        0xd48 => core("Cortex-X2", "Cortex"),
        0xd49 => neoverse("Neoverse-N2", 2),
        0xd4a => neoverse("Neoverse-E1", 1),
        0xd4b => core("Cortex-A78C", "Cortex"),
        0xd4d => core("Cortex-A715", "Cortex"),
        0xd4e => core("Cortex-X3", "Cortex"),
        0xd4f => neoverse("Neoverse-V2", 2),
        0xd80 => core("Cortex-A520", "Cortex"),
        0xd81 => core("Cortex-A720", "Cortex"),
        0xd82 => core("Cortex-X4", "Cortex"),
        0xd83 => neoverse("Neoverse-V3AE", 3),
        0xd84 => neoverse("Neoverse-V3", 3),
        0xd85 => core("Cortex-X925", "Cortex"),
        0xd87 => core("Cortex-A725", "Cortex"),
        0xd8e => neoverse("Neoverse-N3", 3),
        _ => return None,
    })
}
