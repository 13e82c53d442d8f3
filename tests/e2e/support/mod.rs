//! The cluster under test: its clients, its tools, and waiting on conditions. IO.

pub(crate) mod cluster;
pub(crate) mod node;
pub(crate) mod objects;

use std::{
    fmt::Debug,
    future::Future,
    time::{Duration, Instant},
};

/// How long anything here may take. Image and caches are local, so anything slower is broken.
pub(crate) const DEADLINE: Duration = Duration::from_mins(1);

/// Polls until `look` returns `Ok`. After the deadline the test fails with the last error.
pub(crate) async fn eventually<T, E, F, Fut>(what: &str, look: F) -> T
where
    F: Fn() -> Fut,
    Fut: Future<Output = Result<T, E>>,
    E: Debug,
{
    within(DEADLINE, what, look).await
}

/// Like `eventually`, with a deadline.
pub(crate) async fn within<T, E, F, Fut>(deadline: Duration, what: &str, look: F) -> T
where
    F: Fn() -> Fut,
    Fut: Future<Output = Result<T, E>>,
    E: Debug,
{
    let end = Instant::now() + deadline;
    loop {
        match look().await {
            Ok(found) => return found,
            Err(seen) if Instant::now() > end => panic!("{what}: not within {deadline:?}; last seen: {seen:#?}"),
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}
