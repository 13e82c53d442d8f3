//! The servers of the demo. Pure.

use super::{Machine, Processor};

/// Kinds of server, and how many of each the demo has.
pub const KINDS: [(&str, u32); 5] =
    [("xeon5-64c-512g", 2), ("xeon4-32c-256g", 2), ("xeon-small", 1), ("epyc", 1), ("arm", 2)];

const XEON_FLAGS: &str = "fpu vme de pse tsc msr pae mce cx8 apic sep mtrr pge mca cmov pat clflush acpi mmx fxsr sse sse2 ss \
     ht tm pbe syscall nx pdpe1gb rdtscp lm constant_tsc pni ssse3 fma sse4_1 sse4_2 x2apic popcnt aes xsave avx f16c \
     rdrand avx2 bmi2 avx512f avx512dq avx512cd avx512bw avx512vl avx512_vnni avx512_bitalg";

/// A server by its kind.
pub fn server(kind: &str) -> Option<Machine> {
    Some(match kind {
        "xeon5-64c-512g" => Machine {
            sockets: 2,
            cores_per_socket: 32,
            threads_per_core: 2,
            cores_per_l3: 32,
            memory_gb: 512,
            base_mhz: 2500,
            processor: intel(207, 2, "INTEL(R) XEON(R) GOLD 6548Y+", true),
            hostname: "xeon5",
            ..Machine::default()
        },
        "xeon4-32c-256g" => Machine {
            sockets: 2,
            cores_per_socket: 16,
            threads_per_core: 2,
            cores_per_l3: 16,
            memory_gb: 256,
            base_mhz: 2500,
            processor: intel(143, 8, "Intel(R) Xeon(R) Gold 6426Y", true),
            hostname: "xeon4",
            ..Machine::default()
        },
        "xeon-small" => Machine {
            cores_per_socket: 8,
            threads_per_core: 2,
            cores_per_l3: 8,
            memory_gb: 64,
            base_mhz: 2800,
            processor: intel(106, 6, "Intel(R) Xeon(R) Silver 4309Y CPU @ 2.80GHz", false),
            hostname: "xeon-small",
            ..Machine::default()
        },
        "epyc" => Machine {
            cores_per_socket: 32,
            threads_per_core: 2,
            cores_per_l3: 4,
            memory_gb: 384,
            base_mhz: 3250,
            processor: Processor::X86 {
                vendor: "AuthenticAMD",
                family: 25,
                model: 17,
                stepping: 1,
                name: "AMD EPYC 9354P 32-Core Processor",
                flags: "fpu vme de pse tsc msr pae mce cx8 apic sep mtrr pge mca cmov pat clflush mmx fxsr sse sse2 ht \
                        syscall nx mmxext fxsr_opt pdpe1gb rdtscp lm constant_tsc pni ssse3 fma sse4_1 sse4_2 x2apic popcnt \
                        aes xsave avx f16c rdrand avx2 bmi2 avx512f avx512dq avx512cd avx512bw avx512vl avx512_vnni",
            },
            hostname: "epyc",
            ..Machine::default()
        },
        "arm" => Machine {
            cores_per_socket: 80,
            cores_per_l3: 0,
            memory_gb: 256,
            base_mhz: 3000,
            turbo: None,
            processor: Processor::Arm {
                implementer: 0x41,
                part: 0xd0c,
                features: "fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop asimddp",
            },
            hostname: "arm",
            ..Machine::default()
        },
        _ => return None,
    })
}

/// A Xeon; Sapphire Rapids and later have AMX.
fn intel(model: u32, stepping: u32, name: &'static str, amx: bool) -> Processor {
    const WITH_AMX: &str = "fpu vme de pse tsc msr pae mce cx8 apic sep mtrr pge mca cmov pat clflush acpi mmx fxsr sse sse2 \
         ss ht tm pbe syscall nx pdpe1gb rdtscp lm constant_tsc pni ssse3 fma sse4_1 sse4_2 x2apic popcnt aes xsave avx f16c \
         rdrand avx2 bmi2 avx512f avx512dq avx512cd avx512bw avx512vl avx512_vnni avx512_bf16 amx_bf16 amx_tile amx_int8";
    Processor::X86 {
        vendor: "GenuineIntel",
        family: 6,
        model,
        stepping,
        name,
        flags: if amx { WITH_AMX } else { XEON_FLAGS },
    }
}
