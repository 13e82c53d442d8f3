//! Which nodes a config's plugin should run on, and whether two configs select the same node. Pure.
//!
//! The rules are the scheduler's: every nodeSelector label, and at least one term of the required node affinity.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{NodeSelectorRequirement, NodeSelectorTerm};

use crate::controller::{config::Config, observe::NodeFacts};

/// Where one config's plugin may run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Placement {
    labels: BTreeMap<String, String>,
    terms: Option<Vec<NodeSelectorTerm>>,
}

/// The nodes that two placements share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SharedNodes {
    /// Both select this node.
    Node(String),
    /// One placement selects every node that the other selects, on any cluster.
    EveryNodeOfOne,
}

impl Placement {
    /// The placement that the config requests.
    pub fn of(config: &Config) -> Self {
        let affinity = config.node_plugin.affinity.node_affinity.as_ref();
        let required = affinity.and_then(|nodes| nodes.required_during_scheduling_ignored_during_execution.as_ref());
        Self {
            labels: config.node_plugin.node_selector.clone(),
            terms: required.map(|required| required.node_selector_terms.clone()),
        }
    }

    /// Whether the plugin may run on a node.
    pub fn selects(&self, node: &NodeFacts) -> bool {
        self.labels.iter().all(|(key, value)| node.labels.get(key) == Some(value))
            && self.terms.as_ref().is_none_or(|terms| terms.iter().any(|term| term_selects(term, node)))
    }

    /// The nodes that two placements share: a node that both select now, or every node of a placement that lies within
    /// the other.
    pub fn shared<'a>(&self, other: &Self, nodes: impl IntoIterator<Item = &'a NodeFacts>) -> Option<SharedNodes> {
        if let Some(node) = nodes.into_iter().find(|node| self.selects(node) && other.selects(node)) {
            return Some(SharedNodes::Node(node.name.clone()));
        }

        let within = |a: &Self, b: &Self| b.terms.is_none() && b.labels.iter().all(|(k, v)| a.labels.get(k) == Some(v));
        (within(self, other) || within(other, self)).then_some(SharedNodes::EveryNodeOfOne)
    }
}

/// A term without expressions selects nothing.
fn term_selects(term: &NodeSelectorTerm, node: &NodeFacts) -> bool {
    let labels = term.match_expressions.as_deref().unwrap_or_default();
    let fields = term.match_fields.as_deref().unwrap_or_default();
    !(labels.is_empty() && fields.is_empty())
        && labels.iter().all(|wanted| holds(wanted, node.labels.get(&wanted.key).map(String::as_str)))
        && fields.iter().all(|wanted| wanted.key == "metadata.name" && holds(wanted, Some(&node.name)))
}

fn holds(wanted: &NodeSelectorRequirement, value: Option<&str>) -> bool {
    let values = wanted.values.as_deref().unwrap_or_default();
    let listed = || value.is_some_and(|value| values.iter().any(|wanted| wanted == value));
    let numbers = || {
        let wanted: i64 = values.first()?.parse().ok()?;
        Some((value?.parse::<i64>().ok()?, wanted))
    };
    match wanted.operator.as_str() {
        "In" => listed(),
        "NotIn" => !listed(),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => numbers().is_some_and(|(value, wanted)| value > wanted),
        "Lt" => numbers().is_some_and(|(value, wanted)| value < wanted),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::controller::testing::{mk_config, mk_node};

    fn node(name: &str, labels: &[(&str, &str)]) -> NodeFacts {
        let mut node = mk_node(name);
        node.labels.extend(labels.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())));
        node
    }

    fn placement(plugin: &Value) -> Placement {
        Placement::of(&mk_config("a", &json!({"nodePlugin": plugin})))
    }

    fn affine(expression: &Value) -> Placement {
        placement(&json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{"matchExpressions": [expression]}]}}}}))
    }

    #[test]
    fn a_node_is_selected_by_labels_and_by_affinity() {
        let n = node("n", &[("pool", "a"), ("gen", "5")]);
        assert!(placement(&json!({})).selects(&n));
        let windows = NodeFacts { labels: [("kubernetes.io/os".to_owned(), "windows".to_owned())].into(), ..n.clone() };
        assert!(!placement(&json!({})).selects(&windows));
        assert!(placement(&json!({"nodeSelector": {"pool": "a"}})).selects(&n));
        assert!(!placement(&json!({"nodeSelector": {"pool": "b"}})).selects(&n));
        for (operator, key, values, selected) in [
            ("In", "pool", json!(["a", "b"]), true),
            ("NotIn", "pool", json!(["a"]), false),
            ("NotIn", "absent", json!(["a"]), true),
            ("Exists", "pool", json!(null), true),
            ("DoesNotExist", "pool", json!(null), false),
            ("Gt", "gen", json!(["4"]), true),
            ("Lt", "gen", json!(["4"]), false),
            ("Gt", "pool", json!(["4"]), false),
            ("Like", "pool", json!(["a"]), false),
        ] {
            let expression = json!({"key": key, "operator": operator, "values": values});
            assert_eq!(affine(&expression).selects(&n), selected, "{expression}");
        }
    }

    #[test]
    fn two_placements_overlap_if_they_share_a_node_or_must_share_one() {
        let (a, b) =
            (placement(&json!({"nodeSelector": {"pool": "a"}})), placement(&json!({"nodeSelector": {"zone": "z"}})));
        let everywhere = placement(&json!({}));
        let both = node("n", &[("pool", "a"), ("zone", "z")]);
        assert_eq!(a.shared(&b, [&both]), Some(SharedNodes::Node("n".into())));
        assert_eq!(a.shared(&b, []), None);
        assert_eq!(a.shared(&everywhere, []), Some(SharedNodes::EveryNodeOfOne));
        assert_eq!(everywhere.shared(&a, []), Some(SharedNodes::EveryNodeOfOne));
        let c = placement(&json!({"nodeSelector": {"pool": "c"}}));
        assert_eq!(a.shared(&c, [&both]), None);
    }
}
