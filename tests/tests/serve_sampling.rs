//! Sampling on the host: beside the twin of the device's kernel and transformers' logits; and replies that have to match something.

use std::sync::LazyLock;

use proptest::prelude::*;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};
use tests::compiled::{Compiled, options, with};
use tests::http::post;
use tests::models::models;
use tests::programs::program;
use tests::reference::read_golden;
use tests::server::Server;
use tests::skip::skip;
use unicorn_artifact::step::Sampler;
use unicorn_compiler::{FormatPolicy, WeightsOption};
use unicorn_kernels::sample::twin;
use unicorn_runtime::{HostSampler, HostSampling, Sampling};

/// In f16, so that its logits are close to those of transformers.
static MODEL: LazyLock<Compiled> = LazyLock::new(|| {
    let targets = ["llvmpipe", "generic"].into_iter().filter_map(unicorn_spirv::target::by_name).collect();
    let options = with(options(targets, vec![]), |options| {
        options.policy = FormatPolicy { weights: WeightsOption::F16, group: 32 }
    });
    Compiled::of_folder(&models().join("gemma3-2m-draft"), &options)
});

fn start(arguments: &[&str]) -> Server {
    let mut command = program("unicorn-run");
    command.env("UNICORN_DEVICE", std::env::var("UNICORN_DEVICE").unwrap_or("llvmpipe".into()));
    Server::start(command, &MODEL.artifact_path(), arguments)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// Both compute the same in the same precision, but for sums of the top-p mass in another order.
    #[test]
    fn the_host_samples_what_the_twin_samples(
        seed in any::<u64>(), number in 0u32..100, vocab in 2usize..400, temperature in prop_oneof![Just(0.0f32), 0.1f32..2.0],
        top_k in prop_oneof![Just(0u32), 1u32..60], top_p in prop_oneof![Just(1.0f32), 0.05f32..1.0],
        min_p in prop_oneof![Just(0.0f32), 0.01f32..0.5], repeat_penalty in prop_oneof![Just(1.0f32), 0.8f32..1.5],
        allowed in prop_oneof![Just(None), (0.01f64..1.0).prop_map(Some)],
    ) {
        let mut random = rand::rngs::StdRng::seed_from_u64(seed);
        let logits: Vec<f32> = (0..vocab).map(|_| random.random_range(-8.0f32..8.0)).collect();
        let history: Vec<u32> = (0..20).map(|_| random.random_range(0..vocab as u32)).collect();
        let one = random.random_range(0..vocab);
        let mask = allowed.map(|share| {
            let mut mask = vec![0u32; vocab.div_ceil(32)];
            for token in (0..vocab).filter(|&token| token == one || random.random_bool(share)) {
                mask[token / 32] |= 1 << (token % 32);
            }
            mask
        });
        let sampling = Sampling::default().with(|sampling| {
            (sampling.temperature, sampling.top_k, sampling.top_p) = (temperature, top_k, top_p);
            (sampling.min_p, sampling.repeat_penalty, sampling.seed) = (min_p, repeat_penalty, seed);
        });
        let of_twin = Sampler {
            temperature, top_k, top_p, min_p, repeat_penalty, seed_low: seed as u32, seed_high: (seed >> 32) as u32,
            sample: number, ..Sampler::default()
        };
        // The twin goes through the history as it is without a penalty.
        let expected = twin(&of_twin, &history, mask.as_deref(), &mut logits.clone());
        let found = HostSampler::new(sampling, HostSampling::default()).sample(number, &history, &mut logits.clone(), mask.as_deref());
        let found = found.unwrap();
        prop_assert_eq!((found.token, found.candidates as usize), (expected.token, expected.candidates.len()));
    }
}

#[test]
fn tokens_are_sampled_with_their_probabilities() {
    let logits = [0.5f32, 1.5, -1.0, 0.0];
    // The bias excludes the second; the mask the last.
    let further = HostSampling::default().with(|further| further.logit_bias = vec![(1, f32::NEG_INFINITY), (2, 2.0)]);
    let warm = Sampling::default().with(|sampling| (sampling.temperature, sampling.seed) = (1.0, 7));
    let sampler = HostSampler::new(warm, further);
    let mut counts = [0u32; 4];
    const N: u32 = 20_000;
    for number in 0..N {
        counts[sampler.sample(number, &[], &mut logits.to_vec(), Some(&[0b0111])).unwrap().token as usize] += 1;
    }
    let weights = [0.5f64.exp(), 0.0, 1.0f64.exp(), 0.0];
    let total: f64 = weights.iter().sum();
    for (count, weight) in counts.iter().zip(weights) {
        // Five standard deviations of a frequency.
        let expected = weight / total;
        let bound = 5.0 * (expected * (1.0 - expected) / f64::from(N)).sqrt();
        assert!((f64::from(*count) / f64::from(N) - expected).abs() <= bound, "{counts:?}");
    }
}

fn logprobs(row: &[f32]) -> Vec<f64> {
    let total: f64 = row.iter().map(|&logit| f64::from(logit).exp()).sum();
    row.iter().map(|&logit| f64::from(logit) - total.ln()).collect()
}

#[test]
fn logarithms_of_probabilities_are_those_of_transformers() {
    let golden = read_golden(models().join("gemma3-2m-draft"));
    let n_tokens = golden.tokens.len();
    let vocab_size = golden.logits.len() / n_tokens;
    let expected = logprobs(&golden.logits[(n_tokens - 1) * vocab_size..]);
    let server = start(&["--parallel", "2", "--ctx", "256"]);
    let request = json!({"prompt": golden.tokens, "n_predict": 1, "temperature": 0, "n_probs": 10});
    let found = server.whole("/completion", &request)["completion_probabilities"][0].take();
    assert_eq!(found["id"], json!(golden.greedy[0]));
    let top = found["top_logprobs"].as_array().unwrap();
    assert_eq!(top.len(), 10);
    let mut order: Vec<usize> = (0..vocab_size).collect();
    order.sort_by(|&a, &b| expected[b].total_cmp(&expected[a]));
    for (rank, one) in top.iter().enumerate() {
        let (id, logprob) = (one["id"].as_u64().unwrap() as usize, one["logprob"].as_f64().unwrap());
        // f16 weights and activations: some 1e-3 of logits of about 10.
        assert!((logprob - expected[id]).abs() < 5e-2, "{rank}: {logprob} against {}", expected[id]);
        assert!((logprob - expected[order[rank]]).abs() < 5e-2, "{rank}: {one} against {}", expected[order[rank]]);
    }
    // OpenAI's two forms have the same numbers, and the text is that without them.
    let plain = json!({"prompt": "The sea", "max_tokens": 12, "temperature": 0.8, "seed": 5});
    let with = |name: &str, value: Value| {
        let mut request = plain.clone();
        request[name] = value;
        server.whole("/v1/completions", &request)["choices"][0].take()
    };
    let (without, listed) = (with("n", json!(1)), with("logprobs", json!(2)));
    assert_eq!(without["text"], listed["text"], "the device and the host sample the same");
    assert_eq!(without["logprobs"], Value::Null);
    let tokens: String =
        listed["logprobs"]["tokens"].as_array().unwrap().iter().map(|token| token.as_str().unwrap()).collect();
    assert_eq!(listed["text"].as_str().unwrap(), tokens);
    // The text's own token is listed, too, if it is not one of the two.
    let top = listed["logprobs"]["top_logprobs"][0].as_object().unwrap();
    let own = listed["logprobs"]["tokens"][0].as_str().unwrap();
    assert!(top.contains_key(own) && (2..=3).contains(&top.len()), "{top:?}");
}

/// As lm-evaluation-harness asks for them: prompts in tokens, the answer's among them.
#[test]
fn probabilities_of_a_prompt_are_those_of_transformers() {
    let golden = read_golden(models().join("gemma3-2m-draft"));
    let (n_tokens, vocab_size) = (golden.tokens.len(), golden.logits.len() / golden.tokens.len());
    let server = start(&[]);
    let request = json!({
        "prompt": [golden.tokens, golden.tokens[..3]], "max_tokens": 1, "logprobs": 2, "echo": true, "temperature": 0,
    });
    let choices = server.whole("/v1/completions", &request)["choices"].as_array().unwrap().clone();
    for (choice, n_tokens) in choices.iter().zip([n_tokens, 3]) {
        let found = |list: &str| choice["logprobs"][list].as_array().unwrap().clone();
        let (logprobs_found, tops) = (found("token_logprobs"), found("top_logprobs"));
        // One more is generated.
        assert_eq!(
            (logprobs_found.len(), tops.len(), found("tokens").len()),
            (n_tokens + 1, n_tokens + 1, n_tokens + 1)
        );
        assert_eq!((&logprobs_found[0], &tops[0]), (&Value::Null, &Value::Null));
        for position in 1..n_tokens {
            let expected = logprobs(&golden.logits[(position - 1) * vocab_size..position * vocab_size]);
            let (expected, found) =
                (expected[golden.tokens[position] as usize], logprobs_found[position].as_f64().unwrap());
            assert!((expected - found).abs() < 0.05, "token {position}: expected {expected}, found {found}");
            let largest =
                tops[position].as_object().unwrap().values().filter_map(Value::as_f64).fold(f64::MIN, f64::max);
            assert!(found <= largest + 1e-6, "token {position}");
        }
    }
    // A prompt whose beginning is in a cache has them, too.
    assert_eq!(server.whole("/v1/completions", &request)["choices"].as_array().unwrap(), &choices);
    let streamed = with_field(&request, "stream", json!(true));
    let (_, refused) = post(&server.address, "/v1/completions", &streamed.to_string());
    assert!(refused.contains("in a stream"), "{refused}");
}

fn with_field(request: &Value, name: &str, value: Value) -> Value {
    let mut request = request.clone();
    request[name] = value;
    request
}

#[test]
fn biases_and_penalties_reach_every_row_of_a_batch() {
    let server = start(&["--parallel", "2", "--ctx", "256"]);
    let request = |further: &Value| {
        let mut request = json!({"prompt": "The sea", "max_tokens": 10, "temperature": 0, "return_tokens": true});
        request.as_object_mut().unwrap().extend(further.as_object().unwrap().clone());
        server.whole("/v1/completions", &request)["choices"][0]["token_ids"].take()
    };
    let plain = request(&json!({}));
    let first = plain[0].as_u64().unwrap();
    // One row is biased while the other decodes beside it, and each has the text that it has alone.
    let (banned, beside) = std::thread::scope(|scope| {
        let beside = scope.spawn(|| request(&json!({})));
        (request(&json!({"logit_bias": {first.to_string(): -100}})), beside.join().unwrap())
    });
    assert!(banned.as_array().unwrap().iter().all(|token| *token != json!(first)), "{banned}");
    assert_eq!(beside, plain);
    assert_eq!(request(&json!({"logit_bias": {"77": 100}})), json!(vec![77; 10]));
    // A token costs more each time, so that two as likely take turns.
    let penalised = request(&json!({"logit_bias": {"77": 100, "78": 100}, "frequency_penalty": 10}));
    let penalised: Vec<u64> = penalised.as_array().unwrap().iter().map(|token| token.as_u64().unwrap()).collect();
    assert!(penalised.windows(2).all(|pair| pair[0] + pair[1] == 77 + 78), "{penalised:?}");
    let (_, refused) =
        post(&server.address, "/v1/completions", &json!({"prompt": "a", "logit_bias": {"99999999": 1}}).to_string());
    assert!(refused.contains("logit_bias: logit bias must be a token of the vocabulary"), "{refused}");
}

/// Whether Python's validator accepts each answer under its schema.
fn validated(pairs: &[(Value, String)]) -> Option<String> {
    let script = "import json, sys\nimport jsonschema\nfor schema, text in json.loads(sys.argv[1]):\n    jsonschema.validate(json.loads(text), schema)\n";
    let output = std::process::Command::new("python3").args(["-c", script, &json!(pairs).to_string()]).output().ok()?;
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    (!stderr.contains("No module named")).then_some(if output.status.success() { String::new() } else { stderr })
}

#[test]
fn replies_match_the_schemas_expressions_and_grammars_of_their_requests() {
    let server = start(&["--parallel", "2", "--ctx", "512"]);
    let chat = |further: Value| {
        let messages = json!([{"role": "user", "content": "Who lives on the island?"}]);
        let mut request = json!({"messages": messages, "max_tokens": 200, "temperature": 0.7, "seed": 3});
        request.as_object_mut().unwrap().extend(further.as_object().unwrap().clone());
        let choice = server.whole("/v1/chat/completions", &request)["choices"][0].take();
        assert_eq!(
            choice["finish_reason"].as_str().unwrap().replace("tool_calls", "stop"),
            "stop",
            "{request}: {choice}"
        );
        choice["message"].clone()
    };
    let content = |further: Value| chat(further)["content"].as_str().unwrap().to_owned();
    // A model of stories would never end a text by itself: every string has a length.
    let schema = json!({
        "type": "object", "additionalProperties": false, "required": ["name", "age", "tags"],
        "properties": {
            "name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 1, "maximum": 120},
            "tags": {"type": "array", "minItems": 1, "maxItems": 3, "items": {"enum": ["red", "green", "blue"]}},
        },
    });
    let format = json!({"type": "json_schema", "json_schema": {"name": "person", "schema": schema}});
    let mut pairs: Vec<(Value, String)> = [
        json!({"response_format": format}),
        json!({"json_schema": schema}),
        json!({"guided_json": schema, "seed": 4}),
        json!({"response_format": format, "temperature": 0, "logprobs": true}),
    ]
    .into_iter()
    .map(|further| (schema.clone(), content(further)))
    .collect();
    // The arguments of a call that has to be made parse, and match the tool's schema.
    let tool = json!({"type": "function", "function": {"name": "look", "parameters": schema}});
    let named = json!({"type": "function", "function": {"name": "look"}});
    let called = chat(json!({"tools": [tool], "tool_choice": named}));
    let arguments = called["tool_calls"][0]["function"]["arguments"].as_str().unwrap().to_owned();
    pairs.push((schema.clone(), arguments));
    for (_, text) in &pairs {
        serde_json::from_str::<Value>(text).unwrap_or_else(|error| panic!("{error}: {text}"));
    }
    // Anthropic's form, and an answer that could be a call as well.
    let messages = json!([{"role": "user", "content": "Who lives on the island?"}]);
    // Anthropic's API has no seed.
    let message = json!({"messages": messages, "max_tokens": 200, "temperature": 0, "output_config": {"format": {"type": "json_schema", "schema": schema}}});
    let message = server.whole("/v1/messages", &message);
    assert_eq!(message["stop_reason"], "end_turn", "{message}");
    pairs.push((schema.clone(), message["content"][0]["text"].as_str().unwrap().to_owned()));
    let other =
        json!({"type": "function", "function": {"name": "wait", "parameters": {"type": "object", "maxProperties": 0}}});
    let either = chat(json!({"response_format": format, "tools": [tool, other], "logit_bias": [["wait", -100]]}));
    pairs.push(match either["tool_calls"][0]["function"]["arguments"].as_str() {
        Some(arguments) => (schema.clone(), arguments.to_owned()),
        None => (schema.clone(), either["content"].as_str().unwrap().to_owned()),
    });
    match validated(&pairs) {
        Some(errors) => assert_eq!(errors, "", "{pairs:?}"),
        None => skip("a validator of JSON schemas", "python3 has no jsonschema"),
    }

    let regex = content(json!({"guided_regex": "[a-c]{4}-[0-9]{2}"}));
    let (letters, digits) = regex.split_once('-').unwrap();
    assert!(letters.len() == 4 && digits.len() == 2 && letters.chars().all(|letter| "abc".contains(letter)), "{regex}");
    assert!(["a goat", "a \"bird\""].contains(&content(json!({"guided_choice": ["a goat", "a \"bird\""]})).as_str()));
    let gbnf = "root ::= \"<\" list \">\"\nlist ::= item (\",\" item){2} # three\nitem ::= [x-z] | \"(\" list \")\"\n";
    let grammar = json!({"grammar": "root ::= \"<\" item (\",\" item){2} \">\"\nitem ::= [x-z]+ \"!\" | \"no\\n\"", "logit_bias": [["!", 30]]});
    let flat = content(grammar);
    assert!(flat.starts_with('<') && flat.ends_with('>') && flat.split(',').count() == 3, "{flat}");
    let nested = content(json!({"guided_grammar": gbnf, "logit_bias": [["(", -100]]}));
    assert!(nested.starts_with('<') && nested.ends_with('>') && nested.matches(',').count() >= 2, "{nested}");
    for (further, expected) in [
        (json!({"guided_regex": "("}), "guided_regex: "),
        (json!({"grammar": "root ::= x"}), "grammar: rule \\\"x\\\" is used and not defined"),
        (
            json!({"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "no"}}}}),
            "response_format: ",
        ),
        (json!({"guided_regex": "a", "tools": [tool]}), "guided_regex: expected a JSON schema beside tools"),
    ] {
        let mut request = json!({"messages": [{"role": "user", "content": "a"}]});
        request.as_object_mut().unwrap().extend(further.as_object().unwrap().clone());
        let (head, body) = post(&server.address, "/v1/chat/completions", &request.to_string());
        assert!(head.starts_with("HTTP/1.0 400 ") && body.contains(expected), "{head}\n{body}");
    }
}

/// The host samples where probabilities are requested, and the device where not.
#[test]
fn what_matches_a_structure_is_the_same_by_the_device_s_mask_and_by_the_host() {
    let server = start(&["--parallel", "3", "--ctx", "512"]);
    let ask = |further: &Value, logprobs: bool| {
        let mut request = json!({"prompt": "The sea", "max_tokens": 24, "seed": 9, "return_tokens": true});
        request.as_object_mut().unwrap().extend(further.as_object().unwrap().clone());
        if logprobs {
            request["logprobs"] = json!(1);
        }
        server.whole("/v1/completions", &request)["choices"][0]["token_ids"].take()
    };
    let regex = "[a-m ]*";
    let sampled = json!({"temperature": 1.3, "top_k": 40, "top_p": 0.95, "repeat_penalty": 1.2});
    let free = ask(&json!({"temperature": 0}), false);
    for structure in [json!({"guided_regex": regex}), json!({"guided_regex": "([0-9]{3}-)*"})] {
        for (number, sampling) in
            [json!({"temperature": 0}), sampled.clone(), json!({"temperature": 2.0})].iter().enumerate()
        {
            let mut request = sampling.clone();
            request.as_object_mut().unwrap().extend(structure.as_object().unwrap().clone());
            let on_host = ask(&request, true);
            // Beside a text without a structure, whose prompt is fed beside it.
            let (masked, beside) = std::thread::scope(|scope| {
                let beside = scope.spawn(|| ask(&json!({"temperature": 0}), false));
                (ask(&request, false), beside.join().unwrap())
            });
            assert_eq!(masked, on_host, "{request}");
            assert_eq!(beside, free, "{number}");
            assert!(masked.as_array().unwrap().len() == 24 && masked != free, "{request}: {masked}");
        }
    }
}

/// Templates that ask for calls in Qwen's tags, and for a list of Python's calls.
const TEMPLATES: [&str; 2] = [
    "{% if tools %}Write <tool_call><function=name><parameter=key>. {{ tools | tojson }}\n{% endif %}\
     {% for message in messages %}{{ message.content }}\n{% endfor %}",
    "{% if tools %}Use exact format: [func_name1(param1=value1)]. {{ tools | tojson }}\n{% endif %}\
     {% for message in messages %}{{ message.content }}\n{% endfor %}",
];

#[test]
fn calls_in_tags_and_of_python_match_the_schemas_of_their_tools() {
    let looks = json!({
        "type": "object", "additionalProperties": false, "required": ["where", "days", "tags", "at"],
        "$defs": {"color": {"type": "string", "enum": ["red", "dark green", "7"]}},
        "properties": {
            "where": {"type": "string", "minLength": 1, "maxLength": 12},
            "days": {"type": "integer", "minimum": 1, "maximum": 30},
            "unit": {"anyOf": [{"enum": ["C", "F"]}, {"type": "null"}]},
            "tags": {"type": "array", "minItems": 1, "maxItems": 3, "items": {"$ref": "#/$defs/color"}},
            "at": {"type": "object", "additionalProperties": false, "required": ["north"],
                "properties": {"north": {"type": "boolean"}, "color": {"$ref": "#/$defs/color"}}},
        },
    });
    let waits = json!({
        "type": "object", "additionalProperties": false, "required": ["hours"],
        "properties": {"hours": {"type": "integer", "minimum": 0, "maximum": 99}},
    });
    let tool =
        |name: &str, schema: &Value| json!({"type": "function", "function": {"name": name, "parameters": schema}});
    let named = json!({"type": "function", "function": {"name": "look"}});
    let mut pairs = Vec::new();
    for template in TEMPLATES {
        let server = start(&["--parallel", "2", "--ctx", "1024", "--chat-template", template]);
        let ask = |choice: &Value, seed: u32, temperature: f32| {
            let request = json!({
                "messages": [{"role": "user", "content": "Who lives on the island?"}], "max_tokens": 400,
                "tools": [tool("look", &looks), tool("wait", &waits)], "tool_choice": choice,
                "parallel_tool_calls": false, "temperature": temperature, "seed": seed,
            });
            let choice = server.whole("/v1/chat/completions", &request)["choices"][0].take();
            assert_eq!(choice["finish_reason"], "tool_calls", "{template}: {choice}");
            let calls = choice["message"]["tool_calls"].as_array().unwrap();
            assert_eq!((calls.len(), &choice["message"]["content"]), (1, &Value::Null), "{template}: {choice}");
            let function = &calls[0]["function"];
            (function["name"].as_str().unwrap().to_owned(), function["arguments"].as_str().unwrap().to_owned())
        };
        for seed in 0..4 {
            let (name, arguments) = ask(&json!("required"), seed, 1.0);
            pairs.push((if name == "look" { looks.clone() } else { waits.clone() }, arguments));
            assert!(["look", "wait"].contains(&name.as_str()), "{name}");
            let (name, arguments) = ask(&named, seed, 0.7);
            assert_eq!(name, "look");
            let found: Value = serde_json::from_str(&arguments).unwrap_or_else(|error| panic!("{error}: {arguments}"));
            // What is not a text is of its own type, and the digit of an enumeration of texts is one.
            assert!(
                found["where"].is_string() && found["days"].is_u64() && found["at"]["north"].is_boolean(),
                "{found}"
            );
            assert!(found["tags"].as_array().unwrap().iter().all(Value::is_string), "{found}");
            pairs.push((looks.clone(), arguments));
        }
    }
    match validated(&pairs) {
        Some(errors) => assert_eq!(errors, "", "{pairs:?}"),
        None => skip("a validator of JSON schemas", "python3 has no jsonschema"),
    }
}

/// A template whose prompt ends within reasoning, which this model never ends by itself.
const THINKS: &str = "{% for message in messages %}{{ message.content }}\n{% endfor %}{% if enable_thinking %}<think>\n{% endif %}{# </think> #}";

#[test]
fn reasoning_ends_where_its_budget_does_and_the_answer_follows() {
    const BUDGET: u64 = 8;
    let server = start(&[
        "--parallel",
        "2",
        "--ctx",
        "512",
        "--chat-template",
        THINKS,
        "--reasoning-budget",
        &BUDGET.to_string(),
    ]);
    let messages = json!([{"role": "user", "content": "Who lives on the island?"}]);
    let ask = |path: &str, further: Value| {
        let mut request = json!({"messages": messages, "max_tokens": 40, "temperature": 0, "ignore_eos": true});
        request.as_object_mut().unwrap().extend(further.as_object().unwrap().clone());
        server.whole(path, &request)
    };
    let chat = |further: Value| {
        let answer = ask("/v1/chat/completions", further);
        let text = |name: &str| answer["choices"][0]["message"][name].as_str().unwrap_or_default().to_owned();
        let tokens = answer["usage"]["completion_tokens_details"]["reasoning_tokens"].as_u64().unwrap();
        (text("reasoning_content"), text("content"), tokens)
    };
    let (endless, answer, tokens) = chat(json!({"thinking_budget_tokens": 1000}));
    assert_eq!((answer.as_str(), tokens), ("", 40));
    let (reasoning, answer, tokens) = chat(json!({}));
    assert!(
        !reasoning.is_empty() && endless.starts_with(&reasoning) && !answer.is_empty(),
        "{reasoning:?}, {answer:?}"
    );
    // The tag is several tokens in this vocabulary.
    assert!((BUDGET..2 * BUDGET).contains(&tokens), "{tokens}");
    let (longer, answer, more) = chat(json!({"reasoning_budget": 2 * BUDGET}));
    assert!(longer.starts_with(&reasoning) && !answer.is_empty() && more >= tokens + BUDGET, "{longer:?}: {more}");
    let (closed, ..) = chat(json!({"reasoning_budget_message": " Enough."}));
    assert_eq!(closed, format!("{reasoning} Enough."));
    assert_eq!(chat(json!({"reasoning_budget": 0})).0, "");
    let whole = chat(json!({"reasoning_format": "none"})).1;
    assert!(whole.starts_with(&format!("{reasoning}</think>")), "{whole}");
    // What has to match something does so behind the reasoning.
    assert_eq!(chat(json!({"guided_regex": "[a-c]{3}", "ignore_eos": false})).1.len(), 3);

    let thinking = json!({"type": "enabled", "budget_tokens": 2 * BUDGET});
    let blocks = ask("/v1/messages", json!({"thinking": thinking}))["content"].take();
    assert_eq!((&blocks[0]["thinking"], &blocks[1]["type"]), (&json!(longer), &json!("text")), "{blocks}");
    let request =
        json!({"input": "Who lives on the island?", "max_output_tokens": 40, "temperature": 0, "ignore_eos": true});
    let response = server.whole("/v1/responses", &request);
    assert_eq!(response["usage"]["output_tokens_details"]["reasoning_tokens"], json!(tokens));
    assert_eq!(response["output"][0]["content"][0]["text"], json!(reasoning));
    let (_, refused) = post(&server.address, "/v1/chat/completions", r#"{"messages": [], "reasoning_budget": "much"}"#);
    assert!(refused.contains("reasoning_budget: expected a whole number of tokens"), "{refused}");
}

#[test]
fn the_most_likely_of_several_choices_are_returned() {
    let server = start(&["--parallel", "3", "--ctx", "256"]);
    let ask = |further: Value| {
        let mut request =
            json!({"prompt": "The captain", "max_tokens": 12, "temperature": 1.5, "seed": 7, "ignore_eos": true});
        request.as_object_mut().unwrap().extend(further.as_object().unwrap().clone());
        server.whole("/v1/completions", &request)
    };
    let all = ask(json!({"n": 3, "logprobs": 0}));
    let mut choices: Vec<(f64, Value)> = all["choices"]
        .as_array()
        .unwrap()
        .iter()
        .map(|choice| {
            let logprobs = choice["logprobs"]["token_logprobs"].as_array().unwrap();
            (logprobs.iter().map(|logprob| logprob.as_f64().unwrap()).sum(), choice["text"].clone())
        })
        .collect();
    choices.sort_by(|one, other| other.0.total_cmp(&one.0));
    let best = ask(json!({"n": 2, "best_of": 3}));
    let texts: Vec<Value> = best["choices"].as_array().unwrap().iter().map(|choice| choice["text"].clone()).collect();
    assert_eq!(texts, [choices[0].1.clone(), choices[1].1.clone()]);
    assert_eq!((&best["usage"]["completion_tokens"], &best["choices"][0]["logprobs"]), (&json!(36), &Value::Null));
    assert_eq!(best["choices"][1]["index"], 1);
    let (_, refused) = post(&server.address, "/v1/responses", r#"{"input": "a", "best_of": 2}"#);
    assert!(refused.contains("best_of: expected 1, which this API has, found 2"), "{refused}");
}

#[test]
fn probabilities_of_a_response_are_those_of_its_text() {
    let server = start(&["--parallel", "1", "--ctx", "256"]);
    let mut request = json!({"input": "Who lives on the island?", "max_output_tokens": 12, "temperature": 0});
    assert_eq!(server.whole("/v1/responses", &request)["output"][0]["content"][0]["logprobs"], json!([]));
    request["top_logprobs"] = json!(2);
    let part = server.whole("/v1/responses", &request)["output"][0]["content"][0].take();
    let listed = part["logprobs"].as_array().unwrap();
    let joined = |tokens: &[Value]| tokens.iter().map(|token| token["token"].as_str().unwrap()).collect::<String>();
    assert_eq!((listed.len(), joined(listed).as_str()), (12, part["text"].as_str().unwrap()));
    assert!(listed.iter().all(|token| token["top_logprobs"].as_array().is_some_and(|top| top.len() == 2)), "{part}");
    request["stream"] = json!(true);
    let (_, body) = post(&server.address, "/v1/responses", &request.to_string());
    let deltas: Vec<Value> = body
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line.strip_prefix("data: ")?).ok())
        .filter(|event| event["type"] == "response.output_text.delta")
        .flat_map(|event| event["logprobs"].as_array().unwrap().clone())
        .collect();
    assert_eq!(&deltas, listed);
}

#[test]
fn lines_end_a_text_as_llama_server_s_clients_ask() {
    let server = start(&["--parallel", "1", "--ctx", "256"]);
    let complete = |text: &str, further: Value| {
        let mut request = json!({"prompt": "The sea", "guided_choice": [text], "n_predict": 64});
        request.as_object_mut().unwrap().extend(further.as_object().unwrap().clone());
        let answer = server.whole("/completion", &request);
        (answer["content"].as_str().unwrap().to_owned(), answer["stop_type"].as_str().unwrap().to_owned())
    };
    let code = "if a:\n    b\n    c\nd\n";
    assert_eq!(complete(code, json!({"n_indent": 4})), ("if a:\n    b\n    c\n".to_owned(), "limit".to_owned()));
    assert_eq!(complete(code, json!({})), (code.to_owned(), "eos".to_owned()));
    // A step takes longer.
    let (cut, why) = complete(code, json!({"t_max_predict_ms": 1}));
    assert!(code.starts_with(&cut) && cut.contains('\n') && cut.len() < code.len() && why == "limit", "{cut:?}, {why}");
    assert_eq!(complete("all in one line", json!({"t_max_predict_ms": 1})).1, "eos");
    // Of the samplers, top-k alone: the most likely token, however hot.
    let sampled = |further: Value| {
        let mut request = json!({"prompt": "The sea", "n_predict": 8, "ignore_eos": true});
        request.as_object_mut().unwrap().extend(further.as_object().unwrap().clone());
        server.whole("/completion", &request)["content"].take()
    };
    let hot = json!({"samplers": ["top_k"], "top_k": 1, "temperature": 5, "presence_penalty": 9});
    assert_eq!(sampled(hot), sampled(json!({"temperature": 0})));
    let (_, refused) = post(
        &server.address,
        "/completion",
        r#"{"prompt": "a", "samplers": ["temperature", "top_p"], "temperature": 0.5, "top_p": 0.5}"#,
    );
    assert!(refused.contains("samplers: expected some of penalties, top_n_sigma"), "{refused}");
}
