//! Observes the cluster: one watch per kind, pruned to what decisions need. IO: watches, and a few lookups.

mod creation;
mod facts;
mod guarded;
mod live;
pub mod own_pod;
pub mod preflight;
mod watch;

pub use creation::refusal;
pub use facts::{ClaimFacts, Held, NodeFacts, PluginPod, Trouble, TroubleKind, Unready, is_ready};
pub use guarded::Guarded;
pub use live::{Live, Owner};
pub use watch::{Caches, Changes, WatchError, child_api};
