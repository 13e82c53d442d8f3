//! The attributes of a device. Pure.
//!
//! Names from the upstream CPU driver keep their meaning, so that claims written for it still work; the rest is what
//! policy needs. A name without a domain belongs to the driver (`dra.cpu/family`). Unknown values are left out, never
//! −1 or "". A device has at most 32 attributes and a string at most 64 bytes: the limits of the resource.k8s.io API.

use std::{collections::BTreeMap, iter};

use k8s_openapi::api::resource::v1::DeviceAttribute;

use crate::{
    cpuset::CpuSet,
    host::{
        cpuinfo::{Architecture, CpuInfo},
        machine::{Cpu, Hybrid, Machine},
    },
};

use super::{
    identity::{Identity, identify},
    memory,
};

/// Longest string value, in bytes (`DeviceAttributeMaxValueLength` of the API).
const MAX_STRING: usize = 64;

/// A core whose capacity is at most this share of the fastest core's is an efficiency core: big cores with different
/// clocks (1024, 997, 855) are of one kind, little ones (731, 280) of another.
const EFFICIENCY_SHARE: f64 = 0.75;

pub(super) type Attributes = BTreeMap<String, DeviceAttribute>;

/// Facts that are the same for every device of a machine.
#[derive(Clone, Debug)]
pub(super) struct OfMachine<'m> {
    processor: &'m CpuInfo,
    cores: i64,
    memory_gb: Option<i64>,
    smt: bool,
    turbo: Option<bool>,
    most_capacity: Option<u32>,
    least_capacity: Option<u32>,
    hybrid: bool,
}

impl<'m> OfMachine<'m> {
    /// `cores`: the number of online physical cores, including reserved ones. `widest`: the most threads of any core.
    pub(super) fn new(machine: &'m Machine, cores: usize, widest: usize) -> Self {
        let capacities = || machine.cpus.values().filter_map(|cpu| cpu.capacity);
        Self {
            processor: &machine.processor,
            cores: i64::try_from(cores).unwrap_or(i64::MAX),
            memory_gb: machine.memory_kib.and_then(memory::nominal_gb),
            // Kernels before 4.19 have no smt/active.
            smt: machine.smt.unwrap_or(widest > 1),
            turbo: machine.turbo,
            most_capacity: capacities().max(),
            least_capacity: capacities().min(),
            hybrid: machine.cpus.values().any(|cpu| cpu.hybrid.is_some()) || machine.processor.has("hybrid_cpu"),
        }
    }

    /// The attributes of a device that has `threads`, all of the same core as `cpu`.
    pub(super) fn device(&self, cpu: &Cpu, threads: &CpuSet) -> Attributes {
        let mut attributes = Attributes::new();
        self.place(&mut attributes, cpu, threads);
        self.facts(&mut attributes, cpu, threads);
        self.instructions(&mut attributes);
        attributes
    }

    /// The device's place in the machine.
    fn place(&self, attributes: &mut Attributes, cpu: &Cpu, threads: &CpuSet) {
        put(attributes, "coreID", cpu.core);
        put(attributes, "socketID", cpu.package);
        put(attributes, "cacheL3ID", cpu.l3);
        put(attributes, "numaNodeID", cpu.numa_node);
        put(attributes, "resource.kubernetes.io/numaNode", cpu.numa_node);
        put(attributes, "coreType", self.core_type(cpu));
        put(attributes, "smtEnabled", Some(self.smt));
        // A truncated list would name the wrong CPUs, so a list that is too long is left out.
        put(attributes, "cpuIDs", Some(threads.to_string()).filter(|list| list.len() <= MAX_STRING));
    }

    /// What policies match on. Also published under the vendor's domain on that vendor's hardware.
    fn facts(&self, attributes: &mut Attributes, cpu: &Cpu, threads: &CpuSet) {
        let Identity { vendor, family, generation, model, domain } = identify(self.processor, cpu.arm_part);
        put(attributes, "architecture", self.processor.architecture.map(Architecture::name));
        put(attributes, "vendor", vendor);
        put(attributes, "model", model);
        put(attributes, "freqMHz", cpu.base_mhz);
        put(attributes, "threadCount", u32::try_from(threads.len()).ok());
        let vendors = domain.map(|domain| format!("{domain}/"));
        for domain in iter::once(String::new()).chain(vendors) {
            put(attributes, &format!("{domain}family"), family);
            put(attributes, &format!("{domain}generation"), generation);
            put(attributes, &format!("{domain}cores"), Some(self.cores));
            put(attributes, &format!("{domain}memoryGB"), self.memory_gb);
            put(attributes, &format!("{domain}turboBoost"), self.turbo);
        }
    }

    /// Instruction sets by which applications choose machines. A flag missing from the file is false if the file lists
    /// flags at all.
    fn instructions(&self, attributes: &mut Attributes) {
        let told: &[(&str, &str)] = match self.processor.architecture {
            Some(architecture) if architecture.is_x86() => {
                &[("avx2", "avx2"), ("avx512", "avx512f"), ("avx512vnni", "avx512_vnni"), ("amx", "amx_tile")]
            }
            Some(architecture) if architecture.is_arm() => {
                &[("sve", "sve"), ("sve2", "sve2"), ("i8mm", "i8mm"), ("bf16", "bf16")]
            }
            _ => &[],
        };
        for (name, flag) in told.iter().filter(|_| self.processor.tells_flags()) {
            put(attributes, name, Some(self.processor.has(flag)));
        }
    }

    /// `p-core`, `e-core` or `standard`; unknown where a hybrid processor does not say which CPU is which.
    fn core_type(&self, cpu: &Cpu) -> Option<&'static str> {
        match (cpu.hybrid, cpu.capacity, self.most_capacity) {
            (Some(Hybrid::Performance), ..) => Some("p-core"),
            (Some(Hybrid::Efficiency), ..) => Some("e-core"),
            (None, ..) if self.hybrid => None,
            (None, Some(capacity), Some(most)) if self.is_efficient(self.least_capacity.unwrap_or(most)) => {
                Some(if self.is_efficient(capacity) { "e-core" } else { "p-core" })
            }
            (None, None, Some(_)) => None,
            _ => Some("standard"),
        }
    }

    fn is_efficient(&self, capacity: u32) -> bool {
        self.most_capacity.is_some_and(|most| f64::from(capacity) <= f64::from(most) * EFFICIENCY_SHARE)
    }
}

/// The types of attribute values used here.
pub(super) trait Value {
    fn attribute(self) -> DeviceAttribute;
}

impl Value for bool {
    fn attribute(self) -> DeviceAttribute {
        DeviceAttribute { bool: Some(self), ..DeviceAttribute::default() }
    }
}

impl Value for i64 {
    fn attribute(self) -> DeviceAttribute {
        DeviceAttribute { int: Some(self), ..DeviceAttribute::default() }
    }
}

impl Value for u32 {
    fn attribute(self) -> DeviceAttribute {
        i64::from(self).attribute()
    }
}

impl Value for &str {
    fn attribute(self) -> DeviceAttribute {
        let value = self.get(..self.floor_char_boundary(MAX_STRING)).unwrap_or_default();
        DeviceAttribute { string: Some(value.to_owned()), ..DeviceAttribute::default() }
    }
}

impl Value for String {
    fn attribute(self) -> DeviceAttribute {
        self.as_str().attribute()
    }
}

/// Adds the attribute if its value is known.
pub(super) fn put(attributes: &mut Attributes, name: &str, value: Option<impl Value>) {
    if let Some(value) = value {
        attributes.insert(name.to_owned(), value.attribute());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_string_is_cut_between_characters_and_a_long_list_is_left_out() {
        let machine = Machine {
            processor: CpuInfo { model_name: Some("é".repeat(50) + "x"), ..CpuInfo::default() },
            ..Machine::default()
        };
        let every_other: CpuSet = (0..64).step_by(2).collect();
        let attributes = OfMachine::new(&machine, 1, 32).device(&Cpu::default(), &every_other);
        let model = attributes["model"].string.clone().unwrap();
        assert_eq!((model.len(), model.chars().count()), (64, 32));
        assert!(!attributes.contains_key("cpuIDs"));
        let odd = "a".to_owned() + &"é".repeat(50);
        assert_eq!(odd.attribute().string.unwrap().len(), 63);
    }

    #[test]
    fn unknown_values_are_left_out() {
        let machine = Machine::default();
        let attributes = OfMachine::new(&machine, 1, 1).device(&Cpu::default(), &CpuSet::from_iter([3]));
        assert_eq!(attributes.keys().collect::<Vec<_>>(), ["coreType", "cores", "cpuIDs", "smtEnabled", "threadCount"]);
    }
}
