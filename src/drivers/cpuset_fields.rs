//! Which parts of a container's cpuset a kind of device sets. Pure.

/// Which parts of a container's cpuset a kind of device sets. The container runtime lets one plugin set each field of a
/// container, so two kinds must not set the same one: `docs/development/nri-sharing.md` says who sets which.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CpusetFields {
    /// Nothing: its claims provide neither CPUs nor memory nodes, and other containers are left alone.
    #[default]
    Nothing,
    /// The CPUs of every container, and the memory nodes of its claims' containers unless they also have a memory
    /// claim.
    Cpus,
    /// The memory nodes of its claims' containers. Other containers are left alone.
    MemoryNodes,
}
