//! Estimates from its text how deeply an expression is nested. Pure.
//!
//! Parsing, evaluating and dropping a syntax tree recurse, and a stack overflow would kill the process. So the depth is
//! checked before an expression is parsed. Real expressions are far from the limit.

/// Expressions nested deeper than this are not parsed.
pub(super) const MAX: usize = 40;

/// An upper bound on the depth of the syntax tree, in operators. Counts every open bracket, and on each level every
/// operator since the last `&&`, `||` or comma (the parser balances those).
pub(super) fn depth(text: &str) -> usize {
    #[derive(Clone, Copy, Default)]
    struct Level {
        chain: usize,
        ternaries: usize,
    }
    let bytes = text.as_bytes();
    let mut levels = vec![Level::default()];
    let (mut sum, mut deepest) = (0, 0);
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        let Some(level) = levels.last_mut() else { break };
        at += 1;
        match byte {
            b'"' | b'\'' => at = string_end(bytes, at - 1),
            b'/' if bytes.get(at) == Some(&b'/') => {
                at = bytes[at..].iter().position(|byte| *byte == b'\n').map_or(bytes.len(), |line| at + line);
            }
            b'&' | b'|' | b',' => {
                sum -= level.chain;
                level.chain = 0;
            }
            b'?' => {
                level.ternaries += 1;
                sum += 1;
            }
            b'+' | b'-' | b'*' | b'/' | b'%' | b'<' | b'>' | b'=' | b'!' | b'.' => {
                level.chain += 1;
                sum += 1;
            }
            b'(' | b'[' | b'{' => {
                // For each bracket the parser descends through its whole grammar again, which takes more stack than two
                // operators.
                level.chain += 2;
                sum += 2;
                levels.push(Level::default());
            }
            b')' | b']' | b'}' if levels.len() > 1 => {
                if let Some(closed) = levels.pop() {
                    sum -= closed.chain + closed.ternaries;
                }
            }
            _ => {}
        }
        deepest = deepest.max(sum);
    }
    deepest
}

/// The end of the string literal that begins with the quote at `start`.
fn string_end(bytes: &[u8], start: usize) -> usize {
    let quote = bytes[start];
    let raw = {
        // r"…", R"…", rb"…", br"…": the letters before the quote, unless they are the end of a longer word.
        let word =
            bytes[..start].iter().rev().take_while(|byte| byte.is_ascii_alphanumeric() || **byte == b'_').count();
        word <= 2 && bytes[start - word..start].iter().any(|byte| matches!(byte, b'r' | b'R'))
    };
    let triple = bytes[start..].starts_with(&[quote; 3]);
    let mut at = start + if triple { 3 } else { 1 };
    while let Some(&byte) = bytes.get(at) {
        if byte == b'\\' && !raw {
            at += 2;
        } else if byte == quote && (!triple || bytes[at..].starts_with(&[quote; 3])) {
            return at + if triple { 3 } else { 1 };
        } else {
            at += 1;
        }
    }
    bytes.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("true", 0)]
    #[case("a.b.c == 1", 4)]
    #[case("a.b && c.d || e.f", 1)]
    #[case("f(a.b, c.d)", 3)]
    #[case("((1))", 4)]
    #[case("(a) && (b)", 2)]
    #[case(r#""((((" == x"#, 2)]
    #[case(r#"r"\" + ((("#, 7)]
    #[case(r#""\"((((" + 'x'"#, 1)]
    #[case("'''a'((('b''' + 1", 1)]
    #[case("1 // ((((((\n+ 1", 1)]
    #[case("a && b ? c && d : e && f ? g : h", 2)]
    fn depth_counts_open_brackets_and_operators(#[case] text: &str, #[case] expected: usize) {
        assert_eq!(depth(text), expected, "{text}");
    }

    proptest::proptest! {
        #[test]
        fn no_text_causes_a_panic(text in "\\PC*", code in "[-\"'\\\\r().,&|?!a/\n]{0,80}") {
            let _ = (depth(&text), depth(&code));
        }
    }
}
