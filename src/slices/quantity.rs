//! Parses Kubernetes quantities, to compare them. Pure.
//!
//! `"1Gi"`, `"1024Mi"` and `"1073741824"` are the same amount written three ways, and an API server may return another
//! form than it was sent. Rules: k8s.io/apimachinery `pkg/api/resource` 0.37, whose smallest unit is a billionth (finer
//! is rounded away from zero), and where a binary unit (Ki … Ei) caps the magnitude at 2^63 − 1.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// Billionths in one.
const NANO: i128 = 1_000_000_000;
/// The largest magnitude of a quantity with a binary unit.
const BINARY_MAX: i128 = (i64::MAX as i128) * NANO;

/// An amount in billionths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Amount(i128);

impl Amount {
    /// Parses a quantity. `None` if the text is not a quantity, or is one that no device has: above 10^29, with an
    /// exponent outside −9 … 18, or with more than 18 fractional digits.
    pub fn parse(text: &str) -> Option<Self> {
        let (negative, unsigned) = match text.as_bytes().first()? {
            b'-' => (true, &text[1..]),
            b'+' => (false, &text[1..]),
            _ => (false, text),
        };
        let number_end = unsigned.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(unsigned.len());
        let (number, suffix) = unsigned.split_at(number_end);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if whole.is_empty() && fraction.is_empty() || fraction.contains('.') {
            return None;
        }
        let unit = unit_in_nano(suffix)?;
        let fraction = fraction_part(fraction, unit)?;
        let nano = whole_part(whole, unit).and_then(|nano| nano.checked_add(fraction));
        let nano = if suffix.ends_with('i') { nano.unwrap_or(BINARY_MAX).min(BINARY_MAX) } else { nano? };
        Some(Self(if negative { -nano } else { nano }))
    }

    /// The amount in billionths.
    pub fn nano(self) -> i128 {
        self.0
    }
}

/// The number of billionths in one unit: always a whole number, and a multiple of `NANO` for the unit "" and larger
/// ones.
fn unit_in_nano(suffix: &str) -> Option<i128> {
    Some(match suffix {
        "n" => 1,
        "u" => 1_000,
        "m" => 1_000_000,
        "" => NANO,
        "k" => NANO * 1_000,
        "M" => NANO * 1_000_000,
        "G" => NANO * 1_000_000_000,
        "T" => NANO * 1_000_000_000_000,
        "P" => NANO * 1_000_000_000_000_000,
        "E" => NANO * 1_000_000_000_000_000_000,
        "Ki" => NANO << 10,
        "Mi" => NANO << 20,
        "Gi" => NANO << 30,
        "Ti" => NANO << 40,
        "Pi" => NANO << 50,
        "Ei" => NANO << 60,
        exponent => {
            let exponent: i32 = exponent.strip_prefix(['e', 'E'])?.parse().ok()?;
            10_i128.pow(u32::try_from(exponent.checked_add(9)?).ok().filter(|power| *power <= 27)?)
        }
    })
}

fn whole_part(digits: &str, unit: i128) -> Option<i128> {
    match digits.trim_start_matches('0') {
        "" => Some(0),
        digits => digits.parse::<i128>().ok()?.checked_mul(unit),
    }
}

fn fraction_part(digits: &str, unit: i128) -> Option<i128> {
    let digits = digits.trim_end_matches('0');
    if digits.len() > 18 {
        return None;
    }
    let fraction = format!("{digits:0<18}").parse::<i128>().ok()?;
    // Neither product overflows: a fraction is below 10^18, a unit at most 2^60 · 10^9 and whole above 1.
    Some(if unit >= NANO { ceil_div(fraction * (unit / NANO), NANO) } else { ceil_div(fraction * unit, NANO * NANO) })
}

fn ceil_div(a: i128, b: i128) -> i128 {
    a / b + i128::from(a % b != 0)
}

/// Whether two quantities are the same amount. Text that is not a quantity equals only itself.
pub fn same(a: &Quantity, b: &Quantity) -> bool {
    a == b || Amount::parse(&a.0).is_some_and(|amount| Amount::parse(&b.0) == Some(amount))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("1Gi", "1024Mi")]
    #[case("1.5Gi", "1536Mi")]
    #[case("1500m", "1.5")]
    #[case("1e3", "1k")]
    #[case("1E3", "1000")]
    #[case("-0.5", "-500m")]
    #[case(".5", "500m")]
    #[case("5.", "+5")]
    #[case("0.1n", "1n")]
    #[case("00012", "12")]
    #[case("16Ei", "99999999999999999999999999999999999999999999Ki")] // both are capped at 2^63 − 1
    #[case("0.000000000000000001Ki", "1n")]
    fn the_same_amount_in_two_forms_is_equal(#[case] a: &str, #[case] b: &str) {
        assert!(Amount::parse(a).is_some(), "{a} is a quantity");
        assert_eq!(Amount::parse(a), Amount::parse(b));
    }

    #[rstest]
    fn text_that_is_not_a_quantity_is_rejected(
        #[values(
            "",
            "-",
            ".",
            "Gi",
            "1.2.3",
            "1 Gi",
            "1gi",
            "1K",
            "0x10",
            "1e",
            "1e99999999999",
            "1e30",
            "1ee3",
            "½",
            "NaN"
        )]
        text: &str,
    ) {
        assert_eq!(Amount::parse(text), None);
    }

    #[test]
    fn amounts_are_ordered() {
        let amounts = ["-1Ki", "-1", "0", "1n", "1m", "999m", "1", "1k", "1Ki", "1G", "1Gi", "7Ei"];
        let parsed: Vec<_> = amounts.iter().map(|text| Amount::parse(text).unwrap()).collect();
        assert!(parsed.is_sorted_by(|a, b| a < b), "{parsed:?}");
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_parsed_or_rejected_without_a_panic(text in "\\PC*", number in "[-+]?[0-9.]{0,60}(e-?[0-9]{0,3}|[KMGTPE]i?|[numk])?") {
            let _ = (Amount::parse(&text), Amount::parse(&number));
        }
    }
}
