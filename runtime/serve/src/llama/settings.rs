//! What llama-server's clients read of a server and of a completion's parameters.

use serde_json::{Value, json};
use unicorn_text::unicorn_runtime::{HostSampling, Sampling};

use crate::api::sampling::SAMPLERS;

/// The parameters in effect, by llama-server's names. Parameters that this server does not have get the value without effect.
/// `banned`: stop tokens that do not end the text.
pub(crate) fn generation_settings(
    sampling: &Sampling,
    further: &HostSampling,
    seed: u64,
    max_tokens: Option<u32>,
    stop: &[String],
    banned: &[u32],
) -> Value {
    let n_predict = max_tokens.map_or(-1, i64::from);
    let banned_bias = banned.iter().map(|token| json!({"token": token, "bias": null}));
    // Negative infinity is null in JSON.
    let bias = further.logit_bias.iter().map(|(token, bias)| json!({"token": token, "bias": bias}));
    let logit_bias: Vec<Value> = banned_bias.chain(bias).collect();
    json!({
        "seed": seed,
        "temperature": sampling.temperature,
        "dynatemp_range": 0.0,
        "dynatemp_exponent": 1.0,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "top_n_sigma": further.top_n_sigma,
        "xtc_probability": 0.0,
        "xtc_threshold": 0.1,
        "typical_p": further.typical_p,
        "repeat_last_n": sampling.repeat_last_n,
        "repeat_penalty": sampling.repeat_penalty,
        "presence_penalty": further.presence_penalty,
        "frequency_penalty": further.frequency_penalty,
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
        "n_probs": further.n_top.unwrap_or(0),
        "min_keep": 0,
        "grammar": "",
        "samplers": SAMPLERS.map(|(name, _)| name),
        "lora": [],
    })
}
