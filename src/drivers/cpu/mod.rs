//! CPUs as devices. Pure.
