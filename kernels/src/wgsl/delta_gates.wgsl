// What a row keeps of a head's state, and how much of its error it writes there.

fn sigmoid(x: f32) -> f32 {
    return 1.0 / (1.0 + exp(min(-x, 80.0)));
}

// log(1 + e^x), which is x where e^x is all that counts.
fn softplus(x: f32) -> f32 {
    return select(log(1.0 + exp(min(x, 20.0))), x, x > 20.0);
}
