//! Parameters of the kernel, its bindings, and the numbers that its WGSL takes.

use serde::{Deserialize, Serialize};

use crate::activations::ActivationFormat;
use crate::chain;
use crate::spec::{BindingSpec, Number, Role, bindings, declarations_of_chain};
use crate::sums::values_wgsl;
use crate::template::{Values, render};

/// Parameters of one norm; the same record describes a matmul's prologue.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct NormSpec {
    pub width: usize,
    /// Elements between rows, the same for all operands.
    pub stride: usize,
    pub eps: Number,
    /// Sum with the residual first, and store the sum.
    pub add: bool,
    /// Norm the input before the sum.
    pub post_norm: bool,
    /// The input is `sums`, two words an element.
    pub sums: bool,
    /// How the result is stored.
    pub format: ActivationFormat,
    /// Of the kernel of its own: a multiple of 8.
    pub lanes: usize,
    pub subgroup_size: u32,
    /// Of the kernel of its own: waits for the dispatch before it, and counts itself for the next, without a barrier: see `chain`.
    pub chained: bool,
}

impl NormSpec {
    /// The operands, without step and output.
    pub(crate) fn data_roles(&self) -> Vec<Role> {
        let mut roles = vec![if self.sums { Role::InputSums } else { Role::InputQuads }, Role::NormWeight];
        if self.add {
            roles.extend([Role::Residual, Role::Sum]);
        }
        if self.post_norm {
            roles.push(Role::PostNormWeight);
        }
        roles
    }

    pub(crate) fn bindings(&self) -> Vec<BindingSpec> {
        let chain = self.chained.then_some(Role::Chain);
        bindings([Role::Step, self.format.output_role()].into_iter().chain(self.data_roles()).chain(chain))
    }

    pub(crate) fn wgsl(&self) -> String {
        assert!(self.add || !self.post_norm, "a post norm comes before a sum");
        let lanes = self.lanes;
        let slots = self.format.stored_quads(self.width).div_ceil(lanes);
        let store = |slot: usize| match self.format {
            ActivationFormat::F32 => {
                format!("    if (inside_{slot}) {{\n        output[at + quad_{slot}] = x_{slot};\n    }}\n")
            }
            _ => format!("    store_quad(row * STRIDE, quad_{slot}, x_{slot}, lane);\n"),
        };
        let values = chain::values(self.chained, Values::default())
            .size("WIDTH", self.width)
            .size("STRIDE", self.stride)
            .size("WORKGROUP", lanes)
            .size("SUBGROUP", self.subgroup_size as usize)
            .number("EPS", self.eps.get())
            .flag("SUBGROUPS", self.subgroup_size > 0)
            .text("WORKGROUP_SIZE", lanes)
            .text("DECLARATIONS", declarations_of_chain(&self.bindings(), self.chained, &[]))
            .text("NORM_ROW", self.row_wgsl(slots, lanes))
            .text("ROW_MAX", greatest_wgsl(slots))
            .text("STORE", (0..slots).map(store).collect::<String>());
        render(include_str!("kernel.wgsl"), &self.format.row_values(self.width, values))
    }

    /// Code that leaves the normed row in registers: `x_0 … x_{slots-1}`, four elements each, of quads `quad_i` of a row that
    /// begins at quad `at`; zeros past its end. `first` says whether this workgroup stores the sum.
    pub(crate) fn row_wgsl(&self, slots: usize, lanes: usize) -> String {
        let mut text = String::new();
        let quads = self.width.div_ceil(4);
        let each = |code: &dyn Fn(usize) -> String| (0..slots).map(code).collect::<String>();
        let squares = (0..slots).map(|i| format!("dot(x_{i}, x_{i})")).collect::<Vec<_>>().join(" + ");
        // Rows are padded with whatever was there before.
        let masked = |i: usize, value: String| {
            if self.width.is_multiple_of(4) {
                return value;
            }
            let columns = format!("vec4<u32>(4u * quad_{i}) + vec4<u32>(0u, 1u, 2u, 3u)");
            format!("select(vec4<f32>(0.0), {value}, {columns} < vec4<u32>({}u))", self.width)
        };
        // Everything is on its way before anything is waited for.
        let operands = [
            ("x", "input", true, true),
            ("residual", "residual", true, self.add),
            ("post_weight", "post_norm_weight", false, self.post_norm),
            ("weight", "norm_weight", false, true),
        ];
        text += &each(&|i| {
            let mut code =
                format!("    let quad_{i} = lane + {}u;\n    let inside_{i} = quad_{i} < {quads}u;\n", i * lanes);
            let wanted = operands.iter().filter(|(.., wanted)| *wanted);
            for (name, buffer, of_row, _) in wanted {
                let at = if *of_row { "at + " } else { "" };
                let load = format!("{buffer}[{at}quad_{i}]");
                let load = if *name == "x" && self.sums { values_wgsl(&load) } else { load };
                let load = if *name == "x" { masked(i, load) } else { load };
                code += &format!(
                    "    var {name}_{i} = vec4<f32>(0.0);\n    if (inside_{i}) {{\n        {name}_{i} = {load};\n    }}\n"
                );
            }
            code
        });
        let root = |name: &str| {
            format!("    let {name} = inverseSqrt(workgroup_sum({squares}, lane) / {}f + EPS);\n", self.width)
        };
        if self.post_norm {
            text += &root("delta_scale");
        }
        if self.add {
            text += &each(&|i| {
                let delta =
                    if self.post_norm { format!("x_{i} * delta_scale * post_weight_{i}") } else { format!("x_{i}") };
                let sum = masked(i, format!("residual_{i} + {delta}"));
                format!(
                    "    if (inside_{i}) {{\n        x_{i} = {sum};\n        if (first) {{\n            \
                     sum[at + quad_{i}] = x_{i};\n        }}\n    }}\n"
                )
            });
        }
        text += &root("scale");
        text + &each(&|i| format!("    if (inside_{i}) {{\n        x_{i} *= scale * weight_{i};\n    }}\n"))
    }
}

/// The greatest magnitude of a lane's quads.
fn greatest_wgsl(slots: usize) -> String {
    (0..slots).fold("0.0".into(), |most, i| format!("max({most}, greatest(x_{i}))"))
}
