//! Rotary positions: the frequency of each pair of a head's dimensions, for every kind of context scaling.

use std::f64::consts::TAU;

use serde_json::Value;

/// Frequencies in radians per position, one for each rotated pair of dimensions.
pub struct Rope {
    frequencies: Vec<f64>,
    /// LongRoPE uses other frequencies as soon as a sequence has more tokens than this.
    longer_than: Option<(usize, Vec<f64>)>,
    /// Factor of cosine and sine.
    magnitude: f64,
}

/// Cosine and sine of one position and pair, times the magnitude.
pub struct Angle {
    cos: f32,
    sin: f32,
}

impl Rope {
    /// `parameters` in the form of `rope_parameters`; `json`, the model's config, has the context lengths.
    pub fn new(json: &Value, parameters: &Value, head_dim: usize) -> Self {
        let either = |key: &str| number(parameters, key).or(number(json, key));
        let given = |key: &str| number(parameters, key).unwrap_or_else(|| panic!("rope: {key} is missing"));
        let theta = number(parameters, "rope_theta").unwrap_or(1e4);
        let rotated = (head_dim as f64 * either("partial_rotary_factor").unwrap_or(1.0)) as usize;
        let exponents = (0..rotated).step_by(2).map(|dimension| dimension as f64 / rotated as f64);
        let plain: Vec<f64> = exponents.map(|exponent| theta.powf(-exponent)).collect();
        let context = number(json, "max_position_embeddings");
        // Phi 3 keeps the original length beside the rope parameters, where it takes precedence.
        let original_context = || {
            let beside = number(json, "original_max_position_embeddings");
            beside.or(number(parameters, "original_max_position_embeddings")).or(context).expect("a context length")
        };
        let factor =
            || number(parameters, "factor").unwrap_or_else(|| context.expect("a context length") / original_context());
        let only = |frequencies| Self { frequencies, longer_than: None, magnitude: 1.0 };

        let kind = parameters["rope_type"].as_str().or(parameters["type"].as_str()).unwrap_or("default");
        match kind {
            "default" => only(plain),
            "proportional" => {
                // As if the whole head was rotated, but only a share of its pairs is.
                let rotated_pairs = (rotated_share(parameters) * head_dim as f64 / 2.0) as usize;
                let factor = number(parameters, "factor").unwrap_or(1.0);
                let frequency = |pair: usize| match pair < rotated_pairs {
                    true => theta.powf(-2.0 * pair as f64 / head_dim as f64) / factor,
                    false => 0.0,
                };
                only((0..head_dim / 2).map(frequency).collect())
            }
            "linear" => only(plain.iter().map(|frequency| frequency / given("factor")).collect()),
            "llama3" => {
                let (low, high) = (given("low_freq_factor"), given("high_freq_factor"));
                only(plain.iter().map(|&plain| llama3(plain, given("factor"), low, high, original_context())).collect())
            }
            "yarn" => Self {
                frequencies: yarn(parameters, &plain, theta, rotated, factor(), original_context()),
                longer_than: None,
                magnitude: yarn_magnitude(parameters, factor()),
            },
            "longrope" | "su" => {
                let divided = |key: &str| {
                    let divisors = parameters[key].as_array().unwrap_or_else(|| panic!("rope: {key} is missing"));
                    let divisors = divisors.iter().map(|divisor| divisor.as_f64().expect("a number"));
                    plain.iter().zip(divisors).map(|(frequency, divisor)| frequency / divisor).collect()
                };
                let magnitude = (1.0 + factor().max(1.0).ln() / original_context().ln()).sqrt();
                Self {
                    frequencies: divided("short_factor"),
                    longer_than: Some((original_context() as usize, divided("long_factor"))),
                    magnitude: number(parameters, "attention_factor").unwrap_or(magnitude),
                }
            }
            other => panic!("rope_type is {other}, which the reference does not support"),
        }
    }

    /// The angle of each pair at each position of a sequence of `tokens`.
    pub fn angles(&self, tokens: usize) -> Vec<Vec<Angle>> {
        let frequencies = match &self.longer_than {
            Some((original, long)) if tokens > *original => long,
            _ => &self.frequencies,
        };
        let angle = |position: usize, frequency: f64| {
            let (sin, cos) = (position as f64 * frequency).sin_cos();
            Angle { cos: (cos * self.magnitude) as f32, sin: (sin * self.magnitude) as f32 }
        };
        let of_position = |position| frequencies.iter().map(|&frequency| angle(position, frequency)).collect();
        (0..tokens).map(of_position).collect()
    }
}

/// Rotates each head of `vectors` (tokens, heads * head_dim): dimension i together with dimension i + pairs, or dimension 2i with 2i + 1
/// where those of a pair are neighbours; dimensions from 2 * pairs on stay as they are.
pub fn rotate(vectors: &mut [f32], angles: &[Vec<Angle>], heads: usize, head_dim: usize, neighbours: bool) {
    for (index, head) in vectors.chunks_exact_mut(head_dim).enumerate() {
        let angles = &angles[index / heads];
        for (pair, angle) in angles.iter().enumerate() {
            let (one, other) = if neighbours { (2 * pair, 2 * pair + 1) } else { (pair, pair + angles.len()) };
            let (first, second) = (head[one], head[other]);
            head[one] = first * angle.cos - second * angle.sin;
            head[other] = second * angle.cos + first * angle.sin;
        }
    }
}

fn rotated_share(parameters: &Value) -> f64 {
    number(parameters, "partial_rotary_factor").unwrap_or(1.0)
}

/// Waves shorter than original_context / high stay, those longer than original_context / low are stretched by
/// `factor`, and between the two one turns into the other.
fn llama3(plain: f64, factor: f64, low: f64, high: f64, original_context: f64) -> f64 {
    let turns = original_context * plain / TAU;
    let kept = ((turns - low) / (high - low)).clamp(0.0, 1.0);
    (1.0 - kept) * plain / factor + kept * plain
}

/// As llama3, but what is kept falls linearly with the number of the pair, between the pairs that turn `beta_fast` and
/// `beta_slow` times within the original context.
fn yarn(parameters: &Value, plain: &[f64], theta: f64, rotated: usize, factor: f64, original_context: f64) -> Vec<f64> {
    let pair_that_turns = |turns: f64| rotated as f64 * (original_context / (turns * TAU)).ln() / (2.0 * theta.ln());
    let mut first = pair_that_turns(number(parameters, "beta_fast").unwrap_or(32.0));
    let mut last = pair_that_turns(number(parameters, "beta_slow").unwrap_or(1.0));
    if parameters["truncate"] != false {
        (first, last) = (first.floor(), last.ceil());
    }
    (first, last) = (first.max(0.0), last.min(rotated as f64 - 1.0));
    let width = if first == last { 0.001 } else { last - first };
    let stretched = |(pair, plain): (usize, &f64)| {
        let kept = 1.0 - ((pair as f64 - first) / width).clamp(0.0, 1.0);
        (1.0 - kept) * plain / factor + kept * plain
    };
    plain.iter().enumerate().map(stretched).collect()
}

fn yarn_magnitude(parameters: &Value, factor: f64) -> f64 {
    let grown = |scale: f64| if factor <= 1.0 { 1.0 } else { 0.1 * scale * factor.ln() + 1.0 };
    let scale = |key: &str| number(parameters, key).filter(|&scale| scale != 0.0);
    let inferred = match (scale("mscale"), scale("mscale_all_dim")) {
        (Some(mscale), Some(all)) => grown(mscale) / grown(all),
        _ => grown(1.0),
    };
    number(parameters, "attention_factor").unwrap_or(inferred)
}

pub fn number(json: &Value, key: &str) -> Option<f64> {
    json[key].as_f64()
}
