// One workgroup a row. An expert's place is the number of those before it: every lane counts for its own experts, and no sorting waits.
${DECLARATIONS}
var<workgroup> logits: array<f32, EXPERTS>;
//#if CHOICE_BIAS
// By what experts are chosen.
var<workgroup> ranks: array<f32, EXPERTS>;
//#endif
var<workgroup> chosen_experts: array<u32, CHOSEN>;
var<workgroup> chosen_shares: array<f32, CHOSEN>;

//#if SIGMOID
fn score_of(logit: f32) -> f32 {
    return 1.0 / (1.0 + exp(-logit));
}
//#endif

@compute @workgroup_size(${WORKGROUP})
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = group.x;
    if (row >= step.header.n_rows) {
        return;
    }
    for (var expert = lane; expert < EXPERTS; expert += WORKGROUP) {
        logits[expert] = input[row * INPUT_STRIDE + expert];
//#if CHOICE_BIAS
        ranks[expert] = score_of(input[row * INPUT_STRIDE + expert]) + choice_bias[expert];
//#endif
    }
    // Logits that are not numbers are never chosen, so that every route names an expert that exists.
    for (var place = lane; place < CHOSEN; place += WORKGROUP) {
        chosen_experts[place] = place;
        chosen_shares[place] = 0.0;
    }
    workgroupBarrier();
//#if !SIGMOID
    var most = logits[0];
    for (var other = 1u; other < EXPERTS; other++) {
        most = max(most, logits[other]);
    }
//#endif
    for (var expert = lane; expert < EXPERTS; expert += WORKGROUP) {
        let rank = ${RANKED}[expert];
        var place = 0u;
        for (var other = 0u; other < EXPERTS; other++) {
            let is_before = ${RANKED}[other] > rank || (${RANKED}[other] == rank && other < expert);
            place += select(0u, 1u, is_before);
        }
        if (place < CHOSEN) {
            chosen_experts[place] = expert;
//#if SIGMOID
            chosen_shares[place] = score_of(logits[expert]);
//#else
            chosen_shares[place] = exp(logits[expert] - most);
//#endif
        }
    }
    workgroupBarrier();
//#if NORMALIZED
    var total = 0.0;
    for (var place = 0u; place < CHOSEN; place++) {
        total += chosen_shares[place];
    }
//#else if SIGMOID
    let total = 1.0;
//#else
    var total = 0.0;
    for (var expert = 0u; expert < EXPERTS; expert++) {
        total += exp(logits[expert] - most);
    }
//#endif
    for (var place = lane; place < CHOSEN; place += WORKGROUP) {
        routes[row * OUTPUT_STRIDE + place] = chosen_experts[place];
//#if SCALED
        let weight = chosen_shares[place] / total * ROUTE_FACTOR * expert_scale[chosen_experts[place]];
//#else
        let weight = chosen_shares[place] / total * ROUTE_FACTOR;
//#endif
        routes[row * OUTPUT_STRIDE + CHOSEN + place] = bitcast<u32>(weight);
    }
}
