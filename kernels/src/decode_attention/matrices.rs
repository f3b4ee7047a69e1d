//! A subgroup's tokens on matrix units, with all query heads of its workgroup at a time.
//!
//! ```text
//! piece          side tokens of a page: what a cooperative matrix takes at a time
//! S = Q Kᵀ       K from the lanes: lane t of the four that share a token has chunks t, 4 + t, 8 + t … of its dimensions
//! P = e^(S-m)    lanes: maximum m so far and sum, in f32; then f16
//! O = f O + P V  V from the lanes: a lane has the chunks of its columns, of the tokens 2 t, 2 t + 1, 8 + 2 t, 9 + 2 t of the piece
//! ```
//!
//! Words of K are elements of fragments as they lie in the page; of V two tokens' words become neighbours first. Which dimension is
//! which column of a fragment does not matter to a sum of products, so Q lies as lanes have K; a fragment of O has every eighth
//! dimension (or fourth or second, of heads that have fewer chunks than a fragment has columns). `fragments` draws which lane holds what.

use serde::{Deserialize, Serialize};

use super::{Body, DecodeAttentionSpec};
use crate::cache::{CacheLayout, KvFormat};
use crate::fragments::{Fragment, ROW_LANES};
use crate::template::Values;

/// The device's cooperative matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct DecodeMatrices {
    /// Rows and columns, 8 or 16.
    pub side: usize,
    /// They lie in lanes as this kernel has them.
    pub lanes_hold_fragments: bool,
}

/// Dimensions of a word of the cache, which is of f16.
const CHUNK: usize = 8;
/// 32-bit words of such a word.
const CHUNK_PAIRS: usize = CHUNK / 2;
/// Sums of more dimensions have no room in registers.
const MOST_DIMS: usize = 128;

impl DecodeMatrices {
    /// Whether heads come in whole fragments.
    pub fn takes(&self, cache: &CacheLayout, subgroup_size: u32) -> bool {
        let (chunks, lanes) = (cache.chunks(), subgroup_size as usize);
        let rows_apart = lanes / ROW_LANES;
        let fits = cache.format == KvFormat::F16
            && cache.head_dim == cache.padded_dim()
            && cache.head_dim <= MOST_DIMS
            && cache.page_tokens.is_multiple_of(self.side);
        let lanes_share = rows_apart > 0 && rows_apart <= self.side && self.queries_at_a_time(lanes) <= self.side;
        let whole = chunks.is_power_of_two() && chunks >= ROW_LANES.max(rows_apart);
        fits && lanes_share && whole
    }

    /// That a subgroup's lanes weigh, four tokens each.
    fn queries_at_a_time(&self, lanes: usize) -> usize {
        lanes / (self.side / 4)
    }

    /// 16-byte words from row to row: one more than are needed, so that rows lie in different banks.
    fn score_quads(&self) -> usize {
        self.side / 4 + 1
    }

    fn weight_words(&self) -> usize {
        self.side / CHUNK + 1
    }

    fn query_words(cache: &CacheLayout) -> usize {
        cache.chunks() + 1
    }

    /// Workgroup memory, besides what lanes need, too.
    pub(super) fn shared_bytes(&self, spec: &DecodeAttentionSpec) -> usize {
        let lane_words = if self.lanes_hold_fragments { 0 } else { 2 * self.side * self.side };
        let of_subgroup = self.side * (16 * (self.score_quads() + self.weight_words()) + 4) + lane_words;
        16 * self.side * Self::query_words(&spec.cache) + 4 * spec.cache.padded_dim() + spec.subgroups() * of_subgroup
    }

    pub(super) fn values(&self, spec: &DecodeAttentionSpec, values: Values) -> Values {
        values
            .size("SIDE", self.side)
            .size("LANES_PER_QUERY", self.side / 4)
            .size("PART", self.part(spec))
            .size("SCORE_QUADS", self.score_quads())
            .size("WEIGHT_WORDS", self.weight_words())
            .size("QUERY_WORDS", Self::query_words(&spec.cache))
            .size("FRAGMENT_WORDS", self.side * self.side / 2)
    }

    /// Elements of a chunk that are columns of the same place in as many fragments.
    fn part(&self, spec: &DecodeAttentionSpec) -> usize {
        (CHUNK * spec.cache.chunks() / self.side).min(CHUNK)
    }

    fn kind(&self, element: &str, role: &str) -> String {
        format!("coop_mat{0}x{0}<{element}, {role}>", self.side)
    }
}

pub(super) fn body(spec: &DecodeAttentionSpec, matrices: &DecodeMatrices) -> Body {
    let fragment = Fragment { side: matrices.side, subgroup_size: spec.subgroup_size };
    let text = Text { spec, matrices, fragment };
    Body {
        words: text.words(),
        load_keys: text.load_keys(),
        load_values: text.load_values(),
        state: text.state(),
        newest: text.newest(),
        newest_mix: text.newest_mix(),
        score: text.score(),
        weigh: text.weigh(),
        mix: text.mix(),
        leave: text.leave(),
    }
}

struct Text<'a> {
    spec: &'a DecodeAttentionSpec,
    matrices: &'a DecodeMatrices,
    fragment: Fragment,
}

impl Text<'_> {
    fn side(&self) -> usize {
        self.matrices.side
    }

    /// Words of K that a lane has of each of its tokens.
    fn key_words(&self) -> usize {
        self.spec.cache.chunks() / ROW_LANES
    }

    /// Words of V that a lane has of each of its tokens: of how many of its columns, and how often side chunks.
    fn value_words(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let chunks = self.spec.cache.chunks();
        let columns = (chunks / self.fragment.rows_apart()).min(self.fragment.rows());
        let times = chunks.div_ceil(self.side());
        (0..columns).flat_map(move |column| (0..times).map(move |time| (column, time)))
    }

    /// A lane's pairs of neighbouring tokens: the first of each, counted from the lane's place.
    fn token_pairs(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        (0..self.fragment.words()).map(|word| (word, 2 * ROW_LANES * word))
    }

    /// Fragments of the mix.
    fn mixes(&self) -> usize {
        self.spec.cache.head_dim / self.side()
    }

    /// Turns in which lanes weigh all queries.
    fn turns(&self) -> usize {
        self.spec.heads_per_group.div_ceil(self.matrices.queries_at_a_time(self.spec.subgroup_size as usize))
    }

    fn each_turn(&self, code: impl Fn(usize) -> String) -> String {
        (0..self.turns()).map(code).collect()
    }

    fn each_mix(&self, code: impl Fn(usize) -> String) -> String {
        (0..self.mixes()).map(code).collect()
    }

    fn words(&self) -> String {
        let keys = (0..self.fragment.rows()).flat_map(|row| (0..self.key_words()).map(move |word| (row, word)));
        let keys = keys.map(|(row, word)| format!("    var key_{row}_{word}: vec4<u32>;\n"));
        let values = self.value_words().flat_map(|(column, time)| {
            let name = move |pair, token| format!("    var value_{column}_{time}_{pair}_{token}: vec4<u32>;\n");
            self.token_pairs().flat_map(move |(pair, _)| (0..2).map(move |token| name(pair, token)))
        });
        format!(
            "    let place = lane % {ROW_LANES}u;\n    let lane_row = lane / {ROW_LANES}u;\n{}{}",
            keys.collect::<String>(),
            values.collect::<String>()
        )
    }

    fn load_keys(&self) -> String {
        let of_row = |row: usize| {
            let first = row * self.fragment.rows_apart();
            let slot = format!(
                "        let slot_{row} = clamp(first_token + lane_row + {first}u, span.begin, end - 1u) % PAGE_TOKENS;\n"
            );
            let words = (0..self.key_words()).map(|word| {
                let at = format!("key_at(page, slot_{row}, {}u + place)", ROW_LANES * word);
                format!("        key_{row}_{word} = keys[{at}];\n")
            });
            slot + &words.collect::<String>()
        };
        (0..self.fragment.rows()).map(of_row).collect()
    }

    fn load_values(&self) -> String {
        let of_token = |pair: usize, first: usize, token: usize| {
            let place = format!("piece + {}u + 2u * place", first + token);
            let slot =
                format!("        let slot_{pair}_{token} = clamp({place}, span.begin, end - 1u) % PAGE_TOKENS;\n");
            let words = self.value_words().map(|(column, time)| {
                let chunk = self.side() * time + self.fragment.rows_apart() * column;
                let at = format!("value_at(page, slot_{pair}_{token}, lane_row + {chunk}u)");
                format!("        value_{column}_{time}_{pair}_{token} = values[{at}];\n")
            });
            slot + &words.collect::<String>()
        };
        self.token_pairs().flat_map(|(pair, first)| (0..2).map(move |token| of_token(pair, first, token))).collect()
    }

    fn state(&self) -> String {
        let share = self.side() / 4;
        let queries = self.matrices.queries_at_a_time(self.spec.subgroup_size as usize);
        let turns = self.each_turn(|n| {
            format!(
                "    let query_{n} = lane / {share}u + {}u;\n    var greatest_{n} = MASKED;\n    var total_{n} = 0.0;\n",
                n * queries
            )
        });
        let sums = self.each_mix(|f| format!("    var mix_{f}: {};\n", self.matrices.kind("f32", "C")));
        format!(
            "    let plane = subgroup * SIDE * SCORE_QUADS;\n    let weights_at = subgroup * SIDE * WEIGHT_WORDS;\n    \
             let fragment_at = subgroup * FRAGMENT_WORDS;\n    let quad = lane % {share}u;\n{turns}{sums}    \
             var zeros: {};\n",
            self.matrices.kind("f32", "C")
        )
    }

    /// The newest token is the first: its score is the greatest so far, and its weight 1.
    fn newest(&self) -> String {
        let put: String = (0..CHUNK)
            .map(|i| {
                let element = format!("newest_value_{}.{}", i / 4, ["x", "y", "z", "w"][i % 4]);
                format!("            newest_value[fragment_place(8u * chunk + {i}u)] = {element};\n")
            })
            .collect();
        let begin = self.each_turn(|n| {
            let greatest = self
                .spec
                .each(|q| format!("        greatest_{n} = select(greatest_{n}, newest_{q}, query_{n} == {q}u);\n"));
            greatest + &format!("        total_{n} = select(0.0, 1.0, quad == 0u);\n")
        });
        format!("{}        if (lane < CHUNKS) {{\n{put}        }}\n{begin}", self.spec.newest_scores_wgsl())
    }

    /// Every row of the mix is its value.
    fn newest_mix(&self) -> String {
        let kind = self.matrices.kind("f32", "C");
        self.each_mix(|f| format!("        mix_{f} = coopLoadT<{kind}>(&newest_value[{}u], 0u);\n", f * self.side()))
    }

    /// All queries against the piece's tokens.
    fn score(&self) -> String {
        let (words, side) = (self.fragment.words(), self.side());
        let (a, b) = (self.matrices.kind("f16", "A"), self.matrices.kind("f16", "B"));
        let (mut lines, mut sum) = (Vec::new(), "zeros".to_owned());
        for part in 0..self.spec.cache.head_dim / side {
            // Pairs of dimensions that the lane has of each of its tokens, in all its words.
            let pair = |row: usize, word: usize| {
                let at = part * words + word;
                format!("key_{row}_{}.{}", at / CHUNK_PAIRS, ["x", "y", "z", "w"][at % CHUNK_PAIRS])
            };
            lines.extend(self.fragment.of_lanes(&format!("part_{part}"), &b, self.matrices.lanes_hold_fragments, pair));
            lines.push(format!(
                "let queries_{part} = coopLoadT<{a}>(&query_words[{}u], QUERY_WORDS);",
                part * side / CHUNK
            ));
            lines.push(format!("let score_{part} = coopMultiplyAdd(queries_{part}, part_{part}, {sum});"));
            sum = format!("score_{part}");
        }
        lines.push(format!("coopStoreT({sum}, &scores[plane], SCORE_QUADS);"));
        lines.push("subgroupBarrier();".into());
        indented(lines)
    }

    /// A lane's four tokens of a query: scores, the new maximum, weights.
    fn weigh(&self) -> String {
        let mut lines = vec![
            "let tokens = vec4<u32>(piece + 4u * quad) + vec4<u32>(0u, 1u, 2u, 3u);".to_owned(),
            "let inside = (tokens >= vec4<u32>(span.begin)) & (tokens < vec4<u32>(end));".to_owned(),
        ];
        for n in 0..self.turns() {
            let put = |half: usize, part: &str| {
                format!(
                    "weight_words[weights_at + query_{n} * WEIGHT_WORDS + quad / 2u][quad % 2u * 2u + {half}u] = \
                     pair_of(weight_{n}.{part});"
                )
            };
            lines.extend([
                format!("let score_of_{n} = capped_quad(scores[plane + query_{n} * SCORE_QUADS + quad]);"),
                format!("let seen_{n} = select(vec4<f32>(MASKED), score_of_{n}, inside);"),
                format!("let next_{n} = max(greatest_{n}, query_max(seen_{n}));"),
                format!("let rescale_{n} = exp(greatest_{n} - next_{n});"),
                format!("greatest_{n} = next_{n};"),
                format!("let weight_{n} = select(vec4<f32>(0.0), exp(seen_{n} - vec4<f32>(next_{n})), inside);"),
                format!("total_{n} = total_{n} * rescale_{n} + dot(weight_{n}, vec4<f32>(1.0));"),
                put(0, "xy"),
                put(1, "zw"),
                format!("if (quad == 0u) {{ rescales[subgroup * SIDE + query_{n}] = rescale_{n}; }}"),
            ]);
        }
        lines.push("subgroupBarrier();".into());
        indented(lines)
    }

    /// What was mixed so far, by how much less it weighs now, and the piece's values by their weights. A difference stands for the
    /// product of two matrices' elements, see `shaders_gen::matrices`.
    fn mix(&self) -> String {
        let kind = |element, role| self.matrices.kind(element, role);
        let mut lines = vec![
            format!("let rescaling = coopLoad<{}>(&rescales[subgroup * SIDE], 0u);", kind("f32", "C")),
            format!("let weights = coopLoadT<{}>(&weight_words[weights_at], WEIGHT_WORDS);", kind("f16", "A")),
        ];
        for (column, time) in self.value_words() {
            lines.extend(self.token_pairs().map(|(pair, _)| {
                let value = format!("value_{column}_{time}_{pair}");
                format!("let near_{column}_{time}_{pair} = neighbours({value}_0, {value}_1);")
            }));
        }
        let part = self.matrices.part(self.spec);
        let chunks = self.spec.cache.chunks();
        for f in 0..self.mixes() {
            let pair = |row: usize, word: usize| {
                let column = row * self.fragment.rows_apart();
                let element = column / chunks * part + f % part;
                let near = format!("near_{}_{}_{word}", column % chunks / self.fragment.rows_apart(), f / part);
                let side = if element.is_multiple_of(2) { "low" } else { "high" };
                format!("{near}.{side}.{}", ["x", "y", "z", "w"][element / 2])
            };
            let name = format!("values_{f}");
            lines.extend(self.fragment.of_lanes(&name, &kind("f16", "B"), self.matrices.lanes_hold_fragments, pair));
            lines.push(format!("mix_{f} = coopMultiplyAdd(weights, {name}, mix_{f} - rescaling);"));
        }
        indented(lines)
    }

    fn leave(&self) -> String {
        let reports = self.each_turn(|n| {
            format!(
                "    let sum_{n} = query_sum(total_{n});\n    if (quad == 0u && query_{n} < HEADS) {{\n        \
                 reports[query_{n} * SUBGROUPS + subgroup] = vec2<f32>(greatest_{n}, sum_{n});\n    }}\n"
            )
        });
        let mixes = self.each_mix(|f| {
            format!(
                "    coopStoreT(mix_{f}, &scores[plane], SCORE_QUADS);\n    \
                 leave_fragment({f}u, plane, subgroup, lane);\n"
            )
        });
        format!("{reports}    subgroupBarrier();\n{mixes}")
    }
}

fn indented(lines: Vec<String>) -> String {
    lines.into_iter().map(|line| format!("        {line}\n")).collect()
}
