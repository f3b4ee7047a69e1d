// One workgroup a row. An expert's place is the number of those before it: every lane counts for its own experts, and no sorting waits.
${DECLARATIONS}
var<workgroup> logits: array<f32, EXPERTS>;
var<workgroup> chosen_experts: array<u32, CHOSEN>;
var<workgroup> chosen_shares: array<f32, CHOSEN>;

@compute @workgroup_size(${WORKGROUP})
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = group.x;
    if (row >= step.header.n_rows) {
        return;
    }
    for (var expert = lane; expert < EXPERTS; expert += WORKGROUP) {
        logits[expert] = input[row * INPUT_STRIDE + expert];
    }
    // Logits that are not numbers are never chosen, so that every route names an expert that exists.
    for (var place = lane; place < CHOSEN; place += WORKGROUP) {
        chosen_experts[place] = place;
        chosen_shares[place] = 0.0;
    }
    workgroupBarrier();
    var most = logits[0];
    for (var other = 1u; other < EXPERTS; other++) {
        most = max(most, logits[other]);
    }
    for (var expert = lane; expert < EXPERTS; expert += WORKGROUP) {
        let logit = logits[expert];
        var place = 0u;
        for (var other = 0u; other < EXPERTS; other++) {
            let is_before = logits[other] > logit || (logits[other] == logit && other < expert);
            place += select(0u, 1u, is_before);
        }
        if (place < CHOSEN) {
            chosen_experts[place] = expert;
            chosen_shares[place] = exp(logit - most);
        }
    }
    workgroupBarrier();
    var total = 0.0;
//#if NORMALIZED
    for (var place = 0u; place < CHOSEN; place++) {
        total += chosen_shares[place];
    }
//#else
    for (var expert = 0u; expert < EXPERTS; expert++) {
        total += exp(logits[expert] - most);
    }
//#endif
    for (var place = lane; place < CHOSEN; place += WORKGROUP) {
        routes[row * OUTPUT_STRIDE + place] = chosen_experts[place];
//#if SCALED
        let weight = chosen_shares[place] / total * expert_scale[chosen_experts[place]];
//#else
        let weight = chosen_shares[place] / total;
//#endif
        routes[row * OUTPUT_STRIDE + CHOSEN + place] = bitcast<u32>(weight);
    }
}
