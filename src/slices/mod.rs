//! ResourceSlices: what pools mean, packing devices into slices, diffing (pure); publishing and watching (IO).
