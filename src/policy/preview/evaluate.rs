//! Evaluates selectors on a device. Pure.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt,
    sync::{Arc, LazyLock},
};

use k8s_openapi::api::resource::v1::{Device, DeviceAttribute};
use kube_cel::{
    KubeCelExt,
    cel::{
        Context, ExecutionError, Program, ResolveResult, Value,
        extractors::This,
        objects::{Key, Map, Opaque},
    },
};

use crate::slices::quantity::Amount;

use super::{MatchError, screen::Name};

/// The part of a device that selectors read. Their answer depends on nothing else.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct DeviceView {
    driver: String,
    shared: bool,
    /// The value of each name that the selectors read, in order; `None` if the device does not have it.
    values: Vec<Option<FieldValue>>,
}

/// The value of an attribute or a capacity.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum FieldValue {
    Bool(bool),
    Int(i64),
    String(String),
    Version(String),
    Quantity(String),
    List(Vec<FieldValue>),
    /// An attribute without a value.
    Nothing,
}

/// The type of a value. Its display form has an article: `an integer`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ValueType {
    Bool,
    Int,
    String,
    Version,
    Quantity,
    List,
    Nothing,
}

impl fmt::Display for ValueType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Bool => "a boolean",
            Self::Int => "an integer",
            Self::String => "a string",
            Self::Version => "a version",
            Self::Quantity => "a quantity",
            Self::List => "a list",
            Self::Nothing => "empty",
        })
    }
}

impl DeviceView {
    pub(super) fn new(names: &BTreeSet<Name>, driver: &str, device: &Device) -> Self {
        let value = |name: &Name| {
            if name.is_capacity { capacity(device, name, driver) } else { attribute(device, name, driver) }
        };
        Self {
            driver: driver.to_owned(),
            shared: device.allow_multiple_allocations.unwrap_or(false),
            values: names.iter().map(value).collect(),
        }
    }

    /// `device` with the domains and names that the selectors read. A domain that the device lacks is an empty map. As
    /// in Kubernetes, a value that does not parse as its type is an error.
    fn device(&self, names: &BTreeSet<Name>) -> Result<Value, String> {
        let mut attributes: HashMap<String, HashMap<String, Value>> = HashMap::new();
        let mut capacity = attributes.clone();
        for (name, value) in names.iter().zip(&self.values) {
            let maps = if name.is_capacity { &mut capacity } else { &mut attributes };
            let map = maps.entry(name.domain.clone()).or_default();
            if let Some(value) = value {
                let value = value.value().map_err(|error| format!("{}/{}: {error}", name.domain, name.id))?;
                map.insert(name.id.clone(), value);
            }
        }
        let nested = |maps: HashMap<String, HashMap<String, Value>>| {
            map(maps.into_iter().map(|(domain, values)| (domain, map(values))).collect())
        };
        Ok(map(HashMap::from([
            ("driver".to_owned(), Value::String(Arc::new(self.driver.clone()))),
            ("allowMultipleAllocations".to_owned(), Value::Bool(self.shared)),
            ("attributes".to_owned(), nested(attributes)),
            ("capacity".to_owned(), nested(capacity)),
        ])))
    }

    /// The scope in which expressions are evaluated.
    pub(super) fn scope(&self, names: &BTreeSet<Name>) -> Result<Context<'static>, MatchError> {
        let mut scope = FUNCTIONS.new_inner_scope();
        scope.add_variable_from_value("device", self.device(names).map_err(MatchError::Aborts)?);
        Ok(scope)
    }
}

impl fmt::Display for FieldValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bool(value) => value.fmt(f),
            Self::Int(value) => value.fmt(f),
            Self::String(value) | Self::Version(value) | Self::Quantity(value) => value.fmt(f),
            Self::List(values) => {
                let values: Vec<_> = values.iter().map(ToString::to_string).collect();
                write!(f, "[{}]", values.join(", "))
            }
            Self::Nothing => f.write_str("no value"),
        }
    }
}

impl FieldValue {
    /// The type of the value.
    pub(super) fn value_type(&self) -> ValueType {
        match self {
            Self::Bool(_) => ValueType::Bool,
            Self::Int(_) => ValueType::Int,
            Self::String(_) => ValueType::String,
            Self::Version(_) => ValueType::Version,
            Self::Quantity(_) => ValueType::Quantity,
            Self::List(_) => ValueType::List,
            Self::Nothing => ValueType::Nothing,
        }
    }

    fn value(&self) -> ResolveResult {
        Ok(match self {
            Self::Bool(value) => Value::Bool(*value),
            Self::Int(value) => Value::Int(*value),
            Self::String(value) => Value::String(Arc::new(value.clone())),
            Self::Version(value) => version(value)?,
            Self::Quantity(value) => quantity(value)?,
            Self::List(values) => Value::List(Arc::new(values.iter().map(Self::value).collect::<Result<_, _>>()?)),
            Self::Nothing => return Err(ExecutionError::function_error("attribute", "it has no value")),
        })
    }
}

/// A device's attribute.
pub(super) fn attribute(device: &Device, name: &Name, driver: &str) -> Option<FieldValue> {
    Some(field_value(find(device.attributes.as_ref()?, name, driver)?))
}

/// A device's capacity.
pub(super) fn capacity(device: &Device, name: &Name, driver: &str) -> Option<FieldValue> {
    Some(FieldValue::Quantity(find(device.capacity.as_ref()?, name, driver)?.value.0.clone()))
}

/// Evaluates one selector.
pub(super) fn evaluate(program: &Program, scope: &Context<'_>) -> Result<bool, MatchError> {
    match program.execute(scope) {
        Ok(Value::Bool(matches)) => Ok(matches),
        Ok(_) => Err(MatchError::Aborts("its value is neither true nor false".into())),
        Err(ExecutionError::UndeclaredReference(what)) => Err(MatchError::Unknown(format!("it uses {what:?}"))),
        Err(error) => Err(MatchError::Aborts(error.to_string())),
    }
}

/// A name without a domain belongs to the driver's domain.
fn find<'a, T>(map: &'a BTreeMap<String, T>, name: &Name, driver: &str) -> Option<&'a T> {
    let own = (name.domain == driver).then(|| map.get(&name.id)).flatten();
    own.or_else(|| map.get(&format!("{}/{}", name.domain, name.id)))
}

fn field_value(attribute: &DeviceAttribute) -> FieldValue {
    let DeviceAttribute { bool, bools, int, ints, string, strings, version, versions } = attribute;
    // In the order in which Kubernetes checks them.
    if let Some(values) = ints {
        FieldValue::List(values.iter().copied().map(FieldValue::Int).collect())
    } else if let Some(values) = bools {
        FieldValue::List(values.iter().copied().map(FieldValue::Bool).collect())
    } else if let Some(values) = strings {
        FieldValue::List(values.iter().cloned().map(FieldValue::String).collect())
    } else if let Some(values) = versions {
        FieldValue::List(values.iter().cloned().map(FieldValue::Version).collect())
    } else if let Some(value) = int {
        FieldValue::Int(*value)
    } else if let Some(value) = bool {
        FieldValue::Bool(*value)
    } else if let Some(value) = string {
        FieldValue::String(value.clone())
    } else {
        version.as_ref().map_or(FieldValue::Nothing, |value| FieldValue::Version(value.clone()))
    }
}

fn map(values: HashMap<String, Value>) -> Value {
    Value::Map(Map {
        map: Arc::new(values.into_iter().map(|(key, value)| (Key::String(Arc::new(key)), value)).collect()),
    })
}

/// kube-cel's functions, with our own for those that it lacks or implements differently.
static FUNCTIONS: LazyLock<Context<'static>> = LazyLock::new(|| {
    let mut context = Context::default().with_all();
    context.add_function("quantity", |This(text): This<Arc<String>>| quantity(&text));
    context.add_function("isQuantity", |This(text): This<Arc<String>>| Amount::parse(&text).is_some());
    context.add_function("semver", |This(text): This<Arc<String>>| version(&text));
    context
        .add_function("type", |value: Value| -> ResolveResult { Ok(Value::Opaque(Arc::new(Type(type_name(&value))))) });
    for name in ["int", "string", "bool"] {
        context.add_variable_from_value(name, Value::Opaque(Arc::new(Type(name.into()))));
    }
    context
});

/// The type of a value.
#[derive(Debug, PartialEq, Eq)]
struct Type(String);

impl Opaque for Type {
    fn runtime_type_name(&self) -> &'static str {
        "type"
    }
}

fn type_name(value: &Value) -> String {
    match value {
        Value::String(_) => "string".into(),
        Value::Opaque(value) => value.runtime_type_name().into(),
        value => value.type_of().to_string(),
    }
}

/// A quantity as kube-cel's type. It is passed in billionths and capped as in Kubernetes: kube-cel has other limits,
/// and compares quantities beyond them incorrectly.
fn quantity(text: &str) -> ResolveResult {
    let amount = Amount::parse(text);
    let amount =
        amount.ok_or_else(|| ExecutionError::function_error("quantity", format!("{text:?} is not a quantity")))?;
    call(&QUANTITY, format!("{}n", amount.nano()))
}

/// A version as kube-cel's type, without its build metadata, which Kubernetes ignores in comparisons and kube-cel does
/// not.
fn version(text: &str) -> ResolveResult {
    let parsed = semver::Version::parse(text);
    let mut version = parsed.map_err(|error| ExecutionError::function_error("semver", format!("{text:?}: {error}")))?;
    version.build = semver::BuildMetadata::EMPTY;
    call(&SEMVER, version.to_string())
}

/// Only kube-cel's own functions can create values of its types.
type Maker = (Program, Context<'static>);

static QUANTITY: LazyLock<Option<Maker>> = LazyLock::new(|| maker("quantity(text)"));
static SEMVER: LazyLock<Option<Maker>> = LazyLock::new(|| maker("semver(text)"));

fn maker(call: &str) -> Option<Maker> {
    Some((Program::compile(call).ok()?, Context::default().with_all()))
}

fn call(maker: &LazyLock<Option<Maker>>, text: String) -> ResolveResult {
    let missing = || ExecutionError::function_error("kube-cel", "the function is missing");
    let (program, context) = maker.as_ref().ok_or_else(missing)?;
    let mut scope = context.new_inner_scope();
    scope.add_variable_from_value("text", text);
    program.execute(&scope)
}
