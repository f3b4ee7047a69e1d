// The activation function of the MLP. Arguments of exp and tanh are bounded: past the bounds the result no longer
// changes in f32, and some drivers' exp overflows to a NaN.
//#if CLAMPED_SWIGLU
fn gated(gate: f32, up: f32) -> f32 {
    let low = min(gate, ${SWIGLU_LIMIT});
    return low / (1.0 + exp(min(-${SWIGLU_ALPHA} * low, 80.0))) * (clamp(up, -${SWIGLU_LIMIT}, ${SWIGLU_LIMIT}) + 1.0);
}
//#else
fn activate(x: f32) -> f32 {
//#if SILU
    return x / (1.0 + exp(min(-x, 80.0)));
//#else if ERF
    return 0.5 * x * (1.0 + erf(x * 0.7071067811865476));
//#else
    let inner = 0.7978845608028654 * (x + 0.044715 * x * x * x);
    return 0.5 * x * (1.0 + bounded_tanh(inner));
//#endif
}

//#if ERF
// The error function by Abramowitz and Stegun 7.1.26, whose error is 1.5e-7 at most.
fn erf(x: f32) -> f32 {
    let magnitude = min(abs(x), 9.0);
    let t = 1.0 / (1.0 + 0.3275911 * magnitude);
    let series = ((((1.061405429 * t - 1.453152027) * t + 1.421413741) * t - 0.284496736) * t + 0.254829592) * t;
    return sign(x) * (1.0 - series * exp(-magnitude * magnitude));
}
//#endif

// Of gate and up.
fn gated(gate: f32, up: f32) -> f32 {
    return activate(gate) * up;
}
//#endif

//#include tanh
