// tanh by exp, exact to f32 rounding; beyond 15 it is 1.
fn bounded_tanh(x: f32) -> f32 {
    let e = exp(2.0 * clamp(x, -15.0, 15.0));
    return 1.0 - 2.0 / (e + 1.0);
}
