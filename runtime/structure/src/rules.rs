//! Rules of a grammar in llguidance's form of Lark, made one by one, with numbers for names.

use std::fmt::Write;

use llguidance::api::TopLevelGrammar;
use serde_json::{Map, Value, json};

/// Most rules of values; what would need more is any value.
const MAX_RULES: usize = 2000;
/// Most parts whose every order has rules: one for each set of them.
const MAX_PERMUTED: usize = 5;
/// Longest text, or list, whose length is bounded: a grammar grows with the bound.
const MAX_COUNT: u64 = 1000;

/// Rules so far.
#[derive(Default)]
pub(crate) struct Rules {
    text: String,
    count: usize,
}

impl Rules {
    /// Adds a rule and returns its name.
    pub(crate) fn rule(&mut self, body: &str) -> String {
        self.rule_with("", body)
    }

    /// The same of a text that ends where it first matches.
    pub(crate) fn lazy_rule(&mut self, body: &str) -> String {
        self.rule_with("[lazy]", body)
    }

    fn rule_with(&mut self, attributes: &str, body: &str) -> String {
        self.count += 1;
        let name = format!("r{}", self.count);
        writeln!(self.text, "{name}{attributes}: {body}").expect("writing to a String");
        name
    }

    /// Whether no more rules should be added.
    pub(crate) fn is_full(&self) -> bool {
        self.count > MAX_RULES
    }

    /// Rule of these parts in their order, with `separator` between two. A part is a rule, and whether it has to be there.
    pub(crate) fn sequence(&mut self, parts: Vec<(String, bool)>, separator: &str) -> String {
        // What may follow the parts before: no part yet, or one, behind which comes a separator.
        let (mut first, mut behind) = (self.rule("\"\""), self.rule("\"\""));
        for (part, is_required) in parts.into_iter().rev() {
            let skipped = |rest: &str| if is_required { String::new() } else { format!(" | {rest}") };
            let bodies = [
                format!("{part} {behind}{}", skipped(&first)),
                format!("{separator} {part} {behind}{}", skipped(&behind)),
            ];
            [first, behind] = bodies.map(|body| self.rule(&body));
        }
        first
    }

    /// The same in any order: models do not always keep to the one that a tool declares. Of more than [`MAX_PERMUTED`] parts, that is
    /// the order of the parts, or those that have to be there in any order and then others, each any number of times.
    pub(crate) fn any_order(&mut self, parts: Vec<(String, bool)>, separator: &str) -> String {
        let (required, others): (Vec<_>, Vec<_>) = parts.iter().cloned().partition(|(_, is_required)| *is_required);
        if self.count > MAX_RULES / 2 || required.len() > MAX_PERMUTED {
            return self.sequence(parts, separator);
        }
        if parts.len() <= MAX_PERMUTED {
            return self.permutation(&parts, separator, "\"\"");
        }
        let other = others.iter().map(|(part, _)| part.as_str()).collect::<Vec<_>>().join(" | ");
        let other = self.rule(&other);
        let permuted = match required.is_empty() {
            true => format!("({other} ({separator} {other})*)?"),
            false => self.permutation(&required, separator, &format!("({separator} {other})*")),
        };
        let ordered = self.sequence(parts, separator);
        self.rule(&format!("{ordered} | {permuted}"))
    }

    /// Rule of these parts in any order, each once at most, and then `end`.
    fn permutation(&mut self, parts: &[(String, bool)], separator: &str, end: &str) -> String {
        let all = (1_usize << parts.len()) - 1;
        // The rule of what may follow each set of parts, a bit for each part.
        let mut behind = vec![String::new(); all + 1];
        for found in (0..=all).rev() {
            let separator = if found == 0 { "" } else { separator };
            let missing = || parts.iter().enumerate().filter(|(number, _)| found >> number & 1 == 0);
            let mut bodies: Vec<String> = missing()
                .map(|(number, (part, _))| format!("{separator} {part} {}", behind[found | 1 << number]))
                .collect();
            if missing().all(|(_, (_, is_required))| !is_required) {
                bodies.push(end.to_owned());
            }
            behind[found] = self.rule(&bodies.join(" | "));
        }
        behind.swap_remove(0)
    }

    /// The grammar of one of `starts`, which may use the rules of `common` too.
    pub(crate) fn grammar(self, starts: &[String], common: &str) -> TopLevelGrammar {
        TopLevelGrammar::from_lark(format!("start: {}\n{}{common}", starts.join(" | "), self.text))
    }
}

/// A text as a literal of the grammar.
pub(crate) fn literal(text: &str) -> String {
    json!(text).to_string()
}

/// Values that an enumeration or a constant lists.
pub(crate) fn constants(schema: &Value) -> Option<Vec<Value>> {
    let listed = schema.get("enum").and_then(Value::as_array).cloned();
    listed.or_else(|| Some(vec![schema.get("const")?.clone()])).filter(|values| !values.is_empty())
}

/// Schemas of which one describes a value.
pub(crate) fn alternatives(schema: &Value) -> Option<&Vec<Value>> {
    let mut lists = ["anyOf", "oneOf"].into_iter().filter_map(|name| schema.get(name)?.as_array());
    lists.find(|list| !list.is_empty())
}

/// What the reference of a schema leads to; `None`: it is none. `Some(None)`: it leads nowhere.
pub(crate) fn referred<'s>(schema: &Value, root: &'s Value) -> Option<Option<&'s Value>> {
    let target = schema.get("$ref").and_then(Value::as_str)?;
    Some(target.strip_prefix('#').and_then(|pointer| root.pointer(pointer)))
}

/// Whether an object has to have a property.
pub(crate) fn is_required(schema: &Value, name: &str) -> bool {
    let names = schema.get("required").and_then(Value::as_array);
    names.is_some_and(|names| names.iter().any(|required| required == name))
}

/// The properties of an object, if its schema lists them.
pub(crate) fn properties(schema: &Value) -> Option<&Map<String, Value>> {
    schema.get("properties").and_then(Value::as_object)
}

/// Least and largest count, as `{0,5}` repeats an expression; `None`: there is no bound.
pub(crate) fn counts(schema: &Value, least: &str, most: &str) -> Option<(u64, Option<u64>)> {
    let bound = |name: &str| schema.get(name).and_then(Value::as_u64).filter(|bound| *bound <= MAX_COUNT);
    let (least, most) = (bound(least), bound(most));
    (least.is_some() || most.is_some()).then(|| (least.unwrap_or(0), most))
}

/// How an expression is repeated between these counts.
pub(crate) fn repeated((least, most): (u64, Option<u64>)) -> String {
    let most = most.map(|most| most.max(least).to_string()).unwrap_or_default();
    format!("{{{least},{most}}}")
}
