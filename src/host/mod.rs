//! The one way to the machine: sysfs and procfs under a root. IO.

pub mod cpuset;
