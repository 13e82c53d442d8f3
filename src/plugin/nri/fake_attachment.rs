//! A scripted attachment for tests.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, Ordering},
};

use futures::future::BoxFuture;

use crate::drivers::{
    Grant,
    attachment::{AttachError, Attachment, Sandbox},
};

/// Records what it is asked for, and does nothing.
#[derive(Default)]
pub struct FakeAttachment {
    calls: Mutex<Vec<String>>,
    pub fails: AtomicBool,
    pub hangs: AtomicBool,
}

impl FakeAttachment {
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// What it was asked for since the last time, as `attach POD CPUS`.
    pub fn calls(&self) -> Vec<String> {
        std::mem::take(&mut *self.calls.lock().unwrap())
    }

    fn done(&self, call: String) -> BoxFuture<'_, Result<(), AttachError>> {
        self.calls.lock().unwrap().push(call);
        let error = AttachError { what: "cannot move", device: "eth9".into(), problem: "no such link".into() };
        Box::pin(async move {
            if self.hangs.load(Ordering::Relaxed) {
                std::future::pending::<()>().await;
            }
            if self.fails.load(Ordering::Relaxed) { Err(error) } else { Ok(()) }
        })
    }
}

fn named(sandbox: &Sandbox, grants: &[Grant]) -> String {
    let cpus: Vec<_> = grants.iter().map(|grant| grant.cpus.to_string()).collect();
    format!("{} {}", sandbox.pod_name, cpus.join(" "))
}

impl Attachment for FakeAttachment {
    fn attach<'a>(&'a self, sandbox: &'a Sandbox, grants: &'a [Grant]) -> BoxFuture<'a, Result<(), AttachError>> {
        self.done(format!("attach {}", named(sandbox, grants)))
    }

    fn detach<'a>(&'a self, sandbox: &'a Sandbox, grants: &'a [Grant]) -> BoxFuture<'a, Result<(), AttachError>> {
        self.done(format!("detach {}", named(sandbox, grants)))
    }

    fn recover<'a>(&'a self, sandboxes: &'a [(Sandbox, Vec<Grant>)]) -> BoxFuture<'a, Result<(), AttachError>> {
        let names: Vec<_> = sandboxes.iter().map(|(sandbox, grants)| named(sandbox, grants)).collect();
        self.done(format!("recover {}", names.join(", ")))
    }
}
