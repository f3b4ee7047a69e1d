// A head's sum of weights with the share of its sink: a logit that belongs to no token. Where it is far above all scores the
// result is as good as 0, and exp does not overflow.
fn with_sink(total: f32, max_score: f32, head: u32) -> f32 {
//#if SINKS
    return total + exp(min(sinks[head] - max_score, 80.0));
//#else
    return total;
//#endif
}
