//! The only access to the machine: sysfs and procfs under a root. IO.
//!
//! Reading never fails: each file that cannot be read results in a warning that names it. Only the files needed are
//! opened, each once, and none is kept open.

pub mod cpuinfo;
mod file;
mod frequency;
pub mod machine;
mod memory;
mod numa;
mod topology;
mod warnings;

use std::path::{Path, PathBuf};

use self::{file::Files, machine::Machine};
use crate::cpuset::CpuSet;

/// A machine whose `/proc` and `/sys` are below a directory: `/` for this machine, or the directory of a recorded one.
#[derive(Clone, Debug)]
pub struct Host {
    root: PathBuf,
}

impl Host {
    /// The host whose `proc` and `sys` are below `root`.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// The root directory.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The machine's own host name.
    pub fn observe_name(&self) -> Option<String> {
        let name = Files::below(&self.root).value("proc/sys/kernel/hostname", |name| Ok(name.to_ascii_lowercase()));
        name.filter(|name| name != "(none)")
    }

    /// The CPUs that are online now. `None` if that cannot be read.
    pub fn observe_online(&self) -> Option<CpuSet> {
        Files::below(&self.root).list("sys/devices/system/cpu/online").filter(|online| !online.is_empty())
    }

    /// Reads what drivers need to know about the processors and memory.
    pub fn observe_machine(&self) -> Machine {
        let mut files = Files::below(&self.root);
        let mut machine = Machine { processor: topology::observe_cpuinfo(&mut files), ..Machine::default() };
        machine.cpus = topology::observe_cpus(&mut files, &machine.processor);
        machine.numa_nodes = numa::observe_nodes(&mut files, &mut machine.cpus);
        machine.memory_kib = memory::observe_total(&mut files, machine.numa_nodes.keys().copied());
        machine.smt = topology::observe_smt(&mut files);
        machine.turbo = frequency::observe_turbo(&mut files);
        frequency::observe_base(&mut files, &mut machine);
        machine.warnings = files.warnings.into_sentences();
        machine
    }
}
