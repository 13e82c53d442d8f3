//! ResourceSlices: what pools mean, packing devices into slices, diffing (pure); publishing and watching (IO).

pub mod diff;
pub mod pack;
pub mod pool;
pub mod publish;
pub mod quantity;
pub mod same;
