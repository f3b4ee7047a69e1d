//! A subgroup's tokens by its lanes: each scores a token, and mixes a chunk of dimensions of every so-many-th.
//!
//! A copy of each line for each query and word, so that all stay in registers.

use super::DecodeAttentionSpec;
use crate::cache::KvFormat;
use crate::template::Values;

impl DecodeAttentionSpec {
    pub(super) fn loops(&self, values: Values) -> Values {
        values
            .text("WORDS", self.words_wgsl())
            .text("LOAD_KEYS", self.load_keys_wgsl())
            .text("LOAD_VALUES", self.load_values_wgsl())
            .text("STATE", self.state_wgsl())
            .text("NEWEST", self.newest_wgsl())
            .text("SCORE", self.score_wgsl())
            .text("WEIGH", self.weigh_wgsl())
            .text("MIX", self.mix_wgsl())
            .text("LEAVE", self.leave_wgsl())
    }

    fn each(&self, code: impl Fn(usize) -> String) -> String {
        (0..self.heads_per_group).map(code).collect()
    }

    fn each_quad(&self, code: impl Fn(usize) -> String) -> String {
        (0..self.chunk_quads()).map(code).collect()
    }

    fn keys_ahead(&self) -> usize {
        self.words_ahead.min(self.cache.chunks())
    }

    fn values_ahead(&self) -> usize {
        self.words_ahead.min(self.steps())
    }

    fn is_int8(&self) -> bool {
        self.cache.format == KvFormat::Int8
    }

    fn words_wgsl(&self) -> String {
        let words =
            |name: &str, n: usize| -> String { (0..n).map(|u| format!("    var {name}_{u}: vec4<u32>;\n")).collect() };
        let scales = if self.is_int8() { "    var key_scale = 0.0;\n    var value_scale = 0.0;\n" } else { "" };
        words("key", self.keys_ahead()) + &words("value", self.values_ahead()) + scales
    }

    fn key_wgsl(&self, chunk: usize) -> String {
        format!("keys[key_at(page, slot, {chunk}u)]")
    }

    fn value_wgsl(&self, step: usize) -> String {
        let token = format!("piece + {step}u * SHARES + share");
        format!("values[value_at(page, clamp({token}, span.begin, end - 1u) % PAGE_TOKENS, chunk)]")
    }

    /// Of the piece, whose lane's token is `slot` of `page`.
    fn load_keys_wgsl(&self) -> String {
        let keys = (0..self.keys_ahead()).map(|u| format!("        key_{u} = {};\n", self.key_wgsl(u)));
        keys.collect::<String>() + &self.load_scale_wgsl("key_scale", "keys")
    }

    fn load_values_wgsl(&self) -> String {
        let values = (0..self.values_ahead()).map(|u| format!("        value_{u} = {};\n", self.value_wgsl(u)));
        values.collect::<String>() + &self.load_scale_wgsl("value_scale", "values")
    }

    fn load_scale_wgsl(&self, name: &str, side: &str) -> String {
        let word = format!("{side}[scale_at(page, slot)][slot % 4u]");
        if self.is_int8() { format!("        {name} = bitcast<f32>({word});\n") } else { String::new() }
    }

    fn state_wgsl(&self) -> String {
        self.each(|q| {
            let mix = self.each_quad(|j| format!("    var mix_{j}_{q} = vec4<f32>(0.0);\n"));
            format!("    var greatest_{q} = MASKED;\n    var total_{q} = 0.0;\n{mix}")
        })
    }

    /// The newest token is the first: its score is the greatest so far, and its weight 1.
    fn newest_wgsl(&self) -> String {
        let newest = self.each_quad(|j| {
            format!(
                "        let newest_key_{j} = {};\n        let newest_value_{j} = value.scale * {};\n",
                self.cache.unpacked_wgsl("key.words", j),
                self.cache.unpacked_wgsl("value.words", j)
            )
        });
        let begin = self.each(|q| {
            let products: Vec<String> = (0..self.chunk_quads())
                .map(|j| format!("dot(newest_key_{j}, vectors[{q}u * QUADS + chunk * CHUNK_QUADS + {j}u])"))
                .collect();
            let mix = self.each_quad(|j| {
                format!("        mix_{j}_{q} = select(vec4<f32>(0.0), newest_value_{j}, lane < CHUNKS);\n")
            });
            format!(
                "        let part_{q} = select(0.0, key.scale * ({}), lane < CHUNKS);\n        \
                 greatest_{q} = capped(subgroupAdd(part_{q}));\n        \
                 total_{q} = select(0.0, 1.0, lane == 0u);\n{mix}",
                products.join(" + ")
            )
        });
        newest + &begin
    }

    /// Every query's score against this lane's token.
    fn score_wgsl(&self) -> String {
        let begin = self.each(|q| format!("        var score_{q} = 0.0;\n"));
        let late: String = (self.keys_ahead()..self.cache.chunks())
            .map(|u| format!("        let key_{u} = {};\n", self.key_wgsl(u)))
            .collect();
        let slot = "        let slot = clamp(token, span.begin, end - 1u) % PAGE_TOKENS;\n";
        let late = if late.is_empty() { late } else { slot.to_owned() + &late };
        let products =
            (0..self.cache.chunks()).flat_map(|u| (0..self.chunk_quads()).map(move |j| (u, j))).map(|(u, j)| {
                let quad = format!("        let key_{u}_{j} = {};\n", self.cache.unpacked_wgsl(&format!("key_{u}"), j));
                let at = u * self.chunk_quads() + j;
                quad + &self
                    .each(|q| format!("        score_{q} += dot(key_{u}_{j}, vectors[{q}u * QUADS + {at}u]);\n"))
            });
        let scaled =
            self.each(|q| if self.is_int8() { format!("        score_{q} *= key_scale;\n") } else { String::new() });
        late + &begin + &products.collect::<String>() + &scaled
    }

    /// The new maximum, what it makes of the sums so far, and the weight of this lane's token.
    fn weigh_wgsl(&self) -> String {
        let value_scale = if self.is_int8() { " * value_scale" } else { "" };
        self.each(|q| {
            let mix = self.each_quad(|j| format!("        mix_{j}_{q} *= rescale_{q};\n"));
            format!(
                "        let seen_{q} = select(MASKED, capped(score_{q}), inside);\n        \
                 let next_{q} = max(greatest_{q}, subgroupMax(seen_{q}));\n        \
                 let rescale_{q} = exp(greatest_{q} - next_{q});\n        greatest_{q} = next_{q};\n        \
                 let weight_{q} = select(0.0, exp(seen_{q} - next_{q}), inside);\n        \
                 total_{q} = total_{q} * rescale_{q} + weight_{q};\n        \
                 let factor_{q} = weight_{q}{value_scale};\n{mix}"
            )
        })
    }

    fn mix_wgsl(&self) -> String {
        let late: String = (self.values_ahead()..self.steps())
            .map(|u| format!("        let value_{u} = {};\n", self.value_wgsl(u)))
            .collect();
        let sums = (0..self.steps()).map(|u| {
            let quads = self.each_quad(|j| {
                format!("        let value_{u}_{j} = {};\n", self.cache.unpacked_wgsl(&format!("value_{u}"), j))
            });
            let add = self.each(|q| {
                self.factor_wgsl(u, q)
                    + &self.each_quad(|j| format!("        mix_{j}_{q} += factor_{u}_{q} * value_{u}_{j};\n"))
            });
            quads + &add
        });
        late + &sums.collect::<String>()
    }

    /// The weight of the `u`-th token that this lane mixes, from the lane that scored it.
    fn factor_wgsl(&self, u: usize, q: usize) -> String {
        let (token, shuffle) = (format!("{u}u * SHARES + share"), "subgroupShuffle");
        if (u + 1) * self.shares() <= self.subgroup_size as usize {
            return format!("        let factor_{u}_{q} = {shuffle}(factor_{q}, {token});\n");
        }
        format!(
            "        let factor_{u}_{q} = select(0.0, {shuffle}(factor_{q}, min({token}, SUBGROUP - 1u)), \
             {token} < SUBGROUP);\n"
        )
    }

    fn leave_wgsl(&self) -> String {
        self.each(|q| {
            let leave =
                self.each_quad(|j| format!("    mixed[({q}u * CHUNK_QUADS + {j}u) * TILE + index] = mix_{j}_{q};\n"));
            format!(
                "    let sum_{q} = subgroupAdd(total_{q});\n    if (lane == 0u) {{\n        \
                 reports[{q}u * SUBGROUPS + subgroup] = vec2<f32>(greatest_{q}, sum_{q});\n    }}\n{leave}"
            )
        })
    }
}
