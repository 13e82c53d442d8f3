//! The demands that a policy makes of a device. Pure.

use crate::api::{DeviceClassPolicy, Match};

use super::{
    PolicyError,
    cel::{Source, Term},
};

/// One demand of a policy's preset or matches.
pub(super) struct Demand {
    /// The field that it comes from, relative to the policy.
    pub(super) field: String,
    pub(super) kind: Kind,
}

/// The kinds of demand.
pub(super) enum Kind {
    /// This must hold.
    One(Match, Term),
    /// These must not all hold.
    NotAll(Vec<Term>),
}

impl Demand {
    /// The CEL: true or false for any device.
    pub(super) fn expression(&self) -> String {
        match &self.kind {
            Kind::One(_, term) => term.expression(),
            Kind::NotAll(terms) => {
                let all: Vec<_> = terms.iter().map(Term::expression).collect();
                format!("!({})", all.join(" && "))
            }
        }
    }
}

/// All demands of a policy. An explicit match replaces the preset's demand on the same key. A [`Kind::NotAll`] demand
/// is replaced by an explicit match on any of its keys.
pub(super) fn demands(policy: &DeviceClassPolicy, driver: &str) -> Result<Vec<Demand>, PolicyError> {
    let own = parse(Source::Attributes, "matchAttributes", &policy.match_attributes, driver)?;
    let mut demands = Vec::new();
    if let Some(preset) = policy.preset {
        let terms = preset.terms();
        let replaced = |term: &Term| own.iter().any(|(_, _, own)| own.same_key(term));
        let field = format!("preset {preset:?}");
        let all = parse(Source::Attributes, "preset", &terms.all, driver)?;
        let kept = all.into_iter().filter(|(_, _, term)| !replaced(term));
        demands.extend(kept.map(|(_, one, term)| Demand { field: field.clone(), kind: Kind::One(one, term) }));
        let not_all: Vec<_> = parse(Source::Attributes, "preset", &terms.not_all, driver)?;
        let not_all: Vec<_> = not_all.into_iter().map(|(.., term)| term).collect();
        if !not_all.is_empty() && !not_all.iter().any(replaced) {
            demands.push(Demand { field, kind: Kind::NotAll(not_all) });
        }
    }
    let capacity = parse(Source::Capacity, "matchCapacity", &policy.match_capacity, driver)?;
    let own = own.into_iter().chain(capacity);
    demands.extend(own.map(|(field, one, term)| Demand { field, kind: Kind::One(one, term) }));
    Ok(demands)
}

fn parse(
    source: Source,
    field: &str,
    matches: &[Match],
    driver: &str,
) -> Result<Vec<(String, Match, Term)>, PolicyError> {
    let parse = |(index, one): (usize, &Match)| {
        let field = format!("{field}[{index}]");
        match Term::parse(source, one, driver) {
            Ok(term) => Ok((field, one.clone(), term)),
            Err(error) => Err(error.within(&field)),
        }
    };
    matches.iter().enumerate().map(parse).collect()
}
