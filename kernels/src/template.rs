//! Joins WGSL pieces and specialises them. Directives stand alone on a line behind `//`, so that a piece stays WGSL for an editor.
//!
//! ```text
//! //#include NAME            the piece wgsl/NAME.wgsl, the first time that it is requested
//! //#intrinsic NAME          one declaration of wgsl/intrinsics.wgsl, likewise
//! //#if EXPRESSION           lines for one case; `//#else if EXPRESSION` and `//#else` may follow
//! //#endif
//! //#for i in A..B           lines for each whole number from A up to, not including, B
//! //#end
//! //#for i in A..B join +    the same, with ` +` between the lines of two iterations: a sum over iterations
//! //#let NAME = EXPRESSION   a name for the rest of the loop, macro or piece
//! //#macro NAME(a, b)        lines that are expanded by name; they can use their parameters and the piece's values
//! //#end
//! //#expand NAME(A, B)       a macro's lines, with these expressions as its parameters
//! ${EXPRESSION}              the value, anywhere in a line, or in an expression of a directive: `//#if ${matrix}_INT8`
//! ```
//!
//! Expressions are constant: numbers and sizes, flags, texts, and the names of loops, lets and parameters. They have Rust's operators,
//! `min(a, b)`, `max(a, b)`, `div_ceil(a, b)`, `pow(a, b)`, and `text[i]`, a letter: `${"xyzw"[i]}`. An unknown name is an error with its line.
//!
//! ```text
//! //#for row in 0..ROWS
//! var sum_${row} = 0.0;
//! //#for u in 0..UNROLL
//! sum_${row} += weight_${u} * input[at + ${row * UNROLL + u}u];
//! //#end
//! //#if BIAS && row < ROWS - 1
//! sum_${row} += bias[row];
//! //#endif
//! //#end
//! ```

mod expression;
mod piece;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::rc::Rc;

use expression::{Value, evaluate, evaluate_list};
use piece::{Block, Macro, Node};

use crate::intrinsics;

/// Names and values that a piece may use.
#[derive(Default)]
pub struct Values {
    known: BTreeMap<Cow<'static, str>, Value>,
    constants: String,
}

impl Values {
    /// A condition for `//#if`.
    pub fn flag(mut self, name: impl Into<Cow<'static, str>>, on: bool) -> Values {
        self.known.insert(name.into(), Value::Flag(on));
        self
    }

    /// A text for `${NAME}`.
    pub fn text(mut self, name: impl Into<Cow<'static, str>>, value: impl Display) -> Values {
        self.known.insert(name.into(), Value::Text(value.to_string()));
        self
    }

    /// A number for expressions alone.
    pub fn count(mut self, name: impl Into<Cow<'static, str>>, value: usize) -> Values {
        self.known.insert(name.into(), Value::Number(i64::try_from(value).expect("a count of something in memory")));
        self
    }

    /// A number for expressions, and `const NAME: u32 = value;` before the piece.
    pub fn size(mut self, name: impl Into<Cow<'static, str>>, value: usize) -> Values {
        let name = name.into();
        self.constants += &format!("const {name}: u32 = {value}u;\n");
        self.count(name, value)
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
/// On an unknown directive or name: the sources of kernels are part of this crate.
pub fn render(piece: &str, values: &Values) -> String {
    let mut renderer = Renderer::new(values);
    match renderer.piece("kernel.wgsl", piece) {
        Ok(()) => format!("{}{}{}", unicorn_artifact::step::wgsl(), values.constants, renderer.out),
        Err(error) => panic!("{error}"),
    }
}

struct Renderer<'a> {
    values: &'a Values,
    /// Names of open loops, lets and parameters; a later one hides an earlier one of the same name.
    locals: Vec<(&'a str, Value)>,
    macros: BTreeMap<&'a str, Rc<Macro<'a>>>,
    /// Pieces that have been included: each is included once.
    included: BTreeSet<&'a str>,
    /// Piece that is being rendered, for errors.
    piece: &'a str,
    out: String,
}

impl<'a> Renderer<'a> {
    fn new(values: &'a Values) -> Renderer<'a> {
        let (locals, macros, included) = (Vec::new(), BTreeMap::new(), BTreeSet::new());
        Renderer { values, locals, macros, included, piece: "", out: String::new() }
    }

    fn piece(&mut self, name: &'a str, text: &'a str) -> Result<(), String> {
        let block = piece::parse(name, text)?;
        let (piece, locals) = (std::mem::replace(&mut self.piece, name), std::mem::take(&mut self.locals));
        self.block(&block)?;
        (self.piece, self.locals) = (piece, locals);
        Ok(())
    }

    fn block(&mut self, block: &Block<'a>) -> Result<(), String> {
        for (line, node) in block {
            // Errors inside of a node have a line of their own.
            let here = |error: String| {
                if error.starts_with("line ") { error } else { format!("line {line} of {}: {error}", self.piece) }
            };
            match node {
                Node::Text(text) => {
                    let text = self.substitute(text).map_err(here)?;
                    self.out.push_str(&text);
                    self.out.push('\n');
                }
                Node::Include(name) => {
                    let text = include(name).ok_or_else(|| here(format!("unknown piece `{name}`")))?;
                    if self.included.insert(name) {
                        self.piece(name, text)?;
                    }
                }
                Node::Intrinsic(name) => {
                    let text =
                        intrinsics::declaration(name).ok_or_else(|| here(format!("unknown intrinsic `{name}`")))?;
                    if self.included.insert(name) {
                        self.piece("intrinsics.wgsl", text)?;
                    }
                }
                Node::Let(name, expression) => {
                    let value = self.evaluate(expression).map_err(here)?;
                    self.locals.push((name, value));
                }
                Node::If(branches) => {
                    for (condition, block) in branches {
                        let holds = condition.map_or(Ok(true), |condition| self.evaluate(condition)?.flag());
                        if holds.map_err(here)? {
                            self.block(block)?;
                            break;
                        }
                    }
                }
                Node::For { name, begin, end, join, block } => {
                    let number = |text| self.evaluate(text)?.number();
                    let range = number(begin).map_err(here)?..number(end).map_err(here)?;
                    if range.is_empty() && join.is_some() {
                        return Err(here(format!("a joined loop needs an iteration, found {range:?}")));
                    }
                    let last = range.end - 1;
                    for iteration in range {
                        let locals = self.locals.len();
                        self.locals.push((name, Value::Number(iteration)));
                        self.block(block)?;
                        self.locals.truncate(locals);
                        if let Some(join) = join.filter(|_| iteration != last) {
                            self.out.truncate(self.out.trim_end().len());
                            self.out += &format!(" {join}\n");
                        }
                    }
                }
                Node::Macro(name, definition) => {
                    self.macros.insert(name, Rc::clone(definition));
                }
                Node::Expand(name, arguments) => {
                    let values = self.arguments(name, arguments).map_err(here)?;
                    let definition = Rc::clone(&self.macros[name]);
                    let locals = std::mem::replace(&mut self.locals, values);
                    let piece = std::mem::replace(&mut self.piece, definition.piece);
                    self.block(&definition.block)?;
                    (self.piece, self.locals) = (piece, locals);
                }
            }
        }
        Ok(())
    }

    /// Parameters of the macro `name` for these arguments.
    fn arguments(&self, name: &str, arguments: &str) -> Result<Vec<(&'a str, Value)>, String> {
        let definition = self.macros.get(name).ok_or_else(|| format!("unknown macro `{name}`"))?;
        let values = match arguments {
            "" => Vec::new(),
            arguments => evaluate_list(&self.substitute(arguments)?, &|name| self.value_of(name))?,
        };
        let (expected, found) = (definition.parameters.len(), values.len());
        if expected != found {
            return Err(format!("macro `{name}` has {expected} parameters, found {found} arguments"));
        }
        Ok(definition.parameters.iter().copied().zip(values).collect())
    }

    fn value_of(&self, name: &str) -> Option<Value> {
        let local = self.locals.iter().rev().find(|(local, _)| *local == name).map(|(_, value)| value);
        local.or_else(|| self.values.known.get(name)).cloned()
    }

    fn evaluate(&self, expression: &str) -> Result<Value, String> {
        evaluate(&self.substitute(expression)?, &|name| self.value_of(name))
    }

    fn substitute(&self, line: &str) -> Result<String, String> {
        let mut out = String::new();
        let mut rest = line;
        while let Some((before, after)) = rest.split_once("${") {
            let (expression, tail) = after.split_once('}').ok_or("`${` without `}`")?;
            out += before;
            out += &evaluate(expression, &|name| self.value_of(name))?.to_string();
            rest = tail;
        }
        Ok(out + rest)
    }
}

/// A piece of `wgsl/` by its name.
fn include(name: &str) -> Option<&'static str> {
    let piece = match name {
        "activation" => include_str!("wgsl/activation.wgsl"),
        "codebook" => include_str!("wgsl/codebook.wgsl"),
        "choose_experts" => include_str!("wgsl/choose_experts.wgsl"),
        "completion" => include_str!("wgsl/completion.wgsl"),
        "cache" => include_str!("wgsl/cache.wgsl"),
        "counter_sync" => include_str!("wgsl/counter_sync.wgsl"),
        "clear_fixed_sums" => include_str!("wgsl/clear_fixed_sums.wgsl"),
        "encode" => include_str!("wgsl/encode.wgsl"),
        "encode_row" => include_str!("wgsl/encode_row.wgsl"),
        "expert_of_workgroup" => include_str!("wgsl/expert_of_workgroup.wgsl"),
        "expert_tile_rows" => include_str!("wgsl/expert_tile_rows.wgsl"),
        "fused_tail" => include_str!("wgsl/fused_tail.wgsl"),
        "gemm_results" => include_str!("wgsl/gemm_results.wgsl"),
        "group_weights" => include_str!("wgsl/group_weights.wgsl"),
        "last_seen" => include_str!("wgsl/last_seen.wgsl"),
        "lane_results" => include_str!("wgsl/lane_results.wgsl"),
        "halves" => include_str!("wgsl/halves.wgsl"),
        "gemm_halves" => include_str!("wgsl/gemm_halves.wgsl"),
        "tanh" => include_str!("wgsl/tanh.wgsl"),
        "delta_gates" => include_str!("wgsl/delta_gates.wgsl"),
        "recurrent_state" => include_str!("wgsl/recurrent_state.wgsl"),
        "reduce" => include_str!("wgsl/reduce.wgsl"),
        "int8" => include_str!("wgsl/int8.wgsl"),
        "int4_differences" => include_str!("wgsl/int4_differences.wgsl"),
        "multiply_across" => include_str!("wgsl/multiply_across.wgsl"),
        "multiply_blocks" => include_str!("wgsl/multiply_blocks.wgsl"),
        "norm_row" => include_str!("wgsl/norm_row.wgsl"),
        "pairs" => include_str!("wgsl/pairs.wgsl"),
        "patch_place" => include_str!("wgsl/patch_place.wgsl"),
        "rope_position" => include_str!("wgsl/rope_position.wgsl"),
        "store_kv" => include_str!("wgsl/store_kv.wgsl"),
        "store_newest" => include_str!("wgsl/store_newest.wgsl"),
        "result" => include_str!("wgsl/result.wgsl"),
        "row_param" => include_str!("wgsl/row_param.wgsl"),
        "sink" => include_str!("wgsl/sink.wgsl"),
        "split" => include_str!("wgsl/split.wgsl"),
        "vectors" => include_str!("wgsl/vectors.wgsl"),
        "weights" => include_str!("wgsl/weights.wgsl"),
        _ => return None,
    };
    Some(piece)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expand(text: &str, values: Values) -> Result<String, String> {
        let mut renderer = Renderer::new(&values);
        renderer.piece("test", text).map(|()| renderer.out.clone())
    }

    fn lines(text: &str, values: Values) -> Vec<String> {
        expand(text, values).unwrap().lines().map(Into::into).collect()
    }

    #[test]
    fn branches_and_texts() {
        let values = Values::default().flag("A", true).flag("B", false).text("x", 7).size("N", 3);
        let text = render("//#if A\na${x}\n//#if B\nb\n//#else\nc\n//#endif\n//#endif\n//#if !A\nd\n//#endif", &values);
        assert!(text.ends_with("const N: u32 = 3u;\na7\nc\n"), "{text}");
        let text = "//#if N < 2\na\n//#else if N - 1 == 2 && A\nb\n//#else\nc\n//#endif";
        assert_eq!(lines(text, values), ["b"]);
    }

    #[test]
    fn loops_nest_and_their_names_are_numbers() {
        let text = "//#for i in 0..N\n//#let twice = 2 * i\n//#for j in i..2\nsum_${i}_${j} += x[${twice + j}u];\n//#end\n//#end";
        let expected = ["sum_0_0 += x[0u];", "sum_0_1 += x[1u];", "sum_1_1 += x[3u];"];
        assert_eq!(lines(text, Values::default().count("N", 2)), expected);
        assert!(lines(text, Values::default().count("N", 0)).is_empty());
    }

    #[test]
    fn joined_iterations_make_one_expression() {
        let text = "let sum =\n//#for i in 0..3 join +\n    x_${\"xyz\"[i]}\n//#end\n;";
        assert_eq!(lines(text, Values::default()), ["let sum =", "    x_x +", "    x_y +", "    x_z", ";"]);
        assert!(expand("//#for i in 0..0 join +\nx\n//#end", Values::default()).is_err());
    }

    #[test]
    fn macros_can_use_their_parameters_and_the_values() {
        let text = "//#macro load(name, at)\nlet ${name}_${at} = ${BUFFER}[${at}];\n//#end\n\
                    //#for i in 0..2\n//#expand load(\"x\", i + 1)\n//#end";
        let values = || Values::default().text("BUFFER", "input");
        assert_eq!(lines(text, values()), ["let x_1 = input[1];", "let x_2 = input[2];"]);
        assert!(expand(&text.replace(", i + 1", ""), values()).unwrap_err().contains("2 parameters"));
    }

    #[test]
    fn errors_name_the_line() {
        for (text, expected) in [
            ("a\n${M}", "line 2 of test: unknown name `M`"),
            ("a\n//#for i in 0..M\n//#end", "line 2 of test: unknown name `M`"),
            ("//#for i in 0..1\n//#if i < B\n//#endif\n//#end", "line 2 of test: unknown name `B`"),
            ("//#for i in 0..1\n//#end\n${i}", "line 3 of test: unknown name `i`"),
            ("//#macro m(a)\n${b}\n//#end\n//#expand m(1)", "line 2 of test: unknown name `b`"),
            ("//#include nothing", "line 1 of test: unknown piece `nothing`"),
            ("\n//#if true", "line 2 of test: unknown name `true`"),
            ("//#expand m(1)", "line 1 of test: unknown macro `m`"),
        ] {
            let text = if text.ends_with("//#if true") { format!("{text}\n//#endif") } else { text.to_owned() };
            assert_eq!(expand(&text, Values::default()), Err(expected.to_owned()), "{text}");
        }
        for text in ["//#for i in 0..1", "//#if A\n//#end", "//#endif", "//#for i of 3\n//#end", "//#unroll", "//#else"]
        {
            assert!(expand(text, Values::default()).is_err(), "{text}");
        }
    }
}
