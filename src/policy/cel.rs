//! Translates one match into CEL. Pure.
//!
//! Every expression is total: for any attribute value it is true or false, never an error, and the API server's cost
//! estimate stays small. The rules below were verified with the Kubernetes 1.37 evaluator:
//! - an unknown name is an error, so each expression first tests that the name exists;
//! - a literal goes on the left (`"Xeon" == x`): if x is a version, `x == "Xeon"` and `x in ["Xeon"]` are errors;
//! - a version goes on the right (`x == semver("1.2.3")`), for the same reason;
//! - `<`, `<=`, `>` and `>=` are errors on other types, so the type is tested first, as `type(x) in [int]`. The API
//!   server rejects `type(x) == int`, because its cost estimate is unbounded.

use crate::{
    api::{Match, MatchOperator, Scalar},
    dns::is_subdomain,
    slices::quantity::Amount,
};

use super::PolicyError;

/// Maximum length of a string or version attribute, in bytes (`DeviceAttributeMaxValueLength`).
const MAX_VALUE: usize = 64;

/// What a match tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// `device.attributes`.
    Attributes,
    /// `device.capacity`.
    Capacity,
}

/// A parsed match. Its expression is total.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Term {
    source: Source,
    domain: String,
    name: String,
    test: Test,
}

/// The condition on a value, as CEL in which `VALUE` stands for the value.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Test {
    Exists,
    DoesNotExist,
    /// At least one of these is true.
    Any(Vec<String>),
    /// None of these is true.
    None(Vec<String>),
}

/// Stands for the value in a test's CEL. It cannot occur in a literal, where control characters are escaped.
const VALUE: &str = "\u{1}";

/// The first term of every class.
pub(super) fn driver(name: &str) -> String {
    format!("device.driver == {}", literal(name))
}

impl Term {
    /// Parses a match. An error names the field of the match.
    pub(super) fn parse(source: Source, one: &Match, driver: &str) -> Result<Self, PolicyError> {
        let (domain, name) = parse_key(&one.key, driver)?;
        let test = match one.operator {
            MatchOperator::Exists | MatchOperator::DoesNotExist => {
                if one.value.is_some() || one.values.is_some() {
                    return Err(misplaced(one, "takes neither `value` nor `values`: remove them"));
                }
                if one.operator == MatchOperator::Exists { Test::Exists } else { Test::DoesNotExist }
            }
            MatchOperator::In | MatchOperator::NotIn => {
                let Some(values) = one.values.as_deref().filter(|values| !values.is_empty() && one.value.is_none())
                else {
                    return Err(misplaced(one, "takes a non-empty `values` list and no `value`"));
                };
                let tests = equalities(source, values)?;
                if one.operator == MatchOperator::In { Test::Any(tests) } else { Test::None(tests) }
            }
            MatchOperator::Gt | MatchOperator::Gte | MatchOperator::Lt | MatchOperator::Lte => {
                let Some(value) = one.value.as_ref().filter(|_| one.values.is_none()) else {
                    return Err(misplaced(one, "takes one `value` and no `values`"));
                };
                Test::Any(vec![order(source, one.operator, value)?])
            }
        };
        Ok(Self { source, domain: domain.to_owned(), name: name.to_owned(), test })
    }

    /// Whether the term tests a capacity, and the domain and name of what it tests.
    pub(super) fn subject(&self) -> (bool, &str, &str) {
        (self.source == Source::Capacity, &self.domain, &self.name)
    }

    /// Whether both terms test the same attribute or capacity.
    pub(super) fn same_key(&self, other: &Self) -> bool {
        (self.source, &self.domain, &self.name) == (other.source, &other.domain, &other.name)
    }

    /// The CEL: true or false for any device.
    pub(super) fn expression(&self) -> String {
        let map = match self.source {
            Source::Attributes => "device.attributes",
            Source::Capacity => "device.capacity",
        };
        let map = format!("{map}[{}]", literal(&self.domain));
        let exists = format!("{} in {map}", literal(&self.name));
        let value = if is_reserved(&self.name) {
            format!("{map}[{}]", literal(&self.name))
        } else {
            format!("{map}.{}", self.name)
        };
        let filled =
            |tests: &[String]| -> Vec<String> { tests.iter().map(|test| test.replace(VALUE, &value)).collect() };
        match &self.test {
            Test::Exists => exists,
            Test::DoesNotExist => format!("!({exists})"),
            Test::Any(tests) => match &filled(tests)[..] {
                [test] => format!("{exists} && {test}"),
                tests => format!("{exists} && ({})", tests.join(" || ")),
            },
            Test::None(tests) => format!("{exists} && !({})", filled(tests).join(" || ")),
        }
    }
}

/// Domain and name of a key. A bare name is in the driver's own domain.
fn parse_key<'a>(key: &'a str, driver: &'a str) -> Result<(&'a str, &'a str), PolicyError> {
    let (domain, name) = key.split_once('/').unwrap_or((driver, key));
    if domain.len() > 63 || !is_subdomain(domain) {
        return Err(PolicyError::new(
            "key",
            format!(
                "{key:?}: the part before the '/' must be a DNS subdomain of at most 63 characters (a-z, 0-9, '-', '.'), such as cpu.intel.com/family"
            ),
        ));
    }
    let identifier = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
        && name.chars().next().is_some_and(|c| !c.is_ascii_digit());
    if !identifier || name.len() > 32 {
        return Err(PolicyError::new(
            "key",
            format!(
                "{key:?}: an attribute name has at most 32 characters (letters, digits, '_') and does not start with a digit, such as cores or cpu.intel.com/family"
            ),
        ));
    }
    Ok((domain, name))
}

fn misplaced(one: &Match, what: &str) -> PolicyError {
    PolicyError::new("operator", format!("{:?} {what}", one.operator))
}

/// An equality test for each value.
fn equalities(source: Source, values: &[Scalar]) -> Result<Vec<String>, PolicyError> {
    let ints = values.iter().filter(|value| matches!(value, Scalar::Int(_))).count();
    if source == Source::Attributes && ints != 0 && ints != values.len() {
        return Err(PolicyError::new(
            "values",
            "the values have different types, but an attribute has only one: quote all of them (strings, versions, \"true\" and \"false\") or none (integers)",
        ));
    }
    let mut tests = Vec::new();
    for (index, value) in values.iter().enumerate() {
        let field = format!("values[{index}]");
        match (source, value) {
            (Source::Capacity, value) => {
                tests.push(format!("{VALUE}.compareTo(quantity({})) == 0", quantity(value, &field)?));
            }
            // The CRD takes "true" and "false" as strings, so the attribute may be a boolean or a string.
            (Source::Attributes, Scalar::Bool(value)) => {
                tests.extend([format!("{value} == {VALUE}"), format!("\"{value}\" == {VALUE}")]);
            }
            (Source::Attributes, Scalar::Int(value)) => tests.push(format!("{value} == {VALUE}")),
            (Source::Attributes, Scalar::String(value)) => {
                let text = string(value, &field)?;
                tests.push(format!("{text} == {VALUE}"));
                if let Some(version) = version(value) {
                    tests.push(format!("{VALUE} == semver({})", literal(&version)));
                }
            }
        }
    }
    Ok(tests)
}

fn order(source: Source, operator: MatchOperator, value: &Scalar) -> Result<String, PolicyError> {
    let sign = match operator {
        MatchOperator::Gt => ">",
        MatchOperator::Gte => ">=",
        MatchOperator::Lt => "<",
        _ => "<=",
    };
    match (source, value) {
        (Source::Capacity, value) => Ok(format!("{VALUE}.compareTo(quantity({})) {sign} 0", quantity(value, "value")?)),
        (Source::Attributes, Scalar::Int(value)) => Ok(format!("type({VALUE}) in [int] && {VALUE} {sign} {value}")),
        (Source::Attributes, Scalar::String(value)) => match version(value) {
            Some(version) => Ok(format!(
                "type({VALUE}) in [type(semver(\"0.0.0\"))] && {VALUE}.compareTo(semver({})) {sign} 0",
                literal(&version)
            )),
            None => Err(PolicyError::new(
                "value",
                format!(
                    "{operator:?} compares integers and versions, but {value:?} is neither: write an integer without quotes, such as 32, or a version, such as 1.2.3"
                ),
            )),
        },
        (Source::Attributes, Scalar::Bool(value)) => Err(PolicyError::new(
            "value",
            format!(
                "{operator:?} compares integers and versions, but {value} is a boolean: use operator In with values: [\"{value}\"]"
            ),
        )),
    }
}

/// A literal for a string that an attribute can hold.
fn string(value: &str, field: &str) -> Result<String, PolicyError> {
    if value.len() > MAX_VALUE {
        return Err(PolicyError::new(
            field,
            format!(
                "{value:?} is {} bytes long and can never match: an attribute value has at most {MAX_VALUE}",
                value.len()
            ),
        ));
    }
    Ok(literal(value))
}

/// A strict semantic version without its build metadata, which comparisons ignore.
fn version(value: &str) -> Option<String> {
    let mut version = semver::Version::parse(value).ok().filter(|_| value.len() <= MAX_VALUE)?;
    version.build = semver::BuildMetadata::EMPTY;
    Some(version.to_string())
}

/// A literal for a quantity.
fn quantity(value: &Scalar, field: &str) -> Result<String, PolicyError> {
    let text = match value {
        Scalar::Int(value) => value.to_string(),
        Scalar::String(value) => value.clone(),
        Scalar::Bool(value) => value.to_string(),
    };
    match Amount::parse(&text) {
        Some(_) if text.len() <= MAX_VALUE => Ok(literal(&text)),
        _ => Err(PolicyError::new(
            field,
            format!("{text:?} is not a quantity: write a number, with a unit if needed, such as 4, 500m or 16Gi"),
        )),
    }
}

/// A CEL string literal.
fn literal(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for c in text.chars() {
        match c {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            // Characters that break a line or are invisible; all of them have four hexadecimal digits.
            c if c.is_control() || ('\u{2028}'..='\u{202e}').contains(&c) || c == '\u{feff}' => {
                quoted.extend(["\\u", &format!("{:04x}", u32::from(c))]);
            }
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

/// Words that CEL's grammar reserves: they cannot follow a dot.
fn is_reserved(name: &str) -> bool {
    const RESERVED: [&str; 21] = [
        "true",
        "false",
        "null",
        "in",
        "as",
        "break",
        "const",
        "continue",
        "else",
        "for",
        "function",
        "if",
        "import",
        "let",
        "loop",
        "package",
        "namespace",
        "return",
        "var",
        "void",
        "while",
    ];
    RESERVED.contains(&name)
}
