//! How the tokens of a request are sampled.

use serde_json::Value;
use unicorn_text::unicorn_artifact::step::MAX_HISTORY;
use unicorn_text::unicorn_runtime::{HostSampling, Sampling};

use super::error::ApiError;
use super::fields::{BOOLEAN, Fields, NUMBER, unexpected};

/// What a bias is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BiasedText {
    /// A token, not checked yet.
    Token(u32),
    /// Every token of a text.
    Text(String),
}

pub(super) const BIAS: &str =
    "an object of biases by token id, or a list of pairs of a token id or a text, and a number or false";
/// Most alternative tokens that a response lists for each of its own.
const MAX_TOP: u32 = 100;

/// Sampling parameters without the seed.
pub(super) fn sampling(fields: &mut Fields, defaults: &Sampling) -> Result<Sampling, ApiError> {
    let top_p = fields.take("top_p", NUMBER)?;
    let top_k = fields.take("top_k", "a whole number")?;
    // vLLM's name and llama.cpp's.
    let repetition_penalty = fields.take("repetition_penalty", NUMBER)?;
    let repeat_penalty = fields.take("repeat_penalty", NUMBER)?.or(repetition_penalty);
    let mut sampling = defaults.clone();
    sampling.temperature = fields.take("temperature", NUMBER)?.unwrap_or(defaults.temperature);
    // 0 means the smallest set, which holds the most likely token.
    sampling.top_p = top_p.map(|p: f32| if p == 0.0 { f32::MIN_POSITIVE } else { p }).unwrap_or(defaults.top_p);
    sampling.min_p = fields.take("min_p", NUMBER)?.unwrap_or(defaults.min_p);
    // vLLM has -1 for all tokens.
    sampling.top_k = top_k.map(|k: i32| k.max(0) as u32).unwrap_or(defaults.top_k);
    sampling.repeat_penalty = repeat_penalty.unwrap_or(defaults.repeat_penalty);
    sampling.repeat_last_n = repeat_last_n(fields, &sampling)?;
    sampling.check().map_err(|error| ApiError::bad_request(error.to_string()))?;
    Ok(sampling)
}

/// Most recent tokens that penalties apply to. Where no penalty has an effect, neither has their number, which may be any.
fn repeat_last_n(fields: &mut Fields, sampling: &Sampling) -> Result<u32, ApiError> {
    const LAST: &str = "a whole number from 0 to 256";
    let requested: Option<i64> = fields.take("repeat_last_n", LAST)?;
    let Some(last) = requested else { return Ok(sampling.repeat_last_n) };
    let penalises =
        |name: &str| fields.0.get(name).is_some_and(|penalty| penalty.as_f64() != Some(0.0) && !penalty.is_null());
    let has_effect = sampling.repeat_penalty != 1.0 || penalises("presence_penalty") || penalises("frequency_penalty");
    match u32::try_from(last).ok().filter(|last| *last as usize <= MAX_HISTORY) {
        Some(last) => Ok(last),
        None if has_effect => Err(unexpected("repeat_last_n", LAST, &last.into())),
        None => Ok(sampling.repeat_last_n),
    }
}

/// `None`: a random one, for which llama.cpp has -1.
pub(super) fn seed(fields: &mut Fields) -> Result<Option<u64>, ApiError> {
    let seed: Option<i128> = fields.take("seed", "a whole number")?;
    Ok(seed.filter(|seed| *seed != -1).map(|seed| seed as u64))
}

/// Parameters that the device does not have: all have their values of no effect by default. `counts_logprobs`: `logprobs` is a
/// number, as in the older API.
pub(super) fn further_sampling(fields: &mut Fields, counts_logprobs: bool) -> Result<HostSampling, ApiError> {
    let mut further = HostSampling::default();
    further.presence_penalty = fields.take("presence_penalty", NUMBER)?.unwrap_or(0.0);
    further.frequency_penalty = fields.take("frequency_penalty", NUMBER)?.unwrap_or(0.0);
    let typical: Option<f32> = fields.take("typical_p", NUMBER)?;
    further.typical_p = typical.filter(|&p| p < 1.0).unwrap_or(1.0);
    further.top_n_sigma = fields.take("top_n_sigma", NUMBER)?.unwrap_or(-1.0);
    further.reports_filtered = fields.take("post_sampling_probs", BOOLEAN)?.unwrap_or(false);
    further.n_top = n_top(fields, counts_logprobs)?;
    // Biases are checked where the vocabulary is known.
    further.check(u32::MAX).map_err(|error| ApiError::bad_request(error.to_string()))?;
    Ok(further)
}

/// How many of the most likely tokens are listed for each token of the response; `None`: no probabilities.
fn n_top(fields: &mut Fields, counts_logprobs: bool) -> Result<Option<usize>, ApiError> {
    const COUNT: &str = "a whole number from 0 to 100";
    let limited = |name: &str, n: u32| match n {
        0..=MAX_TOP => Ok(n as usize),
        more => Err(ApiError::parameter(name, format!("expected {COUNT}, found {more}"))),
    };
    let n_probs = fields.take("n_probs", COUNT)?.unwrap_or(0);
    let top: Option<u32> = fields.take("top_logprobs", COUNT)?;
    let logprobs: Option<Value> = fields.take("logprobs", COUNT)?;
    let by_logprobs = match &logprobs {
        None | Some(Value::Bool(false)) => None,
        Some(Value::Bool(true)) => Some(limited("top_logprobs", top.unwrap_or(0))?),
        Some(value) if counts_logprobs && value.is_u64() => {
            Some(limited("logprobs", value.as_u64().unwrap_or(0).min(u32::MAX.into()) as u32)?)
        }
        Some(value) => return Err(unexpected("logprobs", if counts_logprobs { COUNT } else { BOOLEAN }, value)),
    };
    if top.is_some_and(|top| top > 0) && by_logprobs.is_none() {
        return Err(ApiError::parameter("top_logprobs", "expected logprobs to be true beside it"));
    }
    let n_probs = limited("n_probs", n_probs)?;
    Ok(by_logprobs.or((n_probs > 0).then_some(n_probs)))
}

/// Biases in OpenAI's form, an object, or in llama-server's further forms.
pub(super) fn logit_bias(bias: Option<Value>) -> Result<Vec<(BiasedText, f32)>, ApiError> {
    let Some(bias) = bias else { return Ok(Vec::new()) };
    let amount = |value: &Value| match value {
        Value::Bool(false) => Some(f32::NEG_INFINITY),
        value => value.as_f64().map(|bias| bias as f32).filter(|bias| bias.is_finite()),
    };
    let by_name = |(name, value): (&String, &Value)| {
        let biased = name.parse().map_or_else(|_| BiasedText::Text(name.clone()), BiasedText::Token);
        Some((biased, amount(value)?))
    };
    let pair = |pair: &Value| {
        let [biased, value] = pair.as_array()?.as_slice() else { return None };
        let biased = match biased {
            Value::String(text) => BiasedText::Text(text.clone()),
            token => BiasedText::Token(token.as_u64()?.try_into().ok()?),
        };
        Some((biased, amount(value)?))
    };
    let read = match &bias {
        Value::Object(biases) => biases.iter().map(by_name).collect::<Option<Vec<_>>>(),
        Value::Array(biases) => biases.iter().map(pair).collect(),
        _ => None,
    };
    read.ok_or_else(|| unexpected("logit_bias", BIAS, &bias))
}

/// The samplers in the order in which they apply, by llama-server's names and letters.
pub(crate) const SAMPLERS: [(&str, char); 7] = [
    ("penalties", 'e'),
    ("top_n_sigma", 's'),
    ("top_k", 'k'),
    ("typ_p", 'y'),
    ("top_p", 'p'),
    ("min_p", 'm'),
    ("temperature", 't'),
];
/// llama-server's samplers that are not here. Their own parameters are refused, without which they do nothing.
const ABSENT_SAMPLERS: [(&str, char); 3] = [("dry", 'd'), ("xtc", 'x'), ("adaptive_p", 'a')];

/// Applies llama-server's list of samplers: those that it leaves out have no effect.
///
/// # Errors
/// For a sampler that is not here, and for an order other than that of [`SAMPLERS`] of those that have an effect.
pub(super) fn chosen_samplers(
    fields: &mut Fields,
    sampling: &mut Sampling,
    further: &mut HostSampling,
) -> Result<(), ApiError> {
    if let Some(kept) = fields.take::<u32>("min_keep", "a whole number")?.filter(|&kept| kept > 1) {
        let message =
            format!("expected 0 or 1, since filters here keep the most likely token and no more, found {kept}");
        return Err(ApiError::parameter("min_keep", message));
    }
    let order = SAMPLERS.map(|(name, _)| name);
    let expected = format!("some of {}, in this order", order.join(", "));
    let Some(value) = fields.take::<Value>("samplers", &expected)? else { return Ok(()) };
    let all = || SAMPLERS.iter().chain(&ABSENT_SAMPLERS);
    let listed: Option<Vec<&str>> = match &value {
        Value::Array(names) => {
            names.iter().map(|name| all().find(|sampler| sampler.0 == name).map(|sampler| sampler.0)).collect()
        }
        Value::String(letters) => {
            letters.chars().map(|letter| all().find(|sampler| sampler.1 == letter).map(|sampler| sampler.0)).collect()
        }
        _ => None,
    };
    let listed = listed.ok_or_else(|| unexpected("samplers", &expected, &value))?;
    let has_effect = |name: &str| match name {
        "penalties" => {
            sampling.repeat_penalty != 1.0 || further.presence_penalty != 0.0 || further.frequency_penalty != 0.0
        }
        "top_n_sigma" => further.top_n_sigma > 0.0,
        "top_k" => sampling.top_k > 0,
        "typ_p" => further.typical_p < 1.0,
        "top_p" => sampling.top_p < 1.0,
        "min_p" => sampling.min_p > 0.0,
        // The most likely token stays the most likely.
        _ => sampling.temperature != 1.0 && sampling.temperature != 0.0,
    };
    let places = listed.iter().filter_map(|name| order.iter().position(|one| one == name));
    if !places.filter(|&place| has_effect(order[place])).is_sorted() {
        return Err(unexpected("samplers", &expected, &value));
    }
    for name in order.into_iter().filter(|name| !listed.contains(name)) {
        match name {
            "penalties" => {
                sampling.repeat_penalty = 1.0;
                (further.presence_penalty, further.frequency_penalty) = (0.0, 0.0);
            }
            "top_n_sigma" => further.top_n_sigma = -1.0,
            "top_k" => sampling.top_k = 0,
            "typ_p" => further.typical_p = 1.0,
            "top_p" => sampling.top_p = 1.0,
            "min_p" => sampling.min_p = 0.0,
            _ => sampling.temperature = 1.0,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn further(counts_logprobs: bool, body: Value) -> Result<HostSampling, String> {
        let mut fields = Fields(body.as_object().unwrap().clone());
        further_sampling(&mut fields, counts_logprobs).map_err(|error| error.message)
    }

    #[test]
    fn probabilities_are_asked_for_by_three_names() {
        let n_top = |counts_logprobs, body| further(counts_logprobs, body).map(|further| further.n_top);
        let (chat, plain) = (false, true);
        assert_eq!(n_top(chat, json!({})), Ok(None));
        assert_eq!(n_top(chat, json!({"logprobs": true})), Ok(Some(0)));
        assert_eq!(n_top(chat, json!({"logprobs": true, "top_logprobs": 5})), Ok(Some(5)));
        assert_eq!(n_top(plain, json!({"logprobs": 3})), Ok(Some(3)));
        assert_eq!(n_top(plain, json!({"n_probs": 4})), Ok(Some(4)));
        assert!(n_top(chat, json!({"top_logprobs": 5})).unwrap_err().contains("expected logprobs to be true"));
        assert!(n_top(chat, json!({"logprobs": 3})).unwrap_err().contains("true or false"));
        assert!(n_top(plain, json!({"n_probs": 101})).unwrap_err().contains("0 to 100"));
    }

    #[test]
    fn a_number_of_penalised_tokens_counts_with_a_penalty() {
        let last = |body: Value| {
            let mut fields = Fields(body.as_object().unwrap().clone());
            sampling(&mut fields, &Sampling::default())
                .map(|sampling| sampling.repeat_last_n)
                .map_err(|error| error.message)
        };
        assert_eq!(last(json!({"repeat_last_n": 256, "repeat_penalty": 1.1})), Ok(256));
        assert_eq!(last(json!({"repeat_last_n": 0, "presence_penalty": 1})), Ok(0));
        for n in [-1, 300] {
            assert_eq!(last(json!({"repeat_last_n": n, "frequency_penalty": 0, "presence_penalty": null})), Ok(64));
            for penalty in ["repeat_penalty", "repetition_penalty", "frequency_penalty", "presence_penalty"] {
                let message = last(json!({"repeat_last_n": n, penalty: 0.5})).unwrap_err();
                assert!(message.contains(&format!("a whole number from 0 to 256, found {n}")), "{message}");
            }
        }
    }

    #[test]
    fn samplers_that_a_list_leaves_out_have_no_effect() {
        let chosen = |body: Value| {
            let mut fields = Fields(body.as_object().unwrap().clone());
            let mut sampling = Sampling::default().with(|sampling| {
                (sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p) = (0.8, 40, 0.9, 0.05);
            });
            let mut further = HostSampling::default().with(|further| further.presence_penalty = 1.0);
            chosen_samplers(&mut fields, &mut sampling, &mut further).map_err(|error| error.message)?;
            let kept = (sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p, further.presence_penalty);
            Ok::<_, String>(kept)
        };
        let all = Ok((0.8, 40, 0.9, 0.05, 1.0));
        assert_eq!(chosen(json!({})), all);
        let default = ["penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"];
        assert_eq!(chosen(json!({"samplers": default, "min_keep": 0})), all);
        assert_eq!(chosen(json!({"samplers": "edskypmxt"})), all);
        assert_eq!(chosen(json!({"samplers": ["top_k"]})), Ok((1.0, 40, 1.0, 0.0, 0.0)));
        // Typical-p filters nothing here, wherever it stands.
        assert_eq!(chosen(json!({"samplers": ["top_p", "typ_p", "temperature"]})), Ok((0.8, 0, 0.9, 0.0, 0.0)));
        for wrong in [json!(["temperature", "top_p"]), json!(["infill"]), json!("tk"), json!([1]), json!(1)] {
            let message = chosen(json!({"samplers": wrong})).unwrap_err();
            assert!(message.starts_with("samplers: expected some of penalties, top_n_sigma"), "{message}");
        }
        assert!(chosen(json!({"min_keep": 2})).unwrap_err().starts_with("min_keep: expected 0 or 1"));
    }

    #[test]
    fn biases_have_several_forms() {
        let token = |id: u32, bias: f32| (BiasedText::Token(id), bias);
        assert_eq!(logit_bias(Some(json!({"7": -100, "8": 2.5}))), Ok(vec![token(7, -100.0), token(8, 2.5)]));
        let pairs = json!([[7, 1], [8, false], ["Hello", -1]]);
        let text = (BiasedText::Text("Hello".into()), -1.0);
        assert_eq!(logit_bias(Some(pairs)), Ok(vec![token(7, 1.0), token(8, f32::NEG_INFINITY), text]));
        for wrong in
            [json!(1), json!([[1]]), json!([[1, true]]), json!({"1": "a"}), json!([[-1, 2]]), json!([[1, 1e300]])]
        {
            assert!(logit_bias(Some(wrong.clone())).is_err(), "{wrong}");
        }
        assert!(further(true, json!({"typical_p": -1})).is_err());
        assert_eq!(further(true, json!({"typical_p": 2})).unwrap().typical_p, 1.0);
    }
}
