//! What llama-server's clients read of a server and of a completion's parameters.

use serde_json::{Value, json};
use unicorn_text::unicorn_runtime::Sampling;

/// The parameters in effect, by llama-server's names. What this server does not have has the value that has no effect. `banned`:
/// stop tokens that do not end the text.
pub(crate) fn generation_settings(
    sampling: &Sampling,
    seed: u64,
    max_tokens: Option<u32>,
    stop: &[String],
    banned: &[u32],
) -> Value {
    let n_predict = max_tokens.map_or(-1, i64::from);
    let logit_bias: Vec<Value> = banned.iter().map(|token| json!({"token": token, "bias": null})).collect();
    json!({
        "seed": seed,
        "temperature": sampling.temperature,
        "dynatemp_range": 0.0,
        "dynatemp_exponent": 1.0,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "top_n_sigma": -1.0,
        "xtc_probability": 0.0,
        "xtc_threshold": 0.1,
        "typical_p": 1.0,
        "repeat_last_n": sampling.repeat_last_n,
        "repeat_penalty": sampling.repeat_penalty,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "dry_multiplier": 0.0,
        "mirostat": 0,
        "adaptive_target": -1.0,
        "adaptive_decay": 0.9,
        "stop": stop,
        "max_tokens": n_predict,
        "n_predict": n_predict,
        "n_keep": 0,
        "n_discard": 0,
        "ignore_eos": !banned.is_empty(),
        "stream": false,
        "logit_bias": logit_bias,
        "n_probs": 0,
        "min_keep": 0,
        "grammar": "",
        "samplers": ["penalties", "top_k", "top_p", "min_p", "temperature"],
        "lora": [],
    })
}
