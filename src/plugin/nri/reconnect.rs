//! Keeps the plugin connected to the runtime for as long as the plugin runs. IO: see [`session`](super::session).

use std::{convert::Infallible, path::PathBuf, sync::Arc, time::Duration};

use tokio::{
    sync::watch,
    time::{Instant, sleep},
};

use super::{remembered::RememberedFile, session::serve};
use crate::{
    backoff::Backoff,
    drivers::attachment::Attachment,
    plugin::grants::{Grants, NriStatus},
};

/// Pauses between attempts to connect. They are short, because pods start without the plugin until it reconnects.
const BACKOFF: Backoff = Backoff { first: Duration::from_millis(50), longest: Duration::from_secs(1) };

/// After a connection that lasted this long, the pauses start over.
const GOOD: Duration = Duration::from_secs(10);

/// The settings of the connection to the runtime.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The runtime's NRI socket.
    pub socket: PathBuf,
    /// The plugin's name in NRI: the driver's name.
    pub plugin_name: String,
    /// Where to store what containers had before they were moved off claimed CPUs.
    pub state_dir: PathBuf,
    /// The directory that contains the host's sysfs.
    pub host_root: PathBuf,
}

/// Keeps containers on the CPUs that they should have, and devices attached to pod sandboxes, until dropped. The
/// connection then closes and the containers stay as they are, so wait for [`NriStatus::applied`] first.
pub async fn run(
    settings: Settings,
    grants: Arc<dyn Grants>,
    attachment: Option<Arc<dyn Attachment>>,
    status: watch::Sender<NriStatus>,
) -> Infallible {
    let mut remembered = RememberedFile::new(settings.state_dir.join("nri.json"));
    let mut repeats = 0;
    let mut last_problem = String::new();
    loop {
        let start = Instant::now();
        let Err(error) = serve(&settings, &grants, attachment.as_ref(), &status, &mut remembered).await;
        repeats = repeats_after(repeats, start.elapsed());

        // Do not log every attempt: the runtime may be down for a long time.
        let problem = error.to_string();
        let was_connected = status.borrow().connected;
        if was_connected || problem != last_problem {
            tracing::warn!(socket = %settings.socket.display(), "NRI: {problem}; reconnecting");
        }

        status.send_if_modified(|status| {
            let reconnects = status.reconnects + u64::from(was_connected);
            let now = NriStatus { connected: false, applied: 0, reconnects, problem: Some(problem.clone()) };
            let changed = *status != now;
            *status = now;
            changed
        });
        last_problem = problem;
        sleep(BACKOFF.pause(repeats)).await;
    }
}

/// How often the pause is doubled after a connection that lasted this long.
fn repeats_after(before: u32, lived: Duration) -> u32 {
    if lived >= GOOD { 0 } else { before.saturating_add(1) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pauses_start_over_only_after_a_connection_that_lasted() {
        let mut repeats = 0;
        for (lived, expected) in [(3, 1), (3, 2), (9, 3), (10, 0), (3, 1)] {
            repeats = repeats_after(repeats, Duration::from_secs(lived));
            assert_eq!(repeats, expected, "after {lived} s");
        }
    }
}
