//! Parses a selector and reports syntax errors. Pure.

use kube_cel::cel::{ParseErrors, Program};

use super::nesting;

/// Compiles a selector. An error says why it cannot be compiled here.
pub(super) fn program(expression: &str) -> Result<Program, String> {
    if nesting::depth(expression) > nesting::MAX {
        return Err(format!("it is nested deeper than {} levels", nesting::MAX));
    }
    compile(expression)?.map_err(|error| format!("it does not compile here: {error}"))
}

/// Where and why an expression violates CEL's grammar, which kube-cel and Kubernetes share. `None` for an expression
/// that only Kubernetes can judge, such as one that is well formed but does not type-check.
pub fn syntax_error(expression: &str) -> Option<String> {
    // kube-cel's grammar does not support names in backticks yet.
    if nesting::depth(expression) > nesting::MAX || expression.contains('`') {
        return None;
    }
    let errors = compile(expression).ok()?.err()?.errors;
    let error = errors.iter().find(|error| error.msg.starts_with("Syntax error"))?;
    Some(format!("line {}, column {}: {}", error.pos.0, error.pos.1, error.msg))
}

/// Compiles on a thread with a larger stack: in a debug build the generated parser takes about 100 KiB per bracket.
fn compile(expression: &str) -> Result<Result<Program, ParseErrors>, String> {
    const STACK: usize = 16 << 20;
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(STACK);
        let thread = thread.spawn_scoped(scope, || Program::compile(expression));
        let thread = thread.map_err(|error| format!("starting a thread to parse it failed: {error}"))?;
        thread.join().map_err(|_| "the parser failed".into())
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("device.driver == ")]
    #[case("device.attributes[\"dra.cpu\".cores > 1")]
    #[case("device.driver = \"dra.cpu\"")]
    #[case("a && && b")]
    #[case("\"never ends")]
    #[case("this is not CEL")]
    #[case("(")]
    #[case("device.attributes.a.in == 1")]
    fn a_syntax_error_is_reported_with_its_place(#[case] expression: &str) {
        let said = syntax_error(expression);
        assert!(said.as_ref().is_some_and(|said| said.starts_with("line 1, column ")), "{said:?}");
    }

    /// Expressions that Kubernetes accepts, or rejects for reasons other than syntax.
    #[rstest]
    #[case(r#"cel.bind(a, device.attributes["dra.cpu"], a.?cores.orValue(0) > 3)"#)]
    #[case(r#"device.attributes[?"dra.cpu"].hasValue() && optional.of(1).hasValue()"#)]
    #[case(r#"[?optional.none(), 1, ].size() == 1 && {?"a": optional.of(1), "b": 2,}.b == 2"#)]
    #[case(r#"r"\d+\" != b'\x00' && """a "quote" in it""" != '''it's''' && "\u00e9\t\101" != '\U0001F600'"#)]
    #[case("0x1F == 31 && 1u != 2u && 1.5e3 > .5 && -1 < 1e-3 && null == null")]
    #[case("device.driver.matches('^dra') // a comment\n && true")]
    #[case("[1, 2].exists_one(x, x > 1) && {'a': 1}.all(k, k == 'a') && [1].map(x, x > 0, x + 1) == [2]")]
    #[case("[1].transformList(i, v, v + i) == [1] && duration('1h') < duration('2h')")]
    #[case("google.protobuf.Int32Value{value: 1} == 1 && .device.driver == ''")]
    #[case("has(device.attributes.a.`in-between`)")]
    #[case("1 + 'a' == nothing.known(2)")]
    fn a_well_formed_expression_has_no_syntax_error(#[case] expression: &str) {
        assert_eq!(syntax_error(expression), None);
    }
}
