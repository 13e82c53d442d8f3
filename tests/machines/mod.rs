//! Describes a machine in a few lines and writes the `/proc` and `/sys` that it would have. IO: writes below a directory.
//!
//! CPUs are numbered as Linux does on x86: the first thread of every core, socket after socket, then the second ones.
//! Needs the standard library only: the demo compiles `make-host` with a bare `rustc`, and the files that the product reads
//! are not written by the product's own code.

#![allow(dead_code, reason = "each test uses a part of it")]

pub mod servers;

use std::{fmt::Write as _, fs, io, path::Path};

/// A machine. All its sockets are alike.
#[derive(Clone, Debug)]
pub struct Machine {
    pub sockets: u32,
    pub cores_per_socket: u32,
    pub threads_per_core: u32,
    pub numa_nodes_per_socket: u32,
    pub dies_per_socket: u32,
    /// Cores that share a level 3 cache; 0: none.
    pub cores_per_l3: u32,
    pub memory_gb: u64,
    pub base_mhz: u32,
    pub turbo: Option<bool>,
    pub processor: Processor,
    /// CPUs that are present but offline.
    pub offline: Vec<u32>,
    pub hostname: &'static str,
}

/// The content of `/proc/cpuinfo`.
#[derive(Clone, Debug)]
pub enum Processor {
    X86 { vendor: &'static str, family: u32, model: u32, stepping: u32, name: &'static str, flags: &'static str },
    Arm { implementer: u32, part: u32, features: &'static str },
}

/// A plain server: one socket, four cores without SMT, a NUMA node, 16 GB.
impl Default for Machine {
    fn default() -> Self {
        Self {
            sockets: 1,
            cores_per_socket: 4,
            threads_per_core: 1,
            numa_nodes_per_socket: 1,
            dies_per_socket: 1,
            cores_per_l3: 4,
            memory_gb: 16,
            base_mhz: 2000,
            turbo: Some(true),
            processor: Processor::X86 {
                vendor: "GenuineIntel",
                family: 6,
                model: 106,
                stepping: 6,
                name: "Intel(R) Xeon(R) Silver 4309Y CPU @ 2.80GHz",
                flags: "fpu sse sse2 ht lm avx avx2 avx512f avx512_vnni",
            },
            offline: Vec::new(),
            hostname: "testbed",
        }
    }
}

/// Where one CPU is.
#[derive(Clone, Copy)]
struct Place {
    socket: u32,
    core: u32,
    thread: u32,
}

impl Machine {
    /// How many CPUs are present.
    pub fn cpus(&self) -> u32 {
        self.cores() * self.threads_per_core
    }

    /// How many cores are present.
    pub fn cores(&self) -> u32 {
        self.sockets * self.cores_per_socket
    }

    /// The CPUs that are online.
    pub fn online(&self) -> Vec<u32> {
        (0..self.cpus()).filter(|cpu| !self.offline.contains(cpu)).collect()
    }

    fn place(&self, cpu: u32) -> Place {
        let (thread, core) = (cpu / self.cores(), cpu % self.cores());
        Place { socket: core / self.cores_per_socket, core: core % self.cores_per_socket, thread }
    }

    fn numa_node(&self, cpu: u32) -> u32 {
        let Place { socket, core, .. } = self.place(cpu);
        socket * self.numa_nodes_per_socket + core * self.numa_nodes_per_socket / self.cores_per_socket
    }

    /// The online threads of a CPU's core.
    fn siblings(&self, cpu: u32) -> Vec<u32> {
        let core = cpu % self.cores();
        self.online().into_iter().filter(|other| other % self.cores() == core).collect()
    }

    /// Writes `proc` and `sys` below `root`.
    pub fn write(&self, root: &Path) -> io::Result<()> {
        let cpus = self.cpus();
        let online = list(&self.online());
        put(root, "proc/cpuinfo", &self.cpuinfo())?;
        put(root, "proc/meminfo", &format!("MemTotal:       {} kB\nMemFree:        1024 kB\n", self.kib(1)))?;
        put(root, "proc/stat", &self.stat())?;
        put(root, "proc/sys/kernel/hostname", self.hostname)?;
        let directory = "sys/devices/system/cpu";
        let all = list(&(0..cpus).collect::<Vec<_>>());
        for (name, text) in [("possible", &all), ("present", &all), ("online", &online)] {
            put(root, &format!("{directory}/{name}"), text)?;
        }
        put(root, &format!("{directory}/smt/active"), if self.threads_per_core > 1 { "1" } else { "0" })?;
        if let Some(turbo) = self.turbo {
            match self.processor {
                Processor::X86 { vendor: "GenuineIntel", .. } => {
                    put(root, &format!("{directory}/intel_pstate/no_turbo"), if turbo { "0" } else { "1" })?;
                }
                _ => put(root, &format!("{directory}/cpufreq/boost"), if turbo { "1" } else { "0" })?,
            }
        }
        for cpu in 0..cpus {
            self.write_cpu(root, cpu)?;
        }
        self.write_nodes(root)
    }

    fn write_cpu(&self, root: &Path, cpu: u32) -> io::Result<()> {
        let directory = format!("sys/devices/system/cpu/cpu{cpu}");
        let online = !self.offline.contains(&cpu);
        // CPU 0 cannot go offline on x86, and has no such file.
        if cpu > 0 {
            put(root, &format!("{directory}/online"), if online { "1" } else { "0" })?;
        }
        if !online {
            return Ok(());
        }
        let Place { socket, core, .. } = self.place(cpu);
        let die = core * self.dies_per_socket / self.cores_per_socket;
        let core_in_unit =
            if self.dies_per_socket > 1 { core % (self.cores_per_socket / self.dies_per_socket) } else { core };
        let siblings = list(&self.siblings(cpu));
        for (name, text) in [
            ("physical_package_id", socket.to_string()),
            ("die_id", die.to_string()),
            ("core_id", core_in_unit.to_string()),
            ("core_cpus_list", siblings.clone()),
            ("thread_siblings_list", siblings),
        ] {
            put(root, &format!("{directory}/topology/{name}"), &text)?;
        }
        if let Some(id) = (cpu % self.cores()).checked_div(self.cores_per_l3) {
            put(root, &format!("{directory}/cache/index3/level"), "3")?;
            put(root, &format!("{directory}/cache/index3/id"), &id.to_string())?;
        }
        match self.processor {
            Processor::X86 { vendor: "GenuineIntel", .. } => {
                put(root, &format!("{directory}/cpufreq/base_frequency"), &(self.base_mhz * 1000).to_string())
            }
            Processor::X86 { .. } => {
                put(root, &format!("{directory}/acpi_cppc/nominal_freq"), &self.base_mhz.to_string())
            }
            Processor::Arm { .. } => {
                put(root, &format!("{directory}/cpufreq/cpuinfo_max_freq"), &(self.base_mhz * 1000).to_string())?;
                put(root, &format!("{directory}/cpu_capacity"), "1024")
            }
        }
    }

    fn write_nodes(&self, root: &Path) -> io::Result<()> {
        let nodes = self.sockets * self.numa_nodes_per_socket;
        let directory = "sys/devices/system/node";
        let all = list(&(0..nodes).collect::<Vec<_>>());
        for name in ["online", "possible", "has_cpu", "has_memory", "has_normal_memory"] {
            put(root, &format!("{directory}/{name}"), &all)?;
        }
        for node in 0..nodes {
            let cpus: Vec<u32> = self.online().into_iter().filter(|&cpu| self.numa_node(cpu) == node).collect();
            put(root, &format!("{directory}/node{node}/cpulist"), &list(&cpus))?;
            let kib = self.kib(u64::from(nodes));
            put(root, &format!("{directory}/node{node}/meminfo"), &format!("Node {node} MemTotal:       {kib} kB\n"))?;
        }
        Ok(())
    }

    /// How much of one of `parts` of the memory the kernel manages: page structures and firmware take 1.7 %.
    fn kib(&self, parts: u64) -> u64 {
        self.memory_gb * 1024 * 1024 / parts / 1000 * 983
    }

    fn cpuinfo(&self) -> String {
        let mut text = String::new();
        for cpu in self.online() {
            let Place { socket, core, .. } = self.place(cpu);
            // Writing to a String cannot fail.
            let _ = match self.processor {
                Processor::X86 { vendor, family, model, stepping, name, flags } => write!(
                    text,
                    "processor\t: {cpu}\nvendor_id\t: {vendor}\ncpu family\t: {family}\nmodel\t\t: {model}\n\
                     model name\t: {name}\nstepping\t: {stepping}\ncpu MHz\t\t: 801.122\nphysical id\t: {socket}\n\
                     core id\t\t: {core}\ncpu cores\t: {}\nfpu\t\t: yes\ncpuid level\t: 32\nflags\t\t: {flags}\n\n",
                    self.cores_per_socket
                ),
                Processor::Arm { implementer, part, features } => write!(
                    text,
                    "processor\t: {cpu}\nBogoMIPS\t: 50.00\nFeatures\t: {features}\nCPU implementer\t: {implementer:#x}\n\
                     CPU architecture: 8\nCPU variant\t: 0x3\nCPU part\t: {part:#x}\nCPU revision\t: 1\n\n"
                ),
            };
        }
        text
    }

    fn stat(&self) -> String {
        let mut text = "cpu  10 0 10 10 0 0 0 0 0 0\n".to_owned();
        for cpu in self.online() {
            let _ = writeln!(text, "cpu{cpu} 1 0 1 1 0 0 0 0 0 0");
        }
        text + "intr 0\nbtime 1700000000\n"
    }
}

/// Writes a file with a trailing newline, and creates its parent directories.
pub fn put(root: &Path, file: &str, text: &str) -> io::Result<()> {
    let path = root.join(file);
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory)?;
    }
    fs::write(path, format!("{}\n", text.trim_end()))
}

/// Ascending numbers in the kernel's list format: `0-3,8`.
pub fn list(numbers: &[u32]) -> String {
    let runs = numbers.chunk_by(|one, next| one + 1 == *next);
    let text = |run: &[u32]| match run {
        [] => String::new(),
        [only] => only.to_string(),
        [first, .., last] => format!("{first}-{last}"),
    };
    runs.map(text).collect::<Vec<_>>().join(",")
}
