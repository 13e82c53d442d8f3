//! "Did you mean": finds the known name closest to an unknown one. Pure.

/// The name in `known` that `name` is most likely a typo of; `None` if no name is close enough.
///
/// Case is ignored: `nodeplugin` is `nodePlugin`. Otherwise up to a third of the letters may be wrong, missing, added
/// or swapped with a neighbour, which is the limit that rustc and cargo use.
pub fn closest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let lower = name.to_lowercase();
    let allowed = lower.chars().count().max(3) / 3;

    known
        .into_iter()
        .map(|candidate| (strsim::osa_distance(&lower, &candidate.to_lowercase()), candidate))
        .filter(|(distance, _)| *distance <= allowed)
        // Of several equally close names, the first in `known` wins.
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: [&str; 5] = ["cores", "threads", "coreType", "nodePlugin", "cpu"];

    #[test]
    fn a_typo_is_recognised() {
        for (typo, meant) in [
            ("coers", "cores"),
            ("core", "cores"),
            ("thread", "threads"),
            ("nodeplugin", "nodePlugin"),
            ("NodePlugins", "nodePlugin"),
            ("cup", "cpu"),
        ] {
            assert_eq!(closest(typo, KNOWN), Some(meant), "{typo}");
        }
    }

    #[test]
    fn a_name_unlike_all_others_gets_no_hint() {
        for unlike in ["memory", "", "x", "gpu", "turboBoost"] {
            assert_eq!(closest(unlike, ["cores", "threads", "nodePlugin"]), None, "{unlike}");
        }
    }

    #[test]
    fn the_closest_wins_and_among_equals_the_first() {
        assert_eq!(closest("threats", ["treats", "threads"]), Some("treats"));
        assert_eq!(closest("threats", ["threads", "treats"]), Some("threads"));
        assert_eq!(closest("cores", ["corps", "cores"]), Some("cores"));
    }
}
