//! Compiles a selector, if this side is sure to understand it as Kubernetes does. Pure.
//!
//! What passes: comparisons and logic over `device.driver`, `device.allowMultipleAllocations` and attributes and capacities
//! whose domain and name are written out, a list of functions known to behave alike, and macros (`exists`, `all`) over
//! lists. Everything else, such as `cel.bind`, optionals or walking `device.attributes`, is for Kubernetes to answer; so is
//! what takes long: the steps of an evaluation are bounded before there is one.

use std::collections::BTreeSet;

use kube_cel::cel::{
    Program,
    common::ast::{CallExpr, ComprehensionExpr, Expr, IdedExpr, LiteralValue, SelectExpr, operators},
};

use super::parse;

/// The most steps that one evaluation may take, for any device. An expression of the greatest length that loops over
/// nothing takes some thousands.
const MAX_STEPS: u64 = 20_000;
/// Most values of a device's attribute (`ResourceSliceMaxAttributeValuesPerDevice` of the resource.k8s.io API).
const MAX_VALUES: u64 = 48;

/// An attribute or capacity that a selector looks at.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Name {
    pub(super) is_capacity: bool,
    pub(super) domain: String,
    pub(super) id: String,
}

/// A selector that can be evaluated here.
pub(super) struct Screened {
    pub(super) program: Program,
    /// All that it looks at, besides the driver and whether several claims may share the device.
    pub(super) names: BTreeSet<Name>,
}

/// Functions that are the same on both sides. Not negation: of the least integer it panics here.
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

/// Compiles; an error says what only Kubernetes can evaluate.
pub(super) fn compile(expression: &str) -> Result<Screened, String> {
    let program = parse::program(expression)?;
    let mut screen = Screen { names: BTreeSet::new(), variables: Vec::new(), rounds: 1, steps: 0 };
    screen.expr(program.expression())?;
    Ok(Screened { program, names: screen.names })
}

struct Screen {
    names: BTreeSet<Name>,
    variables: Vec<String>,
    /// How often what is looked at now is evaluated.
    rounds: u64,
    /// Evaluations of all parts so far.
    steps: u64,
}

impl Screen {
    fn expr(&mut self, expr: &IdedExpr) -> Result<(), String> {
        self.steps = self.steps.saturating_add(self.rounds);
        if self.steps > MAX_STEPS {
            return Err(format!("it may take more than {MAX_STEPS} steps for a device"));
        }
        match &expr.expr {
            Expr::Literal(_) => Ok(()),
            Expr::Ident(name) => self.ident(name),
            Expr::Select(select) => self.select(select),
            Expr::Call(call) => self.call(call),
            Expr::List(list) if list.optional_indices.is_empty() => self.all(&list.elements),
            Expr::Comprehension(comprehension) => self.comprehension(comprehension),
            Expr::List(_) => Err("it has an optional element in a list".into()),
            Expr::Map(_) | Expr::Struct(_) => Err("it makes a map".into()),
            Expr::Unspecified => Err("it has an empty part".into()),
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
        Err(format!("it selects {:?} from what is no domain of the device", select.field))
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
            return Err("it is a macro of two variables".into());
        }
        let before = self.steps;
        self.expr(iter_range)?;
        self.expr(accu_init)?;
        let length = match &iter_range.expr {
            Expr::List(list) => u64::try_from(list.elements.len()).unwrap_or(u64::MAX),
            _ if self.rounds > 1 => return Err("it loops in a loop over a list that is not written out".into()),
            // Joined of lists, of which each step can have brought one.
            _ => self.steps.saturating_sub(before).saturating_mul(MAX_VALUES),
        };
        let (outer_variables, outer_rounds) = (self.variables.len(), self.rounds);
        self.variables.extend([iter_var.clone(), accu_var.clone()]);
        // One more than there are elements: of an empty list the inside is looked at all the same.
        self.rounds = outer_rounds.saturating_mul(length.saturating_add(1));
        let inside = [loop_cond, loop_step, result].into_iter().try_for_each(|expr| self.expr(expr));
        self.variables.truncate(outer_variables);
        self.rounds = outer_rounds;
        inside
    }
}

/// The domain, and whether of capacities, if the expression is `device.attributes["domain"]` or `device.capacity["domain"]`.
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
