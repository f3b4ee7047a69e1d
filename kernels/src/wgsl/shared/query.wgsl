// Of the neighbouring lanes that share a query.
fn query_max(score: vec4<f32>) -> f32 {
    var most = max(max(score.x, score.y), max(score.z, score.w));
    for (var step = 1u; step < LANES_PER_QUERY; step *= 2u) {
        most = max(most, subgroupShuffleXor(most, step));
    }
    return most;
}

fn query_sum(value: f32) -> f32 {
    var total = value;
    for (var step = 1u; step < LANES_PER_QUERY; step *= 2u) {
        total += subgroupShuffleXor(total, step);
    }
    return total;
}
