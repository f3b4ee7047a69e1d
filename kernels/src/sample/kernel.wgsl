// One workgroup a sampler, over its row of the logits.
${DECLARATIONS}
//#include reduce

const LEAST: f32 = -3.4e38;
// Logit of a token that its mask leaves out: below every threshold.
const LEFT_OUT: f32 = -3.402e38;
// Loads of a lane in flight.
const AHEAD: u32 = 8u;

var<workgroup> histogram: array<atomic<u32>, 256>;
var<workgroup> chosen: u32;
var<workgroup> seen_above: u32;
var<workgroup> run_mass: array<f32, WORKGROUP>;
var<workgroup> winner: atomic<u32>;

// Words of the mask, one a lane.
var<workgroup> mask_words: array<u32, WORKGROUP>;

// Where top-k leaves few tokens, their logits: as found, then largest first.
const FEW: u32 = 512u;
var<workgroup> n_few: atomic<u32>;
var<workgroup> few: array<f32, FEW>;
var<workgroup> few_sorted: array<f32, FEW>;

// Order of floats as order of unsigned integers, and back.
fn key_of(value: f32) -> u32 {
    let bits = bitcast<u32>(value);
    return select(bits | 0x80000000u, ~bits, (bits >> 31u) != 0u);
}

fn value_of(key: u32) -> f32 {
    return bitcast<f32>(select(~key, key & 0x7fffffffu, (key >> 31u) != 0u));
}

var<private> sampler: u32;
// Where this sampler's logits begin.
var<private> row_at: u32;

fn pcg(input: u32) -> u32 {
    let state = input * 747796405u + 2891336453u;
    let word = ((state >> ((state >> 28u) + 4u)) ^ state) * 277803737u;
    return (word >> 22u) ^ word;
}

fn uniform_number() -> f32 {
    let state = pcg(step.samplers[sampler].sample ^ pcg(step.samplers[sampler].seed_low ^ pcg(step.samplers[sampler].seed_high)));
    return f32(state >> 8u) / 16777216.0;
}

fn penalise(lane: u32) {
    for (var i = lane; i < step.samplers[sampler].n_history; i += WORKGROUP) {
        let token = step.history[sampler * MAX_HISTORY + i];
        var repeated = token >= VOCAB;
        for (var j = 0u; j < i; j++) {
            repeated = repeated || step.history[sampler * MAX_HISTORY + j] == token;
        }
        if (!repeated) {
            let logit = output[row_at + token];
            output[row_at + token] = select(logit * step.samplers[sampler].repeat_penalty, logit / step.samplers[sampler].repeat_penalty, logit > 0.0);
        }
    }
    storageBarrier();
    workgroupBarrier();
}

// Leaves out the tokens whose bit is 0 in the mask that begins at this word. Words reach the lanes by workgroup memory: a lane that loaded one for
// each of its tokens would wait for each.
fn mask(lane: u32, mask_at: u32) {
    for (var first = 0u; first < VOCAB; first += 32u * WORKGROUP) {
        mask_words[lane] = masks[mask_at + min(first / 32u + lane, (VOCAB - 1u) / 32u)];
        workgroupBarrier();
        for (var i = 0u; i < 32u; i++) {
            let at = i * WORKGROUP + lane;
            if (first + at < VOCAB && ((mask_words[at / 32u] >> (at % 32u)) & 1u) == 0u) {
                output[row_at + first + at] = LEFT_OUT;
            }
        }
        workgroupBarrier();
    }
    storageBarrier();
    workgroupBarrier();
}

// The k-th largest logit, 8 bits of its key at a time.
fn kth_largest(lane: u32, k: u32) -> f32 {
    var prefix = 0u;
    var wanted = k;
    for (var shift = 24i; shift >= 0i; shift -= 8i) {
        for (var i = lane; i < 256u; i += WORKGROUP) {
            atomicStore(&histogram[i], 0u);
        }
        workgroupBarrier();
        for (var token = lane; token < VOCAB; token += WORKGROUP) {
            let key = key_of(output[row_at + token]);
            // Shifting by 32 is undefined: the first round has no prefix to compare.
            let matches = shift == 24i || (key >> u32(min(shift + 8i, 31i))) == (prefix >> u32(min(shift + 8i, 31i)));
            if (matches) {
                atomicAdd(&histogram[(key >> u32(shift)) & 255u], 1u);
            }
        }
        workgroupBarrier();
        if (lane == 0u) {
            var above = 0u;
            var digit = 255u;
            loop {
                let here = atomicLoad(&histogram[digit]);
                if (above + here >= wanted || digit == 0u) {
                    break;
                }
                above += here;
                digit -= 1u;
            }
            chosen = digit;
            seen_above = above;
        }
        workgroupBarrier();
        prefix |= chosen << u32(shift);
        wanted -= seen_above;
        workgroupBarrier();
    }
    return value_of(prefix);
}

fn mass_from(lane: u32, threshold: f32, largest: f32) -> f32 {
    var mass = 0.0;
    for (var token = lane; token < VOCAB; token += WORKGROUP) {
        let logit = output[row_at + token];
        mass += select(0.0, exp(logit - largest), logit >= threshold);
    }
    return workgroup_sum(mass, lane);
}

// Collects the logits at or above `least`; gives their number, which may be more than FEW.
fn collect_few(lane: u32, least: f32) -> u32 {
    if (lane == 0u) {
        atomicStore(&n_few, 0u);
    }
    workgroupBarrier();
    for (var token = lane; token < VOCAB; token += WORKGROUP) {
        let logit = output[row_at + token];
        if (logit >= least) {
            let at = atomicAdd(&n_few, 1u);
            if (at < FEW) {
                few[at] = logit;
            }
        }
    }
    workgroupBarrier();
    return atomicLoad(&n_few);
}

// The top-p threshold among `count` collected logits. Sorted first, so that sums do not depend on the order in which lanes collected them.
fn few_threshold(lane: u32, count: u32, largest: f32, top_p: f32) -> f32 {
    for (var i = lane; i < count; i += WORKGROUP) {
        var rank = 0u;
        for (var j = 0u; j < count; j++) {
            rank += select(0u, 1u, few[j] > few[i] || (few[j] == few[i] && j < i));
        }
        few_sorted[rank] = few[i];
    }
    workgroupBarrier();
    var mass = 0.0;
    for (var i = 0u; i < count; i++) {
        mass += exp(few_sorted[i] - largest);
    }
    var above = 0.0;
    var i = 0u;
    loop {
        above += exp(few_sorted[i] - largest);
        if (above >= top_p * mass || i + 1u == count) {
            break;
        }
        i += 1u;
    }
    return few_sorted[i];
}

// The largest threshold whose tokens hold the share `top_p` of the mass at or above `floor`, by bisection on its key.
fn mass_threshold(lane: u32, least: f32, largest: f32, top_p: f32) -> f32 {
    let wanted = top_p * mass_from(lane, least, largest);
    var low = key_of(least);
    var high = key_of(largest);
    while (low < high) {
        let middle = low + (high - low + 1u) / 2u;
        if (mass_from(lane, value_of(middle), largest) >= wanted) {
            low = middle;
        } else {
            high = middle - 1u;
        }
    }
    return value_of(low);
}

//#if COUNTER_SYNC
var<workgroup> gave_up: atomic<u32>;

// Finds a dispatch that gave up waiting; valid behind a barrier.
fn look_for_stalls(lane: u32) {
    if (lane == 0u) {
        atomicStore(&gave_up, 0u);
    }
    workgroupBarrier();
    for (var slot = lane; slot < SLOTS; slot += WORKGROUP) {
        if (all_sync_counters[slot * SLOT_WORDS + 1u] != 0u) {
            atomicStore(&gave_up, 1u);
        }
    }
}

fn stalled() -> u32 {
    return atomicLoad(&gave_up);
}
//#else
fn stalled() -> u32 {
    return 0u;
}
//#endif

// Reports the sampled token and, if the sampler feeds, makes it the next step's row.
fn finish(token: u32, logit: f32, candidates: u32) {
    let params = step.samplers[sampler];
    sampled[(params.sample % KEPT_SAMPLES) * MAX_SAMPLERS + sampler] = Output(token, logit, candidates, stalled());
    if ((params.feeds_and_mask & 1u) == 0u) {
        return;
    }
    let position = step.rows[sampler].position + 1u;
    step.rows[sampler] = Row(
        token,
        position,
        step.rows[sampler].sequence,
//#if KEEPS_ROPE_WORD
        step.rows[sampler].rope_variant,
//#else
        select(0u, 1u, position + 1u > step.header.long_rope_above),
//#endif
    );
    step.samplers[sampler].sample += 1u;
    if (params.history_capacity > 0u) {
        step.history[sampler * MAX_HISTORY + params.history_next] = token;
        step.samplers[sampler].history_next = (params.history_next + 1u) % params.history_capacity;
        step.samplers[sampler].n_history = min(params.n_history + 1u, params.history_capacity);
    }
}

@compute @workgroup_size(${WORKGROUP})
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    sampler = group.x;
    row_at = sampler * LOGITS_STRIDE;
    if (sampler >= step.header.n_samplers) {
        return;
    }
//#if COUNTER_SYNC
    look_for_stalls(lane);
//#endif
    if (step.samplers[sampler].repeat_penalty != 1.0) {
        penalise(lane);
    }
    let mask_at = step.samplers[sampler].feeds_and_mask >> 1u;
    if (mask_at != 0u) {
        mask(lane, mask_at);
    }
    // The first of this lane's largest; loads that wait for one another would be most of the time here.
    var max_logit = LEAST;
    var max_at = VOCAB;
    for (var first = lane; first < VOCAB; first += AHEAD * WORKGROUP) {
        for (var i = 0u; i < AHEAD; i++) {
            let token = min(first + i * WORKGROUP, VOCAB - 1u);
            let logit = output[row_at + token];
            if (logit > max_logit) {
                max_logit = logit;
                max_at = token;
            }
        }
    }
    let largest = workgroup_max(max_logit, lane);
    if (lane == 0u) {
        atomicStore(&winner, VOCAB);
    }
    workgroupBarrier();

    if (step.samplers[sampler].temperature == 0.0) {
        if (max_logit == largest) {
            atomicMin(&winner, max_at);
        }
        workgroupBarrier();
        if (lane == 0u) {
            // Logits that are all NaN have no largest: token 0, so that the host reads a valid id.
            let token = atomicLoad(&winner);
            finish(select(0u, token, token < VOCAB), largest, 1u);
        }
        return;
    }

    var threshold = LEAST;
    if (step.samplers[sampler].top_k > 0u) {
        // A mask may leave fewer than k.
        threshold = max(threshold, kth_largest(lane, min(step.samplers[sampler].top_k, VOCAB)));
    }
    if (step.samplers[sampler].top_p < 1.0) {
        // Tokens 80 below the largest have no mass in f32: there is no need to look there.
        let least = max(threshold, largest - 80.0);
        let count = collect_few(lane, least);
        if (count <= FEW) {
            threshold = few_threshold(lane, count, largest, step.samplers[sampler].top_p);
        } else {
            threshold = mass_threshold(lane, least, largest, step.samplers[sampler].top_p);
        }
    }
    if (step.samplers[sampler].min_p > 0.0) {
        threshold = max(threshold, largest + log(step.samplers[sampler].min_p));
    }

    let first = lane * RUN;
    let end = min(first + RUN, VOCAB);
    var mass = 0.0;
    var candidates = 0.0;
    for (var token = first; token < end; token++) {
        let logit = output[row_at + token];
        if (logit >= threshold) {
            mass += exp((logit - largest) / step.samplers[sampler].temperature);
            candidates += 1.0;
        }
    }
    run_mass[lane] = mass;
    let n_candidates = workgroup_sum(candidates, lane);
    var before = 0.0;
    var all = 0.0;
    for (var i = 0u; i < WORKGROUP; i++) {
        before += select(0.0, run_mass[i], i < lane);
        all += run_mass[i];
    }
    let target_mass = uniform_number() * all;
    if (mass > 0.0 && target_mass >= before && target_mass < before + mass) {
        var cumulated = before;
        for (var token = first; token < end; token++) {
            let logit = output[row_at + token];
            if (logit >= threshold) {
                cumulated += exp((logit - largest) / step.samplers[sampler].temperature);
                if (cumulated > target_mass || token + 1u == end) {
                    atomicMin(&winner, token);
                    break;
                }
            }
        }
    }
    workgroupBarrier();
    // Rounding can leave the target past every run: then the largest logit is as good a sample as any.
    if (atomicLoad(&winner) == VOCAB) {
        for (var token = first; token < end; token++) {
            if (output[row_at + token] == largest) {
                atomicMin(&winner, token);
                break;
            }
        }
    }
    workgroupBarrier();
    if (lane == 0u) {
        let token = min(atomicLoad(&winner), VOCAB - 1u);
        finish(token, output[row_at + token], u32(n_candidates));
    }
}
