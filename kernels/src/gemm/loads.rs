//! What each lane of a GEMM brings from memory into workgroup memory in a stage, unpacked on the way.

use super::spec::GemmSpec;
use super::spec::WORD_ELEMENTS;
use crate::activations::groups;
use crate::layout::{TILE_ROWS, WeightFormat};

/// Statements that bring a word to its place, by way of registers; `$stage` and `$buffer` stand for what a loop counts.
pub(super) struct Load {
    pub setup: Vec<String>,
    pub fetch: Vec<String>,
    pub put: Vec<String>,
}

impl Load {
    /// One kind of all loads' statements, with `value` for what a loop counts.
    pub fn statements<'a>(
        loads: &'a [Load],
        of: impl Fn(&'a Load) -> &'a [String],
        name: &str,
        value: &str,
    ) -> Vec<String> {
        loads.iter().flat_map(of).map(|code| code.replace(name, value)).collect()
    }
}

/// Codes of a row of the step in one vec4<u32>.
const CODES_PER_WORD: usize = 16;

/// A lane's loads.
pub(super) fn loads(spec: &GemmSpec) -> Vec<Load> {
    let shares = share_out(spec);
    let Some((weights, activations)) = shares else {
        panic!("words of a stage do not share out among {} lanes: {:?}", spec.lanes(), spec.tile)
    };
    let of_weights = (0..weights.each).map(|index| weight_load(spec, index, weights.parts));
    of_weights.chain((0..activations.each).map(|index| activation_load(spec, index, activations.parts))).collect()
}

/// How lanes share out the words of weights and of activations of a stage; `None`: not evenly.
pub(super) fn share_out(spec: &GemmSpec) -> Option<(Share, Share)> {
    let (tile, lanes, chunk_cols) = (&spec.tile, spec.lanes(), spec.product.layout.format.chunk_cols());
    let share = |rows: usize, cols: usize| {
        let parts = cols / WORD_ELEMENTS;
        Share::of(rows * tile.k / cols, lanes).filter(|share| parts.is_multiple_of(share.parts))
    };
    Some((share(tile.matrix_rows, chunk_cols)?, share(tile.step_rows, CODES_PER_WORD)?))
}

/// How words are shared out among lanes.
pub(super) struct Share {
    /// Loads of a lane.
    each: usize,
    /// Where there are fewer words than lanes, so many neighbours read one together and unpack a part each.
    parts: usize,
}

impl Share {
    fn of(words: usize, lanes: usize) -> Option<Share> {
        let parts = (lanes / words.max(1)).max(1);
        let whole = words > 0 && (words * parts).is_multiple_of(lanes);
        whole.then_some(Share { each: words * parts / lanes, parts })
    }
}

/// One word of weights: lanes count the rows of a tile, then parts of a word, chunks of a stage, tiles.
fn weight_load(spec: &GemmSpec, i: usize, parts: usize) -> Load {
    let format = spec.product.layout.format;
    let (chunks, block_chunks) = (spec.tile.k / format.chunk_cols(), format.chunks_per_block());
    let (block_words, last_chunk) = (format.block_words(), spec.product.layout.blocks_per_tile() * block_chunks - 1);
    let tile_words = spec.product.layout.blocks_per_tile() * block_words;
    let words = format.chunk_cols() / WORD_ELEMENTS;
    let setup = vec![
        format!("let item_{i} = lane / 8u + {}u;", i * spec.lanes() / TILE_ROWS),
        format!("let part_{i} = item_{i} % {parts}u;"),
        format!("let chunk_{i} = item_{i} / {parts}u % {chunks}u;"),
        format!("let tile_{i} = item_{i} / {}u;", parts * chunks),
        format!("let base_{i} = min(first_tile + tile_{i}, {}u) * {tile_words}u;", spec.product.layout.tiles() - 1),
        format!("let matrix_row_{i} = tile_{i} * 8u + lane % 8u;"),
        format!("let put_{i} = matrix_row_{i} * ROW_WORDS + chunk_{i} * {words}u + part_{i} * {}u;", words / parts),
        format!("var word_{i}: vec4<u32>;"),
        format!("var param_{i}: u32;"),
    ];
    let mut fetch = vec![
        format!("let column_{i} = min($stage * {chunks}u + chunk_{i}, {last_chunk}u);"),
        format!("let block_{i} = base_{i} + column_{i} / {block_chunks}u * {block_words}u;"),
        format!("word_{i} = weights[block_{i} + column_{i} % {block_chunks}u * 8u + lane % 8u];"),
    ];
    if format.has_params() {
        let pair = format!("weights[block_{i} + {}u][lane % 8u / 2u]", block_words - 1);
        fetch.push(format!("param_{i} = row_param({pair}, lane % 8u);"));
    }
    let at = format!("weight_tile[($buffer) * MATRIX_ROWS * ROW_WORDS + put_{i}");
    let unpacked = half_weights(format, i, words / parts, parts);
    let put = unpacked.iter().enumerate().map(|(index, word)| format!("{at} + {index}u] = {word};")).collect();
    Load { setup, fetch, put }
}

/// A part of a chunk of weights as words of eight f16.
fn half_weights(format: WeightFormat, i: usize, words: usize, parts: usize) -> Vec<String> {
    let eight = |index: usize| match format {
        WeightFormat::Int4 { .. } => format!("eight_weights({}, param_{i})", pick("word", i, index, parts)),
        WeightFormat::Int8 => {
            let [low, high] = [2 * index, 2 * index + 1].map(|index| pick("word", i, index, parts));
            format!("eight_weights(vec2<u32>({low}, {high}), param_{i})")
        }
        WeightFormat::F16 => format!("word_{i}"),
    };
    (0..words).map(eight).collect()
}

/// Component `index` of a lane's part of word `name_i`.
fn pick(name: &str, i: usize, index: usize, parts: usize) -> String {
    let component = |index: usize| format!("{name}_{i}.{}", ["x", "y", "z", "w"][index]);
    match parts {
        1 => component(index),
        2 => format!("select({}, {}, part_{i} == 1u)", component(index), component(index + 2)),
        _ => format!("{name}_{i}[part_{i}]"),
    }
}

/// Sixteen codes of a row of the step, in each plane: lanes count parts of them, then sixteens of a stage, then rows.
fn activation_load(spec: &GemmSpec, i: usize, parts: usize) -> Load {
    let planes = spec.product.input.planes();
    let (stage_words, all_words) = (spec.tile.k / CODES_PER_WORD, 2 * groups(spec.product.layout.cols));
    let whole = all_words.is_multiple_of(stage_words);
    let words = CODES_PER_WORD / WORD_ELEMENTS;
    let setup = vec![
        format!("let given_{i} = lane + {}u;", i * spec.lanes()),
        format!("let place_{i} = given_{i} / {parts}u % {stage_words}u;"),
        format!("let row_{i} = given_{i} / {}u;", parts * stage_words),
        format!("let from_{i} = min(first_step_row + row_{i}, last_step_row) * INPUT_STRIDE;"),
    ];
    let mut load = Load { setup, fetch: Vec::new(), put: Vec::new() };
    // Behind the last column lies what is no number: zeros instead.
    let sixteen = format!("$stage * {stage_words}u + place_{i}");
    let inside = if whole { sixteen.clone() } else { format!("min({sixteen}, {}u)", all_words - 1) };
    load.fetch.push(format!("let sixteen_{i} = {inside};"));
    let at = format!("from_{i} / 4u + sixteen_{i} / 2u * {}u + sixteen_{i} % 2u", 2 * planes);
    for plane in 0..planes {
        load.setup.push(format!("var codes_{plane}_{i}: vec4<u32>;"));
        let word = format!("codes[{at} + {}u]", 2 * plane);
        let word = if whole { word } else { format!("select(vec4<u32>(0u), {word}, {sixteen} < {all_words}u)") };
        load.fetch.push(format!("codes_{plane}_{i} = {word};"));
    }
    load.setup.push(format!("var group_{i}: u32;"));
    load.fetch.push(format!("group_{i} = code_word(from_{i} + GROUP_WORDS_AT + sixteen_{i} / 2u);"));
    load.setup.push(format!("let given_part_{i} = given_{i} % {parts}u;"));
    load.setup.push(format!("let inverse_{i} = inverse_factor(from_{i});"));
    load.put = half_activations(spec, i, words / parts, parts);
    load
}

/// A part of sixteen activations as words of eight f16.
fn half_activations(spec: &GemmSpec, i: usize, words: usize, parts: usize) -> Vec<String> {
    let row = format!("activation_tile[(($buffer) * STEP_ROWS + row_{i}) * ROW_WORDS");
    let at = format!("{row} + (place_{i} * {parts}u + given_part_{i}) * {words}u");
    let two = |plane: usize, index: usize| match parts {
        1 => format!("codes_{plane}_{i}.{}", ["xy", "zw"][index]),
        _ => format!("select(codes_{plane}_{i}.xy, codes_{plane}_{i}.zw, given_part_{i} == 1u)"),
    };
    let planes: Vec<usize> = (0..spec.product.input.planes()).collect();
    let mut put = vec![format!("let scale_{i} = group_scale(group_{i}) * inverse_{i};")];
    put.extend((0..words).map(|index| {
        let codes: Vec<String> = planes.iter().map(|&plane| two(plane, index)).collect();
        format!("{at} + {index}u] = eight_activations({}, scale_{i});", codes.join(", "))
    }));
    put
}
