//! Shortens long lists in messages. Pure.

/// Up to `most` names, and how many more there are: `a, b and 3 more`.
pub fn names<N: AsRef<str>>(names: impl IntoIterator<Item = N>, most: usize) -> String {
    let mut names = names.into_iter();
    let shown: Vec<N> = names.by_ref().take(most).collect();
    let shown: Vec<&str> = shown.iter().map(AsRef::as_ref).collect();
    match names.count() {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

/// The suffix for the first of `all` similar problems: ` (and 3 more like it)`, or nothing if it is the only one.
pub fn more_like_it(all: usize) -> String {
    match all.saturating_sub(1) {
        0 => String::new(),
        more => format!(" (and {more} more like it)"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_listed_up_to_the_limit_and_the_rest_is_counted() {
        assert_eq!(names(["a", "b"], 2), "a, b");
        assert_eq!(names(["a", "b", "c", "d"], 2), "a, b and 2 more");
    }

    #[test]
    fn only_further_problems_are_counted() {
        let said: Vec<_> = (0..4).map(more_like_it).collect();
        assert_eq!(said, ["", "", " (and 1 more like it)", " (and 2 more like it)"]);
    }
}
