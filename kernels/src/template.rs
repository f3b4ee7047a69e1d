//! Joins WGSL pieces and specialises them: `#include`, `#if`/`#else`/`#endif` on flags, and `${NAME}` for text.
//!
//! Directives stand alone on a line behind `//`, so that a piece stays WGSL for an editor:
//!
//! ```text
//! //#include reduce
//! //#if BIAS
//! value += bias[row];
//! //#endif
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;

/// Names and values that a piece may use.
#[derive(Default)]
pub struct Values {
    flags: BTreeMap<&'static str, bool>,
    texts: BTreeMap<&'static str, String>,
    constants: String,
}

impl Values {
    /// A condition for `//#if`.
    pub fn flag(mut self, name: &'static str, on: bool) -> Values {
        self.flags.insert(name, on);
        self
    }

    /// Text for `${NAME}`.
    pub fn text(mut self, name: &'static str, value: impl Display) -> Values {
        self.texts.insert(name, value.to_string());
        self
    }

    /// `const NAME: u32 = value;` before the piece.
    pub fn size(mut self, name: &'static str, value: usize) -> Values {
        self.constants += &format!("const {name}: u32 = {value}u;\n");
        self
    }

    /// `const NAME: f32 = value;` before the piece, exact to the last bit.
    pub fn number(mut self, name: &'static str, value: f32) -> Values {
        self.constants += &format!("const {name}: f32 = {value:?}f;\n");
        self
    }
}

/// The finished WGSL of `piece`: step declarations, constants, then the piece.
///
/// # Panics
/// On an unknown include, flag or text: a kernel's source is ours.
pub fn render(piece: &str, values: &Values) -> String {
    let mut out = format!("{}{}", unicorn_artifact::step::wgsl(), values.constants);
    render_into(piece, values, &mut BTreeSet::new(), &mut out);
    out
}

/// `included` are pieces that are there already: each is wanted once, by however many.
fn render_into<'a>(piece: &'a str, values: &Values, included: &mut BTreeSet<&'a str>, out: &mut String) {
    // One entry an open #if: whether its current branch is written.
    let mut branches: Vec<bool> = Vec::new();
    for line in piece.lines() {
        let directive = line.trim_start().strip_prefix("//#");
        match directive.map(|text| text.split_once(' ').unwrap_or((text, ""))) {
            Some(("if", condition)) => branches.push(holds(condition.trim(), values)),
            Some(("else", _)) => {
                let branch = branches.last_mut().expect("#else follows #if");
                *branch = !*branch;
            }
            Some(("endif", _)) => {
                branches.pop().expect("#endif follows #if");
            }
            _ if branches.contains(&false) => {}
            Some(("include", name)) => {
                if included.insert(name.trim()) {
                    render_into(include(name.trim()), values, included, out);
                }
            }
            Some((other, _)) => panic!("unknown directive #{other}"),
            None => {
                out.push_str(&substitute(line, values));
                out.push('\n');
            }
        }
    }
    assert!(branches.is_empty(), "#if without #endif");
}

fn holds(condition: &str, values: &Values) -> bool {
    let (name, wanted) = condition.strip_prefix('!').map_or((condition, true), |name| (name, false));
    *values.flags.get(name).unwrap_or_else(|| panic!("unknown flag {name}")) == wanted
}

fn substitute(line: &str, values: &Values) -> String {
    let mut out = String::new();
    let mut rest = line;
    while let Some((before, after)) = rest.split_once("${") {
        let (name, tail) = after.split_once('}').expect("${ is closed on its line");
        out.push_str(before);
        out.push_str(values.texts.get(name).unwrap_or_else(|| panic!("unknown text {name}")));
        rest = tail;
    }
    out + rest
}

fn include(name: &str) -> &'static str {
    match name {
        "activation" => include_str!("wgsl/activation.wgsl"),
        "arrive" => include_str!("wgsl/arrive.wgsl"),
        "cache" => include_str!("wgsl/cache.wgsl"),
        "chain" => include_str!("wgsl/chain.wgsl"),
        "clear_sums" => include_str!("wgsl/clear_sums.wgsl"),
        "encode" => include_str!("wgsl/encode.wgsl"),
        "encode_row" => include_str!("wgsl/encode_row.wgsl"),
        "fence" => include_str!("wgsl/fence.wgsl"),
        "gemm_results" => include_str!("wgsl/gemm_results.wgsl"),
        "halves" => include_str!("wgsl/halves.wgsl"),
        "gemm_halves" => include_str!("wgsl/gemm_halves.wgsl"),
        "tanh" => include_str!("wgsl/tanh.wgsl"),
        "reduce" => include_str!("wgsl/reduce.wgsl"),
        "int8" => include_str!("wgsl/int8.wgsl"),
        "next" => include_str!("wgsl/next.wgsl"),
        "pairs" => include_str!("wgsl/pairs.wgsl"),
        "put" => include_str!("wgsl/put.wgsl"),
        "put_newest" => include_str!("wgsl/put_newest.wgsl"),
        "result" => include_str!("wgsl/result.wgsl"),
        "row_param" => include_str!("wgsl/row_param.wgsl"),
        "split" => include_str!("wgsl/split.wgsl"),
        "vectors" => include_str!("wgsl/vectors.wgsl"),
        "weights" => include_str!("wgsl/weights.wgsl"),
        _ => panic!("unknown include {name}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn branches_and_texts() {
        let values = Values::default().flag("A", true).flag("B", false).text("x", 7).size("N", 3);
        let text = render("//#if A\na${x}\n//#if B\nb\n//#else\nc\n//#endif\n//#endif\n//#if !A\nd\n//#endif", &values);
        assert!(text.ends_with("const N: u32 = 3u;\na7\nc\n"), "{text}");
    }
}
