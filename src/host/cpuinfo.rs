//! Parses `/proc/cpuinfo`, whose format differs between architectures. Pure: lines in, facts out.
//!
//! x86, Arm (old and new), POWER, s390, RISC-V, LoongArch, SPARC and Itanium are recognised by keys that only they
//! write.

use std::collections::BTreeMap;

/// An instruction set architecture, by the name that Kubernetes and Go give it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are the documentation")]
pub enum Architecture {
    Amd64,
    I386,
    Arm64,
    Arm,
    Ppc64le,
    Ppc64,
    Ppc,
    S390x,
    Riscv64,
    Riscv32,
    Loong64,
    Sparc64,
    Ia64,
}

impl Architecture {
    /// As in the node label `kubernetes.io/arch`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Amd64 => "amd64",
            Self::I386 => "386",
            Self::Arm64 => "arm64",
            Self::Arm => "arm",
            Self::Ppc64le => "ppc64le",
            Self::Ppc64 => "ppc64",
            Self::Ppc => "ppc",
            Self::S390x => "s390x",
            Self::Riscv64 => "riscv64",
            Self::Riscv32 => "riscv32",
            Self::Loong64 => "loong64",
            Self::Sparc64 => "sparc64",
            Self::Ia64 => "ia64",
        }
    }

    /// Whether this is x86, 32 or 64 bits.
    pub fn is_x86(self) -> bool {
        matches!(self, Self::Amd64 | Self::I386)
    }

    /// Whether this is Arm, 32 or 64 bits.
    pub fn is_arm(self) -> bool {
        matches!(self, Self::Arm64 | Self::Arm)
    }
}

/// The designer and model of an Arm core: fields of its main ID register.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ArmPart {
    /// `CPU implementer`.
    pub implementer: u32,
    /// `CPU part`.
    pub part: u32,
}

/// What `/proc/cpuinfo` says about the processors, or about the first where all are the same.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuInfo {
    /// The architecture, recognised by the file's format.
    pub architecture: Option<Architecture>,
    /// `vendor_id`, such as `GenuineIntel`.
    pub vendor_id: Option<String>,
    /// `cpu family`.
    pub family: Option<u32>,
    /// `model`.
    pub model: Option<u32>,
    /// `stepping`.
    pub stepping: Option<u32>,
    /// `model name`, or the closest equivalent.
    pub model_name: Option<String>,
    /// The fixed clock that POWER and s390 report, in MHz.
    pub clock_mhz: Option<u32>,
    /// Instruction set extensions, separated by spaces.
    pub flags: String,
    /// The Arm core of each CPU.
    pub arm_parts: BTreeMap<u32, ArmPart>,
    /// The Arm core of all other CPUs: old kernels name one for all.
    pub any_arm_part: Option<ArmPart>,
}

impl CpuInfo {
    /// Whether the processor has `flag`.
    pub fn has(&self, flag: &str) -> bool {
        self.flags.split_ascii_whitespace().any(|has| has == flag)
    }

    /// Whether the file lists instruction set extensions at all.
    pub fn tells_flags(&self) -> bool {
        !self.flags.is_empty()
    }

    /// The Arm core of a CPU.
    pub fn arm_part(&self, cpu: u32) -> Option<ArmPart> {
        self.arm_parts.get(&cpu).copied().or(self.any_arm_part)
    }
}

/// Reads the file line by line.
#[derive(Debug, Default)]
pub(super) struct Parser {
    info: CpuInfo,
    processor: Option<u32>,
    implementer: Option<u32>,
    lm: bool,
    power: Option<String>,
}

impl Parser {
    /// Parses one line. Returns false once nothing more can be learned (x86 repeats the same long block for every CPU).
    pub(super) fn line(&mut self, line: &str) -> bool {
        let Some((key, value)) = line.split_once(':') else {
            self.processor = None;
            return !(self.info.vendor_id.is_some() && self.info.tells_flags() && self.info.family.is_some());
        };
        let (key, value) = (key.trim().to_ascii_lowercase(), value.trim());
        let info = &mut self.info;
        match key.as_str() {
            "processor" => self.processor = value.parse().ok(),
            "vendor_id" | "vendor" => first(&mut info.vendor_id, value),
            "cpu family" | "family" if info.family.is_none() => {
                info.family = value.parse().ok();
                if value.starts_with("Loongson") {
                    info.vendor_id.get_or_insert_with(|| "Loongson".to_owned());
                }
            }
            "model" if info.model.is_none() => info.model = value.parse().ok(),
            "stepping" if info.stepping.is_none() => info.stepping = value.parse().ok(),
            "model name" | "uarch" => first(&mut info.model_name, value),
            "flags" | "features" | "isa" if info.flags.is_empty() => value.clone_into(&mut info.flags),
            "cpu" => {
                first(&mut info.model_name, value);
                self.power.get_or_insert_with(|| value.to_owned());
            }
            "clock" | "cpu mhz static" if info.clock_mhz.is_none() => info.clock_mhz = leading_number(value),
            "cpu implementer" => self.implementer = hexadecimal(value),
            "cpu part" => {
                if let (Some(implementer), Some(part)) = (self.implementer, hexadecimal(value)) {
                    let part = ArmPart { implementer, part };
                    info.any_arm_part.get_or_insert(part);
                    self.processor.map(|cpu| info.arm_parts.insert(cpu, part));
                }
            }
            // s390 writes a line per processor with the machine type: 3906 is a z14.
            _ if key.starts_with("processor ") => {
                if let Some((_, machine)) = value.split_once("machine = ") {
                    first(&mut info.model_name, machine);
                }
            }
            _ => {}
        }
        if let Some(architecture) = self.architecture_of(&key, value) {
            self.info.architecture.get_or_insert(architecture);
        }
        true
    }

    /// What was read from the file.
    pub(super) fn finish(mut self) -> CpuInfo {
        if self.info.architecture == Some(Architecture::I386) && self.lm {
            self.info.architecture = Some(Architecture::Amd64);
        }
        self.info
    }

    /// The architecture that `key` identifies.
    fn architecture_of(&mut self, key: &str, value: &str) -> Option<Architecture> {
        match key {
            // Long mode is a flag. Until the flags are read, it may be 32 or 64 bits.
            "cpuid level" | "fpu_exception" => Some(Architecture::I386),
            "flags" => {
                self.lm = value.split_ascii_whitespace().any(|flag| flag == "lm");
                Some(Architecture::I386)
            }
            "arch" if value == "IA-64" => Some(Architecture::Ia64),
            // The 64-bit kernel calls its vector unit asimd, the 32-bit one neon.
            "features" if value.split_ascii_whitespace().any(|flag| flag == "asimd") => Some(Architecture::Arm64),
            "cpu architecture" => Some(Architecture::Arm),
            "vendor_id" if value.starts_with("IBM/S390") => Some(Architecture::S390x),
            "revision" if value.contains("(pvr ") => self.power.as_deref().map(power),
            "isa" if value.starts_with("rv64") => Some(Architecture::Riscv64),
            "isa" if value.starts_with("rv32") => Some(Architecture::Riscv32),
            "isa" if value.contains("loongarch64") => Some(Architecture::Loong64),
            "cpu family" if value == "Loongson-64bit" => Some(Architecture::Loong64),
            "type" if value == "sun4u" || value == "sun4v" => Some(Architecture::Sparc64),
            _ => None,
        }
    }
}

/// The width and byte order of a POWER chip; Kubernetes runs on POWER8 and later, little-endian.
fn power(cpu: &str) -> Architecture {
    match cpu.strip_prefix("POWER").and_then(leading_number) {
        Some(8..) => Architecture::Ppc64le,
        Some(_) => Architecture::Ppc64,
        None if cpu.starts_with("Cell") || cpu.starts_with("PPC970") => Architecture::Ppc64,
        None => Architecture::Ppc,
    }
}

/// Sets a value that is still unknown, if the text is meaningful.
fn first(known: &mut Option<String>, value: &str) {
    if known.is_none() && !value.is_empty() {
        *known = Some(value.to_owned());
    }
}

fn leading_number(text: &str) -> Option<u32> {
    let end = text.find(|character: char| !character.is_ascii_digit()).unwrap_or(text.len());
    text.get(..end)?.parse().ok()
}

fn hexadecimal(text: &str) -> Option<u32> {
    u32::from_str_radix(text.strip_prefix("0x")?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn read(text: &str) -> CpuInfo {
        let mut parser = Parser::default();
        let _ = text.lines().all(|line| parser.line(line));
        parser.finish()
    }

    #[rstest]
    #[case("vendor_id\t: GenuineIntel\ncpuid level\t: 5\nflags\t\t: fpu lm", "amd64")]
    #[case("vendor_id\t: GenuineIntel\nflags\t\t: fpu pae", "386")]
    #[case("processor\t: 0\nFeatures\t: fp asimd sve\nCPU architecture: 8", "arm64")]
    #[case("Features\t: swp half neon\nCPU architecture: 7", "arm")]
    #[case("vendor_id       : IBM/S390\nfeatures\t: esan3 zarch", "s390x")]
    #[case("cpu\t\t: POWER9, altivec supported\nclock\t: 3800.000000MHz\nrevision\t: 2.2 (pvr 004e 1202)", "ppc64le")]
    #[case("cpu\t\t: POWER7 (architected)\nrevision\t: 2.1 (pvr 003f 0201)", "ppc64")]
    #[case("cpu\t\t: 740/750\nrevision\t: 3.1 (pvr 0008 0301)", "ppc")]
    #[case("hart\t: 0\nisa\t\t: rv64imafdc", "riscv64")]
    #[case("CPU Family\t\t: Loongson-64bit\nISA\t\t\t: loongarch32r loongarch64", "loong64")]
    #[case("cpu\t\t: TI UltraSparc II\ntype\t\t: sun4u", "sparc64")]
    #[case("vendor     : GenuineIntel\narch       : IA-64\nfamily     : 32", "ia64")]
    fn the_architecture_is_recognised_by_the_format(#[case] text: &str, #[case] name: &str) {
        assert_eq!(read(text).architecture.map(Architecture::name), Some(name));
    }

    #[test]
    fn x86_is_read_no_further_than_its_first_processor() {
        let first = "processor : 0\nvendor_id : GenuineIntel\ncpu family : 6\nmodel : 207\nmodel name : X\nstepping : 2\n\
                     flags : lm avx512f\n\n";
        let mut parser = Parser::default();
        assert_eq!(first.lines().take_while(|line| parser.line(line)).count(), first.lines().count() - 1);
        let info = parser.finish();
        assert_eq!((info.family, info.model, info.stepping), (Some(6), Some(207), Some(2)));
        assert!(info.has("avx512f") && !info.has("avx512"));
    }

    #[test]
    fn each_arm_cpu_has_its_own_part_and_old_kernels_name_one_for_all() {
        let big_little = "processor : 0\nCPU implementer : 0x41\nCPU part : 0xd46\n\n\
                          processor : 1\nCPU implementer : 0x41\nCPU part : 0xd4e\n";
        let info = read(big_little);
        assert_eq!(info.arm_part(0), Some(ArmPart { implementer: 0x41, part: 0xd46 }));
        assert_eq!(info.arm_part(1), Some(ArmPart { implementer: 0x41, part: 0xd4e }));
        let old = "processor : 0\nBogoMIPS : 1\n\nprocessor : 1\n\nCPU implementer : 0x41\nCPU part : 0xc09\n";
        assert_eq!(read(old).arm_part(1), Some(ArmPart { implementer: 0x41, part: 0xc09 }));
    }

    #[test]
    fn fixed_clocks_are_read_and_the_momentary_one_of_x86_is_not() {
        assert_eq!(read("cpu : POWER7\nclock : 3864.000000MHz").clock_mhz, Some(3864));
        assert_eq!(read("cpu MHz static  : 5000").clock_mhz, Some(5000));
        assert_eq!(read("cpu MHz : 1203.514").clock_mhz, None);
    }
}
