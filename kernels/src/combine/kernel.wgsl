// One workgroup a head of a row: combines the partial results of attention's splits by their maxima and sums.
${DECLARATIONS}
//#include reduce
//#include result
//#include sink

var<workgroup> weights: array<f32, MAX_SPLITS>;
var<workgroup> partial_sums: array<vec4<f32>, SHARES * HEAD_QUADS>;

@compute @workgroup_size(${WORKGROUP})
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let head = group.x;
    let row = group.y;
    if (row >= step.header.n_rows) {
        return;
    }
    let first = (row * N_HEADS + head) * MAX_SPLITS * PARTIAL_QUADS;
    // Behind a split's weighted sum of V lie its maximum, its sum and how many splits there are.
    let splits = min(u32(partials[first + HEAD_QUADS].z), MAX_SPLITS);
    var max_score = MASKED;
    for (var i = lane; i < splits; i += WORKGROUP) {
        max_score = max(max_score, partials[first + i * PARTIAL_QUADS + HEAD_QUADS].x);
    }
    max_score = workgroup_max(max_score, lane);
    var total = 0.0;
    for (var i = lane; i < splits; i += WORKGROUP) {
        let found = partials[first + i * PARTIAL_QUADS + HEAD_QUADS];
        let weight = exp(found.x - max_score);
        weights[i] = weight;
        total += weight * found.y;
    }
    // Weights are there for all lanes behind the barriers of this.
    total = with_sink(workgroup_sum(total, lane), max_score, head);
    let quad = lane % HEAD_QUADS;
    let share = lane / HEAD_QUADS;
    var sum = vec4<f32>(0.0);
    if (share < SHARES) {
        for (var i = share; i < splits; i += SHARES) {
            sum += weights[i] * partials[first + i * PARTIAL_QUADS + quad];
        }
        partial_sums[lane] = sum;
    }
    workgroupBarrier();
    sum = vec4<f32>(0.0);
    if (lane < HEAD_QUADS) {
        for (var i = 0u; i < SHARES; i++) {
            sum += partial_sums[i * HEAD_QUADS + lane];
        }
    }
    store_result(row, head, lane, sum / total, lane);
}
