//! A group of 32 packed weights of one row in WGSL, and its product with integer activations: the inner step of every matmul that
//! uses packed dot products.

use crate::activations::ACTIVATION_GROUP;
use crate::layout::{TILE_ROWS, WeightFormat};

/// Its variables end in `_{name}`; `row` is the variable of the lane's row in its tile.
#[derive(Clone, Copy)]
pub(crate) struct GroupWeights<'a> {
    pub format: WeightFormat,
    pub row: &'a str,
    pub name: &'a str,
}

impl GroupWeights<'_> {
    /// The block that column group `group` lies in. Groups of 64 and 128 weights are several groups of activations.
    pub fn block(&self, group: &str) -> String {
        match self.groups_per_block() {
            1 => group.into(),
            several => format!("({group} / {several}u)"),
        }
    }

    /// Loads it from `buffer`, where its block begins at `at_{name}`; `declare` as in `Body::bases`.
    pub fn load(&self, declare: &str, buffer: &str, group: &str) -> Vec<String> {
        let GroupWeights { row, name, .. } = self;
        let params_at = self.format.block_words() - 1;
        let pair = format!("{declare}pair_{name} = {buffer}[at_{name} + {params_at}u][{row} / 2u];");
        let word = |variable: &str, at: &str| format!("{declare}{variable}_{name} = {buffer}[at_{name} + {at}{row}];");
        if self.is_int8() {
            return vec![pair, word("first", ""), word("second", &format!("{TILE_ROWS}u + "))];
        }
        let chunk = match self.groups_per_block() {
            1 => String::new(),
            several => format!("({group} % {several}u) * {TILE_ROWS}u + "),
        };
        vec![pair, word("word", &chunk)]
    }

    /// What products want of it.
    pub fn unpack(&self) -> Vec<String> {
        let GroupWeights { row, name, .. } = self;
        let param = format!("let param_{name} = row_param(pair_{name}, {row});");
        if self.is_int8() {
            return vec![param, format!("let scale_{name} = int8_scale(param_{name});")];
        }
        vec![
            param,
            format!("let scale_{name} = int4_scale(param_{name});"),
            format!("let zero_{name} = i32(param_{name} >> ZERO_SHIFT);"),
            // Codes 0..4 of each word, and 4..8.
            format!("let low_{name} = word_{name} & vec4<u32>(0x0f0f0f0fu);"),
            format!("let high_{name} = (word_{name} >> vec4<u32>(4u)) & vec4<u32>(0x0f0f0f0fu);"),
        ]
    }

    /// A group of activations under the name `x`, from its word and its quads of codes, of `planes`.
    pub fn activations(&self, x: &str, planes: usize, word: &str, quad: impl Fn(usize) -> String) -> Vec<String> {
        let mut lines = vec![
            format!("let of_group_{x} = {word};"),
            format!("let x_scale_{x} = bitcast<f32>(of_group_{x} & 0xffff0000u);"),
        ];
        if !self.is_int8() {
            lines.push(format!("let x_sum_{x} = bitcast<i32>(of_group_{x} << 16u) >> 16u;"));
        }
        lines.extend((0..2 * planes).map(|i| format!("let x_{x}_{i} = {};", quad(i))));
        lines
    }

    /// (factor, whole number) whose product is that of both.
    pub fn product(&self, x: &str, planes: usize) -> (String, String) {
        let name = self.name;
        let codes = format!("x_{x}");
        let sum = match planes {
            1 => self.dot(&codes, 0),
            _ => format!("16 * ({}) + {}", self.dot(&codes, 0), self.dot(&codes, 2)),
        };
        let zero = if self.is_int8() { String::new() } else { format!(" - zero_{name} * x_sum_{x}") };
        (format!("scale_{name} * x_scale_{x}"), format!("{sum}{zero}"))
    }

    /// The integer dot product with the plane of `x` that begins at its quad `first`.
    fn dot(&self, x: &str, first: usize) -> String {
        let name = self.name;
        let product = |i: usize| {
            let x = format!("{x}_{}.{}", first + i / 4, component(i % 4));
            let weight = match (self.is_int8(), i) {
                (true, 0..4) => format!("first_{name}.{}", component(i)),
                (true, _) => format!("second_{name}.{}", component(i - 4)),
                (false, _) => format!("{}_{name}.{}", ["low", "high"][i % 2], component(i / 2)),
            };
            format!("dot4I8Packed({weight}, {x})")
        };
        (0..8).map(product).collect::<Vec<_>>().join(" + ")
    }

    fn groups_per_block(&self) -> usize {
        self.format.block_cols() / ACTIVATION_GROUP
    }

    fn is_int8(&self) -> bool {
        self.format == WeightFormat::Int8
    }
}

pub(crate) fn component(index: usize) -> &'static str {
    ["x", "y", "z", "w"][index]
}
