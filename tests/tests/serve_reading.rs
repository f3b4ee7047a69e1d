//! Embeddings and ranks of `unicorn-run serve`, against the reference.

use std::sync::LazyLock;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tests::compiled::{Compiled, options, with};
use tests::http::{get, post};
use tests::models::models;
use tests::programs::program;
use tests::reference::{Reference, relative_error};
use tests::server::Server;
use unicorn_compiler::WeightsOption;
use unicorn_spirv::target::by_name;

/// f16 weights and KV cache, as in `e2e`.
const F16_TOLERANCE: f64 = 5e-3;
/// The difference of two logits, with f16 weights and KV cache.
const ODDS_TOLERANCE: f64 = 0.05;
const TEXTS: [&str; 2] = ["Who lives on the island?", "A fox"];

static MODEL: LazyLock<Compiled> = LazyLock::new(|| {
    let targets = ["llvmpipe", "generic"].into_iter().filter_map(by_name).collect();
    let options = with(options(targets, vec![]), |options| options.policy.weights = WeightsOption::F16);
    Compiled::of_folder(&models().join("gemma3-2m-draft"), &options)
});
static REFERENCE: LazyLock<Reference> = LazyLock::new(|| Reference::open(models().join("gemma3-2m-draft")));

fn start(arguments: &[&str]) -> Server {
    let mut command = program("unicorn-run");
    command.env("UNICORN_DEVICE", std::env::var("UNICORN_DEVICE").unwrap_or("llvmpipe".into()));
    Server::start(command, &MODEL.artifact_path(), arguments)
}

fn refused(server: &Server, path: &str, request: &Value) -> (String, String) {
    let (head, body) = post(&server.address, path, &request.to_string());
    let body: Value = serde_json::from_str(&body).expect("JSON");
    (head.split(' ').nth(1).unwrap().to_owned(), body["error"]["message"].as_str().unwrap().to_owned())
}

/// Token ids of a text as the server makes them.
fn tokens(server: &Server, text: &str) -> Vec<i32> {
    let answer = server.whole("/tokenize", &json!({"content": text, "add_special": true}));
    serde_json::from_value(answer["tokens"].clone()).unwrap()
}

fn floats(value: &Value) -> Vec<f32> {
    serde_json::from_value(value.clone()).unwrap_or_else(|error| panic!("{error}: {value}"))
}

/// Rows of a text by the reference.
fn rows(tokens: &[i32]) -> Vec<Vec<f32>> {
    let hidden = REFERENCE.hidden(tokens);
    hidden.chunks_exact(hidden.len() / tokens.len()).map(<[f32]>::to_vec).collect()
}

fn unit(row: &[f32]) -> Vec<f32> {
    let length = row.iter().map(|value| value * value).sum::<f32>().sqrt();
    row.iter().map(|value| value / length).collect()
}

/// A score can be near 0 or 1, where its odds still differ.
fn odds(score: f64) -> f64 {
    (score / (1.0 - score)).ln()
}

fn assert_near(expected: &[f32], found: &[f32]) {
    assert_eq!(expected.len(), found.len());
    let error = relative_error(expected, found);
    assert!(error <= F16_TOLERANCE, "relative error {error:.2e}");
}

#[test]
fn embeddings_are_the_last_row_of_the_reference() {
    let server = start(&["--parallel", "2", "--ctx", "256", "--embeddings", "--metrics"]);
    let ids = TEXTS.map(|text| tokens(&server, text));
    let expected = ids.clone().map(|ids| unit(rows(&ids).last().unwrap()));
    let answer = server.whole("/v1/embeddings", &json!({"model": "any", "input": TEXTS}));
    let n_tokens = ids.iter().map(Vec::len).sum::<usize>();
    assert_eq!(answer["usage"], json!({"prompt_tokens": n_tokens, "total_tokens": n_tokens}));
    assert_eq!((&answer["object"], &answer["data"][1]["index"]), (&json!("list"), &json!(1)));
    for (index, expected) in expected.iter().enumerate() {
        assert_near(expected, &floats(&answer["data"][index]["embedding"]));
    }
    let first = floats(&answer["data"][0]["embedding"]);

    // One text, its tokens, and base64 give the same.
    for input in [json!(TEXTS[0]), json!(ids[0]), json!([ids[0]])] {
        let answer = server.whole("/v1/embeddings", &json!({"input": input}));
        assert_eq!(floats(&answer["data"][0]["embedding"]), first);
    }
    let coded = server.whole("/v1/embeddings", &json!({"input": TEXTS[0], "encoding_format": "base64"}));
    let bytes = STANDARD.decode(coded["data"][0]["embedding"].as_str().unwrap()).unwrap();
    let (words, _) = bytes.as_chunks::<4>();
    assert_eq!(words.iter().map(|&word| f32::from_le_bytes(word)).collect::<Vec<_>>(), first);

    // llama-server's form, without a norm, and Ollama's.
    let plain = server.whole("/embedding", &json!({"content": TEXTS[0], "embd_normalize": -1}));
    assert_near(rows(&ids[0]).last().unwrap(), &floats(&plain[0]["embedding"][0]));
    let embedded = server.whole("/api/embed", &json!({"input": TEXTS}));
    assert_eq!(floats(&embedded["embeddings"][0]), first);
    assert!(embedded["total_duration"].as_u64().is_some_and(|ns| ns > 0), "{embedded}");
    assert_eq!(server.whole("/api/embed", &json!({"input": ""}))["embeddings"], json!([]));
    // Its older endpoint has no norm. Of a text longer than the context, the beginning counts.
    let older = server.whole("/api/embeddings", &json!({"prompt": TEXTS[0]}));
    assert_near(rows(&ids[0]).last().unwrap(), &floats(&older["embedding"]));
    let long = "a ".repeat(600);
    assert_eq!(server.whole("/api/embed", &json!({"input": long}))["prompt_eval_count"], 256);
    let (status, message) = post(&server.address, "/api/embed", &json!({"input": long, "truncate": false}).to_string());
    let error: Value = serde_json::from_str(&message).unwrap();
    assert!(status.contains(" 400 ") && error["error"].is_string(), "{status} {message}");
    let short = server.whole("/v1/embeddings", &json!({"input": TEXTS[0], "dimensions": 8}));
    assert_near(&unit(&rows(&ids[0]).last().unwrap()[..8]), &floats(&short["data"][0]["embedding"]));

    // Text is still generated, in between.
    let completion = server.whole("/completion", &json!({"prompt": ids[0], "n_predict": 4, "temperature": 0}));
    assert_eq!(completion["tokens_predicted"], 4);
    assert!(get(&server.address, "/metrics").1.contains("llamacpp:prompt_tokens_total"));

    for (request, part) in [
        (json!({}), "input: expected text"),
        (json!({"input": []}), "input: expected 1 to 256 tokens"),
        (json!({"input": "a ".repeat(600)}), "found"),
        (json!({"input": [70000000]}), "the size of the vocabulary"),
        (json!({"input": "a", "encoding_format": "hex"}), "encoding_format: expected"),
        (json!({"input": "a", "dimensions": 0}), "dimensions: expected 1 to"),
    ] {
        let (status, message) = refused(&server, "/v1/embeddings", &request);
        assert!(status == "400" && message.contains(part), "{status} {message}");
    }
}

#[test]
fn rows_are_pooled_by_the_option() {
    for pooling in ["mean", "cls", "none"] {
        let server = start(&["--parallel", "1", "--ctx", "256", "--embeddings", "--pooling", pooling]);
        let rows = rows(&tokens(&server, TEXTS[0]));
        let answer = server.whole("/embedding", &json!({"content": TEXTS[0]}));
        let found: Vec<Vec<f32>> = serde_json::from_value(answer[0]["embedding"].clone()).unwrap();
        match pooling {
            "none" => {
                assert_eq!(found.len(), rows.len());
                rows.iter().zip(&found).for_each(|(expected, found)| assert_near(expected, found));
                let (status, message) = refused(&server, "/v1/embeddings", &json!({"input": "a"}));
                assert!(status == "400" && message.contains("--pooling none"), "{status} {message}");
            }
            "cls" => assert_near(&unit(&rows[0]), &found[0]),
            _ => {
                let sums = (0..rows[0].len()).map(|at| rows.iter().map(|row| row[at]).sum::<f32>());
                assert_near(&unit(&sums.collect::<Vec<_>>()), &found[0]);
            }
        }
    }
}

#[test]
fn long_texts_and_many_of_them_give_the_rows_of_each() {
    let server = start(&["--parallel", "3", "--ctx", "512", "--embeddings", "--pooling", "mean"]);
    let text = |n: usize| format!("{n} {}", "The fox went out to the hill. ".repeat(10 + 4 * (n % 3)));
    let texts: Vec<String> = (0..7).map(text).collect();
    let together = server.whole("/v1/embeddings", &json!({"input": texts}));
    for (index, text) in texts.iter().enumerate() {
        let alone = server.whole("/v1/embeddings", &json!({"input": text}));
        assert_eq!(alone["data"][0]["embedding"], together["data"][index]["embedding"], "text {index}");
    }
    // Beyond the rows of one step.
    let ids = tokens(&server, &texts[2]);
    assert!(ids.len() > 64, "{} tokens", ids.len());
    let rows = rows(&ids);
    let sums = (0..rows[0].len()).map(|at| rows.iter().map(|row| row[at]).sum::<f32>());
    let found = floats(&together["data"][2]["embedding"]);
    assert_near(&unit(&sums.collect::<Vec<_>>()), &found);
}

#[test]
fn documents_are_ranked_by_the_reference_s_yes_and_no() {
    let server = start(&["--parallel", "2", "--ctx", "512", "--reranking"]);
    let documents = ["A fox lives on the island.", "Bread is baked.", "The sea is wide and cold, and ships are on it."];
    let request = json!({"query": TEXTS[0], "documents": documents});
    let answer = server.whole("/v1/rerank", &request);
    let results = answer["results"].as_array().unwrap();
    assert_eq!(results.len(), 3);
    let [yes, no] = ["yes", "no"].map(|word| {
        let answer = server.whole("/tokenize", &json!({"content": word}));
        answer["tokens"][0].as_u64().unwrap() as usize
    });
    let system = "Judge whether the Document meets the requirements based on the Query and the Instruct provided. Note that the \
                  answer can only be \"yes\" or \"no\".";
    let mut scores = Vec::new();
    for result in results {
        let document = documents[result["index"].as_u64().unwrap() as usize];
        let question = format!(
            "<Instruct>: Given a web search query, retrieve relevant passages that answer the query\n<Query>: {}\n<Document>: {document}",
            TEXTS[0]
        );
        let messages = json!([{"role": "system", "content": system}, {"role": "user", "content": question}]);
        let prompt = server.whole("/apply-template", &json!({"messages": messages}))["prompt"].clone();
        let logits = REFERENCE.logits(&tokens(&server, prompt.as_str().unwrap()));
        let last = &logits[logits.len() - REFERENCE.vocab_size()..];
        let expected = 1.0 / (1.0 + f64::from(last[no] - last[yes]).exp());
        let score = result["relevance_score"].as_f64().unwrap();
        assert!((odds(score) - odds(expected)).abs() < ODDS_TOLERANCE, "{score} and {expected}");
        scores.push(score);
    }
    assert!(scores.is_sorted_by(|one, other| one >= other), "{scores:?}");
    let best =
        server.whole("/rerank", &json!({"query": TEXTS[0], "texts": documents, "top_n": 1, "return_text": true}));
    let index = results[0]["index"].as_u64().unwrap() as usize;
    assert_eq!(best, json!([{"index": index, "score": results[0]["relevance_score"], "text": documents[index]}]));
    // vLLM's scores have the order of the documents.
    let scored = server.whole("/score", &json!({"text_1": TEXTS[0], "text_2": documents}));
    assert_eq!(scored["data"][index]["score"], results[0]["relevance_score"]);
    let pairs = server.whole("/v1/score", &json!({"queries": [TEXTS[0], "a"], "documents": &documents[..2]}));
    assert_eq!((&pairs["data"][0], pairs["data"].as_array().map(Vec::len)), (&scored["data"][0], Some(2)));
    let (status, message) = refused(&server, "/score", &json!({"text_1": ["a", "b"], "text_2": documents}));
    assert!(status == "400" && message.starts_with("text_2: expected 2 texts"), "{status} {message}");
    let (status, message) = refused(&server, "/rerank", &json!({"documents": documents}));
    assert!(status == "400" && message.contains("query: expected a text"), "{status} {message}");
    // Refused before any of them is tokenized: it would take minutes.
    let many = json!({"query": TEXTS[0], "documents": vec![""; 100_000]});
    let (status, message) = refused(&server, "/rerank", &many);
    assert!(status == "400" && message.contains("found 100000"), "{status} {message}");
}

/// What transformers makes of the same model; `tests/golden/readings.py` wrote it.
#[test]
fn readings_are_those_of_transformers() {
    let golden: Value = serde_json::from_str(include_str!("../golden/readings.json")).unwrap();
    for pooling in ["mean", "last"] {
        let options = ["--parallel", "2", "--ctx", "512", "--reranking", "--embeddings", "--pooling", pooling];
        let server = start(&options);
        for expected in golden["embeddings"].as_array().unwrap() {
            let answer = server.whole("/v1/embeddings", &json!({"input": expected["text"]}));
            assert_near(&floats(&expected[pooling]), &floats(&answer["data"][0]["embedding"]));
        }
        let scores = golden["scores"].as_array().unwrap();
        let documents: Vec<&Value> = scores.iter().map(|one| &one["document"]).collect();
        let answer = server.whole("/v1/rerank", &json!({"query": golden["query"], "documents": documents}));
        let results = answer["results"].as_array().unwrap();
        assert_eq!(results.len(), scores.len());
        for result in results {
            let expected = &scores[result["index"].as_u64().unwrap() as usize]["score"];
            let [found, expected] = [&result["relevance_score"], expected].map(|score| odds(score.as_f64().unwrap()));
            assert!((found - expected).abs() < ODDS_TOLERANCE, "{result}: odds {found} and {expected}");
        }
    }
}

#[test]
fn a_server_without_these_names_the_option_that_enables_them() {
    let server = start(&["--parallel", "1", "--ctx", "64"]);
    for (path, option) in [("/v1/embeddings", "--embeddings"), ("/v1/rerank", "--reranking")] {
        let (status, message) = refused(&server, path, &json!({"input": "a"}));
        assert!(status == "501" && message.contains(option), "{status} {message}");
    }
    let ended = program("unicorn-run").args(["serve", "m.unicorn", "--pooling", "sum"]).output().unwrap();
    assert!(!ended.status.success() && String::from_utf8_lossy(&ended.stderr).contains("mean"));
}
