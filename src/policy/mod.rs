//! Policy to DeviceClasses: presets and matches become guarded CEL, and what a class matches is counted. Pure.
