//! ResourceSlices: reading pools and devices, packing devices into slices, and diffing (pure); publishing and watching
//! (IO).

pub mod device;
pub mod diff;
pub mod pack;
pub mod pool;
pub mod publish;
pub mod quantity;
pub mod same;
