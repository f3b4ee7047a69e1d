// A head's vector in the registers of one subgroup, as RoPE takes it: each lane has pairs of elements, those that are rotated
// first. Called by all lanes of a subgroup together.

// (first, second) of a lane's pairs; zeros past the last.
alias Pairs = array<vec2<f32>, PAIR_SLOTS>;

fn first_of(pair: u32) -> u32 {
    return select(ROTARY_PAIRS + pair, pair, pair < ROTARY_PAIRS);
}

fn second_of(pair: u32) -> u32 {
    return select(PAIRS + pair, ROTARY_PAIRS + pair, pair < ROTARY_PAIRS);
}

// A lane's pairs of the vector that begins at `at` in the input.
fn pairs_of_input(at: u32, lane: u32) -> Pairs {
    var pairs: Pairs;
    for (var slot = 0u; slot < PAIR_SLOTS; slot++) {
        let pair = lane + slot * SUBGROUP;
        if (pair < PAIRS) {
            pairs[slot] = vec2<f32>(input[at + first_of(pair)], input[at + second_of(pair)]);
        }
    }
    return pairs;
}

// A lane's pairs of a norm's weight.
//#macro pairs_of_weight(weight)
fn pairs_of_${weight}(lane: u32) -> Pairs {
    var pairs: Pairs;
    for (var slot = 0u; slot < PAIR_SLOTS; slot++) {
        let pair = lane + slot * SUBGROUP;
        if (pair < PAIRS) {
            pairs[slot] = vec2<f32>(${weight}[first_of(pair)], ${weight}[second_of(pair)]);
        }
    }
    return pairs;
}
//#end
//#if QUERY_NORM
//#expand pairs_of_weight("query_norm")
//#endif
//#if KEY_NORM
//#expand pairs_of_weight("key_norm")
//#endif
//#if NORM
fn normed(vector: Pairs, weight: Pairs) -> Pairs {
    var squares = 0.0;
    for (var slot = 0u; slot < PAIR_SLOTS; slot++) {
        squares += dot(vector[slot], vector[slot]);
    }
    let factor = inverseSqrt(subgroupAdd(squares) / f32(HEAD_DIM) + EPS);
    var pairs: Pairs;
    for (var slot = 0u; slot < PAIR_SLOTS; slot++) {
        pairs[slot] = factor * vector[slot] * weight[slot];
    }
    return pairs;
}
//#endif

//#if ROPE
//#if SHIFTED
//#include rope_position
//#endif
// Cosine and sine of each pair's angle, in row `row`; of pairs that are not rotated, those of none.
fn rotations_of(row: u32, lane: u32) -> Pairs {
//#if SHIFTED
    let variant = 0u;
//#else
    let position = step.rows[row].position;
    let variant = step.rows[row].rope_variant * (ROPE_COARSE + ROPE_FINE) * ROTARY_PAIRS;
//#endif
    var rotations: Pairs;
    for (var slot = 0u; slot < PAIR_SLOTS; slot++) {
        let pair = lane + slot * SUBGROUP;
        rotations[slot] = vec2<f32>(1.0, 0.0);
        if (pair < ROTARY_PAIRS) {
//#if SHIFTED
            let position = rope_position(row, pair);
//#endif
            let coarse = rope_table[variant + (position / ROPE_FINE) * ROTARY_PAIRS + pair];
            let fine = rope_table[variant + (ROPE_COARSE + position % ROPE_FINE) * ROTARY_PAIRS + pair];
            rotations[slot] = vec2<f32>(coarse.x * fine.x - coarse.y * fine.y, coarse.y * fine.x + coarse.x * fine.y);
        }
    }
    return rotations;
}

fn rotated(vector: Pairs, rotations: Pairs) -> Pairs {
    var pairs: Pairs;
    for (var slot = 0u; slot < PAIR_SLOTS; slot++) {
        let pair = vector[slot];
        let rotation = rotations[slot];
        pairs[slot] = vec2<f32>(pair.x * rotation.x - pair.y * rotation.y, pair.y * rotation.x + pair.x * rotation.y);
    }
    return pairs;
}
//#endif
