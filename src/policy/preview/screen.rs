//! Compiles a selector if kube-cel evaluates it exactly as Kubernetes does. Pure.
//!
//! What passes: comparisons and logic over `device.driver`, `device.allowMultipleAllocations`, and attributes and capacities
//! with a literal domain and name; a list of functions known to behave the same; and macros (`exists`, `all`) over lists.
//! Everything else is left to Kubernetes: `cel.bind`, optionals, iterating over `device.attributes`, and any selector that
//! would take long. The number of steps is bounded before the first evaluation.

use std::collections::BTreeSet;

use kube_cel::cel::{
    Program,
    common::ast::{CallExpr, ComprehensionExpr, Expr, IdedExpr, LiteralValue, SelectExpr, operators},
};

use super::parse;

/// Maximum number of steps per evaluation, for any device. An expression of maximum length without loops takes a few
/// thousand.
const MAX_STEPS: u64 = 20_000;
/// Maximum number of values in a device's attribute (`ResourceSliceMaxAttributeValuesPerDevice` in the resource.k8s.io
/// API).
const MAX_VALUES: u64 = 48;

/// An attribute or capacity that a selector reads.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Name {
    pub(super) is_capacity: bool,
    pub(super) domain: String,
    pub(super) id: String,
}

/// A selector that can be evaluated here.
pub(super) struct Screened {
    pub(super) program: Program,
    /// The names that it reads, besides the driver and whether several claims may share the device.
    pub(super) names: BTreeSet<Name>,
}

/// Functions that behave the same in kube-cel and in Kubernetes. Negation is not among them: kube-cel panics on the
/// smallest integer.
const FUNCTIONS: [&str; 28] = [
    operators::CONDITIONAL,
    operators::LOGICAL_AND,
    operators::LOGICAL_OR,
    operators::LOGICAL_NOT,
    operators::NOT_STRICTLY_FALSE,
    operators::EQUALS,
    operators::NOT_EQUALS,
    operators::LESS,
    operators::LESS_EQUALS,
    operators::GREATER,
    operators::GREATER_EQUALS,
    operators::ADD,
    operators::SUBSTRACT,
    operators::MULTIPLY,
    operators::DIVIDE,
    operators::MODULO,
    operators::IN,
    "type",
    "startsWith",
    "endsWith",
    "contains",
    "quantity",
    "isQuantity",
    "semver",
    "isSemver",
    "compareTo",
    "isGreaterThan",
    "isLessThan",
];

/// Compiles a selector. An error says what only Kubernetes can evaluate.
pub(super) fn compile(expression: &str) -> Result<Screened, String> {
    let program = parse::program(expression)?;
    let mut screen = Screen { names: BTreeSet::new(), variables: Vec::new(), rounds: 1, steps: 0 };
    screen.expr(program.expression())?;
    Ok(Screened { program, names: screen.names })
}

struct Screen {
    names: BTreeSet<Name>,
    variables: Vec<String>,
    /// How often the current expression is evaluated.
    rounds: u64,
    /// Number of evaluations of all expressions so far.
    steps: u64,
}

impl Screen {
    fn expr(&mut self, expr: &IdedExpr) -> Result<(), String> {
        self.steps = self.steps.saturating_add(self.rounds);
        if self.steps > MAX_STEPS {
            return Err(format!("it may take more than {MAX_STEPS} steps per device"));
        }
        match &expr.expr {
            Expr::Literal(_) => Ok(()),
            Expr::Ident(name) => self.ident(name),
            Expr::Select(select) => self.select(select),
            Expr::Call(call) => self.call(call),
            Expr::List(list) if list.optional_indices.is_empty() => self.all(&list.elements),
            Expr::Comprehension(comprehension) => self.comprehension(comprehension),
            Expr::List(_) => Err("it has an optional list element".into()),
            Expr::Map(_) | Expr::Struct(_) => Err("it creates a map or a message".into()),
            Expr::Unspecified => Err("it has an empty expression".into()),
        }
    }

    fn all(&mut self, exprs: &[IdedExpr]) -> Result<(), String> {
        exprs.iter().try_for_each(|expr| self.expr(expr))
    }

    fn ident(&self, name: &String) -> Result<(), String> {
        match name.as_str() {
            "int" | "string" | "bool" => Ok(()),
            _ if self.variables.contains(name) => Ok(()),
            "device" => Err("it uses `device` as a whole".into()),
            _ => Err(format!("it uses {name:?}")),
        }
    }

    fn select(&mut self, select: &SelectExpr) -> Result<(), String> {
        if let Some((is_capacity, domain)) = domain(&select.operand) {
            self.names.insert(Name { is_capacity, domain: domain.to_owned(), id: select.field.clone() });
            return Ok(());
        }
        let known = ["driver", "allowMultipleAllocations"].contains(&select.field.as_str());
        if is_device(&select.operand) && known && !select.test {
            return Ok(());
        }
        Err(format!("it selects {:?} from something other than a domain of the device", select.field))
    }

    fn call(&mut self, call: &CallExpr) -> Result<(), String> {
        // device.attributes["domain"]["name"], and "name" in device.attributes["domain"]
        if let [first, second] = &call.args[..] {
            let (map, key) = if call.func_name == operators::IN { (second, first) } else { (first, second) };
            if [operators::INDEX, operators::IN].contains(&call.func_name.as_str())
                && let (Some((is_capacity, domain)), Some(name)) = (domain(map), literal(key))
            {
                self.names.insert(Name { is_capacity, domain: domain.to_owned(), id: name.to_owned() });
                return Ok(());
            }
        }
        if !FUNCTIONS.contains(&call.func_name.as_str()) {
            return Err(format!("it uses {:?}", call.func_name));
        }
        call.target.iter().try_for_each(|target| self.expr(target))?;
        self.all(&call.args)
    }

    fn comprehension(&mut self, comprehension: &ComprehensionExpr) -> Result<(), String> {
        let ComprehensionExpr { iter_range, iter_var, iter_var2, accu_var, accu_init, loop_cond, loop_step, result } =
            comprehension;
        if iter_var2.is_some() {
            return Err("it uses a macro with two variables".into());
        }
        let before = self.steps;
        self.expr(iter_range)?;
        self.expr(accu_init)?;
        let length = match &iter_range.expr {
            Expr::List(list) => u64::try_from(list.elements.len()).unwrap_or(u64::MAX),
            _ if self.rounds > 1 => return Err("it has a nested loop over a list that is not a literal".into()),
            // The list may be concatenated; every step can have added one list.
            _ => self.steps.saturating_sub(before).saturating_mul(MAX_VALUES),
        };
        let (outer_variables, outer_rounds) = (self.variables.len(), self.rounds);
        self.variables.extend([iter_var.clone(), accu_var.clone()]);
        // One more than the number of elements, so that the body of a loop over an empty list is checked too.
        self.rounds = outer_rounds.saturating_mul(length.saturating_add(1));
        let inside = [loop_cond, loop_step, result].into_iter().try_for_each(|expr| self.expr(expr));
        self.variables.truncate(outer_variables);
        self.rounds = outer_rounds;
        inside
    }
}

/// The domain, and whether it is a capacity domain, if the expression is `device.attributes["domain"]` or
/// `device.capacity["domain"]`.
fn domain(expr: &IdedExpr) -> Option<(bool, &str)> {
    let (map, domain) = match &expr.expr {
        Expr::Call(call) if call.func_name == operators::INDEX => match &call.args[..] {
            [map, key] => (map, literal(key)?),
            _ => return None,
        },
        Expr::Select(select) if !select.test => (&*select.operand, select.field.as_str()),
        _ => return None,
    };
    match &map.expr {
        Expr::Select(select) if is_device(&select.operand) && !select.test => match select.field.as_str() {
            "attributes" => Some((false, domain)),
            "capacity" => Some((true, domain)),
            _ => None,
        },
        _ => None,
    }
}

fn is_device(expr: &IdedExpr) -> bool {
    matches!(&expr.expr, Expr::Ident(name) if name == "device")
}

fn literal(expr: &IdedExpr) -> Option<&str> {
    match &expr.expr {
        Expr::Literal(LiteralValue::String(text)) => Some(text.inner()),
        _ => None,
    }
}
