//! Selectors that match, are unknown, or abort a claim. `tests/policy_oracle` checks that Kubernetes gives the same
//! answers.

use rstest::rstest;
use serde_json::{Value, json};

use super::*;

fn class(selectors: &[&str]) -> DeviceClassSpec {
    let selectors: Vec<Value> = selectors.iter().map(|text| json!({"cel": {"expression": text}})).collect();
    serde_json::from_value(json!({"selectors": selectors})).unwrap()
}

fn device(attributes: &Value) -> Device {
    serde_json::from_value(json!({"name": "d", "attributes": attributes, "capacity": {"memory": {"value": "16Gi"}}}))
        .unwrap()
}

fn xeon() -> Device {
    device(&json!({"cores": {"int": 64}, "smt": {"bool": true}, "cpu.intel.com/family": {"string": "Xeon"},
        "driver": {"version": "1.2.3+build"}, "numa": {"ints": [0, 1]}}))
}

fn answer(selectors: &[&str]) -> Result<bool, MatchError> {
    Matcher::new(&class(selectors)).matches("dra.cpu", &xeon())
}

#[rstest]
#[case(r#"device.driver == "dra.cpu""#, true)]
#[case(r#"device.driver == "dra.net""#, false)]
#[case(r#"device.attributes["dra.cpu"].cores >= 64"#, true)]
#[case(r#"device.attributes["dra.cpu"]["cores"] > 64"#, false)]
#[case(r#""cores" in device.attributes["dra.cpu"] && !("family" in device.attributes["dra.cpu"])"#, true)]
#[case(r#"has(device.attributes["dra.cpu"].cores) && !has(device.attributes["dra.cpu"].gone)"#, true)]
#[case(r#""family" in device.attributes["cpu.intel.com"]"#, true)]
#[case(r#""family" in device.attributes["cpu.amd.com"]"#, false)]
#[case(r#"device.attributes["cpu.intel.com"].family.startsWith("Xe")"#, true)]
#[case(r#"device.attributes["cpu.intel.com"].family in ["Core", "Xeon"]"#, true)]
#[case(
    r#"type(device.attributes["dra.cpu"].cores) in [int] && type(device.attributes["dra.cpu"].smt) in [bool]"#,
    true
)]
#[case(r#"type(device.attributes["dra.cpu"].driver) in [type(semver("0.0.0"))]"#, true)]
#[case(r#"device.attributes["dra.cpu"].driver == semver("1.2.3")"#, true)]
#[case(r#"device.attributes["dra.cpu"].driver.compareTo(semver("1.2.4-rc.1")) < 0"#, true)]
#[case(r#"device.attributes["dra.cpu"].numa.exists(n, n == 1)"#, true)]
#[case(r#"device.attributes["dra.cpu"].numa.all(n, n == 1)"#, false)]
#[case(r#"device.capacity["dra.cpu"].memory.compareTo(quantity("17179869184")) == 0"#, true)]
#[case(r#"device.capacity["dra.cpu"].memory.isLessThan(quantity("8e18"))"#, true)]
#[case("!device.allowMultipleAllocations", true)]
#[case(r#"device.driver == "dra.net" && device.attributes["dra.cpu"].gone"#, false)]
fn a_selector_is_answered(#[case] selector: &str, #[case] matches: bool) {
    assert_eq!(answer(&[selector]), Ok(matches));
}

#[rstest]
#[case(r#"cel.bind(a, device.attributes["dra.cpu"], a.cores > 3)"#)]
#[case(r#"device.attributes["dra.cpu"].?cores.orValue(0) > 3"#)]
#[case(r#"device.attributes[?"dra.cpu"].hasValue()"#)]
#[case(r#""dra.cpu" in device.attributes"#)]
#[case("device.attributes.size() > 1")]
#[case(r#"device.attributes.exists(d, d == "dra.cpu")"#)]
#[case(r#"device.attributes["dra." + "cpu"].cores > 3"#)]
#[case(r#"{"a": 1}["a"] == 1"#)]
#[case("Foo{a: 1} == 2")]
#[case("this is not CEL")]
#[case("")]
fn a_selector_that_only_kubernetes_can_evaluate_is_unknown_and_never_false(#[case] selector: &str) {
    assert!(matches!(answer(&[selector]), Err(MatchError::Unknown(_))), "{:?}", answer(&[selector]));
    let ruled_out = answer(&[selector, r#"device.driver == "dra.net""#]);
    assert_eq!(ruled_out, Ok(false), "another selector may rule the device out");
}

/// Nested loops, each over a hundred numbers.
fn loops(depth: usize) -> String {
    let numbers: Vec<_> = (0..100).map(|number| number.to_string()).collect();
    let sum: Vec<_> = (0..depth).map(|level| format!("v{level}")).collect();
    let innermost = format!("{} >= 0", sum.join(" + "));
    sum.iter().fold(innermost, |inside, variable| format!("[{}].all({variable}, {inside})", numbers.join(",")))
}

#[rstest]
#[case(loops(2))]
#[case(loops(4))]
#[case(loops(8))]
#[case(loops(4).replace(".all(", ".map("))]
#[case(loops(4).replace(".all(", ".filter("))]
#[case("[[1, 2]].all(list, list.all(a, a > 0))".into())]
#[case(r#"device.attributes["dra.cpu"].numa.all(a, device.attributes["dra.cpu"].numa.exists(b, a == b))"#.into())]
#[case(format!("[{}].all(a, [1, 2, 3].map(b, a + b) == [a])", vec!["1"; 4000].join(",")))]
#[case(format!("([{0}] + [{0}]).all(a, a in [{0}])", vec!["1"; 1000].join(",")))]
fn an_expensive_selector_is_not_evaluated(#[case] selector: String) {
    assert!(selector.len() < 10 * 1024);
    let start = std::time::Instant::now();
    assert!(matches!(answer(&[&selector]), Err(MatchError::Unknown(_))), "{:?}", answer(&[&selector]));
    assert!(start.elapsed() < std::time::Duration::from_secs(10), "{:?}", start.elapsed());
}

#[rstest]
#[case(loops(1))]
#[case("[1, 2, 3].all(a, [4, 5, 6].exists(b, a < b))".into())]
#[case(r#"device.attributes["dra.cpu"].numa.all(n, n in [0, 1, 2, 3])"#.into())]
#[case(r#"device.attributes["dra.cpu"].numa.all(n, [0, 1].exists(m, n == m))"#.into())]
#[case(format!("device.attributes[\"dra.cpu\"].cores in [{}]", vec!["64"; 3000].join(",")))]
fn a_cheap_selector_with_loops_is_evaluated(#[case] selector: String) {
    assert_eq!(answer(&[&selector]), Ok(true));
}

#[rstest]
#[case(r#"device.attributes["dra.cpu"].gone == 1"#)]
#[case(r#"device.attributes["cpu.intel.com"].family > 3"#)]
#[case(r#"device.capacity["dra.cpu"].memory.compareTo(quantity("x")) > 0"#)]
#[case(r#"device.attributes["dra.cpu"].cores"#)]
fn a_selector_that_fails_aborts_the_claim(#[case] selector: &str) {
    assert!(matches!(answer(&[selector]), Err(MatchError::Aborts(_))), "{:?}", answer(&[selector]));
}

#[test]
fn a_class_without_selectors_matches_every_device() {
    assert_eq!(answer(&[]), Ok(true));
}

#[test]
fn devices_that_differ_in_an_attribute_that_is_read_get_separate_answers() {
    let matcher = Matcher::new(&class(&[r#"device.attributes["dra.cpu"].cores >= 64"#]));
    let with = |cores: Value| device(&json!({"cores": cores, "serial": {"int": 1}}));
    assert_eq!(matcher.matches("dra.cpu", &with(json!({"int": 64}))), Ok(true));
    assert_eq!(matcher.matches("dra.cpu", &with(json!({"int": 32}))), Ok(false));
    assert!(matcher.matches("dra.cpu", &with(json!({"string": "64"}))).is_err());
    assert!(
        matcher.matches("dra.net", &with(json!({"int": 64}))).is_err(),
        "another driver's `cores` is in another domain"
    );
    assert_eq!(matcher.matches("dra.net", &device(&json!({"dra.cpu/cores": {"int": 64}}))), Ok(true));
    assert_eq!(matcher.matches("dra.cpu", &with(json!({"int": 64}))), Ok(true));
}

#[test]
fn every_device_gets_an_answer_when_the_cache_is_full() {
    let matcher = Matcher::new(&class(&[r#"device.attributes["dra.cpu"].id % 2 == 0"#]));
    for id in 0..5000 {
        assert_eq!(matcher.matches("dra.cpu", &device(&json!({"id": {"int": id}}))), Ok(id % 2 == 0));
    }
    assert!(matcher.answers.lock().unwrap().len() <= MAX_ANSWERS);
}

/// Runs on a thread with the stack size of tokio's workers.
#[rstest]
#[case("(", "true", ")")]
#[case("[", "1", "] == 1")]
#[case("!", "true", "")]
#[case("-", "1", " == 1")]
#[case("", "1", "+1")]
#[case("", "device", ".a")]
#[case("", "a", "[1]")]
#[case("true ? true : ", "true", "")]
#[case("", "[1]", ".exists(x, [1]")]
fn deep_nesting_does_not_overflow_the_stack(#[case] before: &str, #[case] middle: &str, #[case] after: &str) {
    let (before, middle, after) = (before.to_owned(), middle.to_owned(), after.to_owned());
    let work = move || {
        for times in [1, 8, nesting::MAX / 2, nesting::MAX - 1, nesting::MAX, 3000] {
            let text = format!("{}{middle}{}", before.repeat(times), after.repeat(times));
            let _ = answer(&[&text]);
        }
    };
    std::thread::Builder::new().stack_size(2 << 20).spawn(work).unwrap().join().unwrap();
}

proptest::proptest! {
    #[test]
    fn no_text_causes_a_panic(text in "\\PC{0,60}", code in "[-\"'\\\\r().,&|?!a1/<>=+*%\\[\\]{}:\n ]{0,60}") {
        let _ = (answer(&[&text]), answer(&[&code]));
    }
}
