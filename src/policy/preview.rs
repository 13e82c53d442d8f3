//! Which devices a DeviceClass matches, without asking Kubernetes. Pure.
//!
//! Used for the counts in a status and for `menu`; only the scheduler decides. The selectors are evaluated by kube-cel,
//! which supports less CEL than Kubernetes. Selectors that it might evaluate differently are screened out: the answer
//! for them is "unknown", never "no".
//!
//! A selector reads only a few names, and most devices of a node have the same values for them. So answers are cached
//! by the values that the selectors read.

mod evaluate;
mod nesting;
mod parse;
mod screen;
mod unmatched;

pub use unmatched::why_nothing;

pub use parse::syntax_error;

use std::{
    collections::{BTreeSet, HashMap},
    sync::Mutex,
};

use k8s_openapi::api::resource::v1::{Device, DeviceClassSpec};
use kube_cel::cel::Program;

use evaluate::DeviceView;
use screen::Name;

/// Maximum number of answers that a matcher caches: a few hundred kilobytes.
const MAX_ANSWERS: usize = 2048;

/// The selectors of one DeviceClass, compiled.
pub struct Matcher {
    selectors: Vec<Result<Program, String>>,
    /// The names that the selectors read.
    names: BTreeSet<Name>,
    answers: Mutex<HashMap<DeviceView, Result<bool, MatchError>>>,
}

/// Why it is not known whether a device matches.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MatchError {
    /// Only Kubernetes can evaluate the selector.
    #[error("only Kubernetes can evaluate the selector: {0}")]
    Unknown(String),
    /// The selector fails on this device: a claim for the class cannot be allocated if the scheduler tries this device.
    #[error("the selector fails on this device, so the scheduler aborts every claim that it tries on the device: {0}")]
    Aborts(String),
}

impl Matcher {
    /// Compiles the selectors of a class. If one cannot be compiled here, the answer is unknown for every device that the
    /// other selectors do not rule out.
    pub fn new(class: &DeviceClassSpec) -> Self {
        let mut names = BTreeSet::new();
        let expressions =
            class.selectors.iter().flatten().map(|selector| selector.cel.as_ref().map(|cel| cel.expression.as_str()));
        let selectors = expressions
            .map(|expression| {
                let program = screen::compile(expression.ok_or("it has no CEL expression")?)?;
                names.extend(program.names);
                Ok(program.program)
            })
            .collect();
        Self { selectors, names, answers: Mutex::default() }
    }

    /// Whether the class matches a device of the driver.
    pub fn matches(&self, driver: &str, device: &Device) -> Result<bool, MatchError> {
        let view = DeviceView::new(&self.names, driver, device);
        // A panic in another thread cannot leave a partial answer behind.
        let mut answers = self.answers.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(answer) = answers.get(&view) {
            return answer.clone();
        }
        let answer = self.evaluate(&view);
        if answers.len() >= MAX_ANSWERS {
            answers.clear();
        }
        answers.insert(view, answer.clone());
        answer
    }

    fn evaluate(&self, view: &DeviceView) -> Result<bool, MatchError> {
        let mut unknown = None;
        let scope = view.scope(&self.names)?;
        for selector in &self.selectors {
            match selector {
                Ok(program) if !evaluate::evaluate(program, &scope)? => return Ok(false),
                Ok(_) => {}
                Err(reason) => unknown = Some(reason),
            }
        }
        unknown.map_or(Ok(true), |reason| Err(MatchError::Unknown(reason.clone())))
    }
}

impl std::fmt::Debug for Matcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Matcher")
            .field("selectors", &self.selectors.len())
            .field("names", &self.names)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
