//! Which devices a DeviceClass matches, without asking Kubernetes. Pure.
//!
//! For counts in a status and for `menu`; the scheduler stays the judge. Selectors are evaluated by kube-cel, which knows
//! less CEL than Kubernetes does: what it might answer differently is screened out first, and answered with "unknown",
//! never with "no".
//!
//! A selector only looks at a few names, and the devices of a node mostly agree on them, so an answer is kept for each set
//! of values seen.

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

use evaluate::Facts;
use screen::Name;

/// Answers kept by a matcher, at most: some hundred kilobytes.
const MAX_ANSWERS: usize = 2048;

/// The selectors of one DeviceClass, compiled.
pub struct Matcher {
    selectors: Vec<Result<Program, String>>,
    /// What the selectors look at.
    names: BTreeSet<Name>,
    answers: Mutex<HashMap<Facts, Result<bool, MatchError>>>,
}

/// Why it is not known whether a device matches.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MatchError {
    /// Only Kubernetes can tell.
    #[error("only Kubernetes can evaluate the selector: {0}")]
    Unknown(String),
    /// The selector is an error for this device: a claim that uses the class is never allocated while the device is there.
    #[error("the selector is an error for this device, which aborts every claim that gets to it: {0}")]
    Aborts(String),
}

impl Matcher {
    /// Compiles the selectors of a class. What cannot be compiled here makes devices unknown that the other selectors do
    /// not rule out.
    pub fn new(class: &DeviceClassSpec) -> Self {
        let mut names = BTreeSet::new();
        let expressions =
            class.selectors.iter().flatten().map(|selector| selector.cel.as_ref().map(|cel| cel.expression.as_str()));
        let selectors = expressions
            .map(|expression| {
                let program = screen::compile(expression.ok_or("it has no CEL")?)?;
                names.extend(program.names);
                Ok(program.program)
            })
            .collect();
        Self { selectors, names, answers: Mutex::default() }
    }

    /// Whether the class matches a device of the driver.
    pub fn matches(&self, driver: &str, device: &Device) -> Result<bool, MatchError> {
        let facts = Facts::new(&self.names, driver, device);
        // A panic elsewhere while the lock was held leaves whole answers behind.
        let mut answers = self.answers.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(answer) = answers.get(&facts) {
            return answer.clone();
        }
        let answer = self.evaluate(&facts);
        if answers.len() >= MAX_ANSWERS {
            answers.clear();
        }
        answers.insert(facts, answer.clone());
        answer
    }

    fn evaluate(&self, facts: &Facts) -> Result<bool, MatchError> {
        let mut unknown = None;
        let scope = facts.scope(&self.names)?;
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
