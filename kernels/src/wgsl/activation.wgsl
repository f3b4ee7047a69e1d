// The activation function of the MLP. Arguments of exp and tanh are bounded: past the bounds the result no longer
// changes in f32, and some drivers' exp overflows to a NaN.
fn activate(x: f32) -> f32 {
//#if SILU
    return x / (1.0 + exp(min(-x, 80.0)));
//#else
    let inner = 0.7978845608028654 * (x + 0.044715 * x * x * x);
    return 0.5 * x * (1.0 + bounded_tanh(inner));
//#endif
}

//#include tanh
