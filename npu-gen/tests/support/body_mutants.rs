//! Single mistakes put into the operations of a body, one at a time.

use unicorn_npu::emit::{Module, Op, Value};

/// A body with one mistake.
pub struct BodyMutant {
    pub what: String,
    pub module: Module,
}

/// Every mistake that this module knows: constants, kinds of operations, operands, carried values, and operations that are missing.
pub fn body_mutants(original: &Module) -> Vec<BodyMutant> {
    let mut mutants = Vec::new();
    let mut all = Vec::new();
    paths(&original.ops, &mut Vec::new(), &mut all);
    for path in &all {
        for (what, change) in changes(original, path) {
            let mut module = original.clone();
            change(&mut module, path);
            // The first contraction has none before it.
            if module == *original {
                continue;
            }
            let op = op_at(&original.ops, path);
            mutants.push(BodyMutant { what: format!("{} {path:?}: {what}", op.name), module });
        }
    }
    mutants
}

/// Where an operation is: its index in the function, then in each region.
type Path = Vec<usize>;
type Change = Box<dyn Fn(&mut Module, &Path)>;

fn paths(ops: &[Op], outer: &mut Path, all: &mut Vec<Path>) {
    for (index, op) in ops.iter().enumerate() {
        outer.push(index);
        all.push(outer.clone());
        op.regions.iter().for_each(|region| paths(&region.ops, outer, all));
        outer.pop();
    }
}

fn op_at<'o>(ops: &'o [Op], path: &[usize]) -> &'o Op {
    match path {
        [index] => &ops[*index],
        [index, rest @ ..] => op_at(&ops[*index].regions[0].ops, rest),
        [] => panic!("a path has an index"),
    }
}

fn block_at<'o>(ops: &'o mut Vec<Op>, path: &[usize]) -> (&'o mut Vec<Op>, usize) {
    match path {
        [index] => (ops, *index),
        [index, rest @ ..] => block_at(&mut ops[*index].regions[0].ops, rest),
        [] => panic!("a path has an index"),
    }
}

fn changed(change: impl Fn(&mut Op) + 'static) -> Change {
    Box::new(move |module, path| {
        let (block, index) = block_at(&mut module.ops, path);
        change(&mut block[index]);
    })
}

fn changes(module: &Module, path: &Path) -> Vec<(String, Change)> {
    let op = op_at(&module.ops, path);
    let is_vector = op.results.iter().any(|value| module.ty(*value).starts_with("vector<"));
    let mut found: Vec<(String, Change)> = Vec::new();
    let mut named = |what: &str, change: Change| found.push((what.to_owned(), change));
    match op.name {
        "arith.constant" => {
            let text = op.attribute("value").to_owned();
            let more = incremented(&text);
            named(&format!("{text} becomes {more}"), changed(move |op| set(op, "value", &more)));
        }
        "arith.addi" => {
            // Of 0, a difference is the sum.
            if !is_zero(module, op.operands[1]) {
                named("a difference", changed(|op| op.name = "arith.subi"));
            }
            named("its first operand alone", changed(|op| op.operands[1] = op.operands[0]));
        }
        "arith.muli" => named("a sum", changed(|op| op.name = "arith.addi")),
        "arith.shrsi" => named("without sign", changed(|op| op.name = "arith.shrui")),
        "arith.extsi" if is_vector => named("without sign", changed(|op| op.name = "arith.extui")),
        "arith.mulf" => named("a sum", changed(|op| op.name = "arith.addf")),
        "vector.store" => named("removed", removed()),
        "scf.for" if op.results.is_empty() => named("removed", removed()),
        "scf.yield" if op.operands.len() > 1 => named("values in turn", changed(|op| op.operands.rotate_left(1))),
        "vector.load" => {
            let base = op.operands[0];
            for other in same_elements(module, base) {
                let name = module.values[other.0].name.clone();
                named(&format!("of {name}"), changed(move |op| op.operands[0] = other));
            }
        }
        "vector.contract" => {
            named("the sums of the one before", Box::new(forget_sum));
        }
        _ => {}
    }
    found
}

fn removed() -> Change {
    Box::new(|module, path| {
        let (block, index) = block_at(&mut module.ops, path);
        block.remove(index);
    })
}

/// Adds to the sums of the contraction before it in place of its own.
fn forget_sum(module: &mut Module, path: &Path) {
    let (block, index) = block_at(&mut module.ops, path);
    let before = block[..index].iter().rfind(|op| op.name == "vector.contract").map(|op| op.results[0]);
    if let Some(sum) = before {
        block[index].operands[2] = sum;
    }
}

/// Whether a value is the constant 0.
fn is_zero(module: &Module, value: Value) -> bool {
    fn defines(ops: &[Op], value: Value) -> Option<&Op> {
        let of = |op: &&Op| op.results.contains(&value);
        let inner = || ops.iter().flat_map(|op| &op.regions).find_map(|region| defines(&region.ops, value));
        ops.iter().find(of).or_else(inner)
    }
    defines(&module.ops, value).is_some_and(|op| op.attribute("value").starts_with("0 : "))
}

/// Other arguments of the function with elements of the same type.
fn same_elements(module: &Module, base: Value) -> Vec<Value> {
    let element = |value: Value| module.ty(value).rsplit('x').next().unwrap_or_default();
    let arguments = &module.ops[0].regions[0].arguments;
    arguments.iter().copied().filter(|other| *other != base && element(*other) == element(base)).collect()
}

fn set(op: &mut Op, name: &str, text: &str) {
    let attribute = op.attributes.iter_mut().find(|(found, _)| *found == name).expect("the operation has it");
    text.clone_into(&mut attribute.1);
}

/// `3 : index` becomes `4 : index`, `dense<0> : …` becomes `dense<1> : …`.
fn incremented(text: &str) -> String {
    let (value, ty) = text.split_once(" : ").expect("a constant has a type");
    let number = value.trim_start_matches("dense<").trim_end_matches('>');
    let more = match number.parse::<i64>() {
        Ok(number) => (number + 1).to_string(),
        Err(_) => format!("{:e}", number.parse::<f64>().expect("a number") + 1.0).replace("e0", ".0e0"),
    };
    format!("{} : {ty}", value.replace(number, &more))
}
