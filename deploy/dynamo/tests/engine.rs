//! The engine on a real model: Dynamo's conformance kit, and the same tokens as elsewhere. On llvmpipe unless `UNICORN_DEVICE` is another.

use std::time::Duration;

use common::{CONTEXT, Server, checkpoint, chunks, engine, prompt, request, started, tokens};
use dynamo_backend_common::engine::GenerateContext;
use dynamo_backend_common::testing::{mock_context, run_conformance};
use dynamo_backend_common::{FinishReason, LLMEngine, StopReason};
use futures::StreamExt;
use futures::future::join_all;
use safetensors::SafeTensors;
use serde_json::json;
use unicorn_runtime::TokenizerSection;
use unicorn_text::Tokenizer;

mod common;

/// Longer than any of these texts takes; a test that waits so long has failed.
const PATIENCE: Duration = Duration::from_secs(120);

#[tokio::test]
async fn conformance() {
    run_conformance(|| engine(4)).await.unwrap();
}

#[tokio::test]
async fn greedy_tokens_are_those_of_unicorn_run() {
    let (server, engine) = (Server::start(), started(1).await);
    for number in 0..6 {
        let prompt = prompt(number);
        let (found, _) = tokens(&engine, request(&prompt, 24, json!({}))).await;
        assert_eq!(found, server.tokens(&prompt, 24), "{prompt:?}");
        assert_eq!(found.len(), 24);
    }
    engine.cleanup().await.unwrap();
}

#[tokio::test]
async fn greedy_tokens_are_those_of_transformers() {
    let bytes = std::fs::read(checkpoint().join("golden.safetensors")).unwrap();
    let golden = SafeTensors::deserialize(&bytes).unwrap();
    let ids = |name: &str| -> Vec<u32> {
        let words = golden.tensor(name).unwrap().data().as_chunks::<4>().0;
        words.iter().map(|word| u32::from_le_bytes(*word)).collect()
    };
    let (fed, greedy, engine) = (ids("tokens"), ids("greedy"), started(4).await);
    let endless = json!({"stop_conditions": {"ignore_eos": true}});
    let (found, reason) = tokens(&engine, request(&fed, greedy.len() as u32, endless)).await;
    assert_eq!((found, reason), (greedy, FinishReason::Length));
    engine.cleanup().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_at_a_time_have_the_tokens_that_each_has_alone() {
    let engine = started(4).await;
    let mut alone = Vec::new();
    for number in 0..12 {
        alone.push(tokens(&engine, request(&prompt(number), 16 + number, json!({}))).await);
    }
    // More than there are sequences: some wait.
    let together = (0..12).map(|number| {
        let engine = engine.clone();
        tokio::spawn(async move { tokens(&engine, request(&prompt(number), 16 + number, json!({}))).await })
    });
    let together: Vec<_> = join_all(together).await.into_iter().map(Result::unwrap).collect();
    assert_eq!(together, alone);
    engine.cleanup().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_request_makes_room_for_the_next() {
    let engine = started(1).await;
    let (expected, _) = tokens(&engine, request(&prompt(1), 8, json!({}))).await;
    let long = || request(&prompt(0), CONTEXT, json!({"stop_conditions": {"ignore_eos": true}}));
    let (whole, _) = tokens(&engine, long()).await;

    let context = mock_context();
    let mut stream = engine.generate(long(), GenerateContext::new(context.clone(), None)).await.unwrap();
    let waiting = tokio::spawn({
        let engine = engine.clone();
        async move { tokens(&engine, request(&prompt(1), 8, json!({}))).await }
    });
    let mut seen = Vec::new();
    while seen.len() < 3 {
        seen.extend(stream.next().await.unwrap().unwrap().token_ids);
    }
    context.stop_generating();
    let last = stream.next().await.unwrap().unwrap();
    assert_eq!(last.finish_reason, Some(FinishReason::Cancelled));
    assert_eq!(last.completion_usage.unwrap().completion_tokens, 3);
    assert!(stream.next().await.is_none());
    assert_eq!(seen, whole[..3]);
    let (next, _) = tokio::time::timeout(PATIENCE, waiting).await.unwrap().unwrap();
    assert_eq!(next, expected);

    // A stream that is dropped is cancelled as well.
    let mut dropped = engine.generate(long(), GenerateContext::new(mock_context(), None)).await.unwrap();
    assert_eq!(dropped.next().await.unwrap().unwrap().token_ids, whole[..1]);
    drop(dropped);
    assert_eq!(tokens(&engine, request(&prompt(1), 8, json!({}))).await.0, expected);
    engine.cleanup().await.unwrap();
}

#[tokio::test]
async fn the_higher_priority_comes_first() {
    let engine = started(1).await;
    let (context, endless) = (mock_context(), json!({"stop_conditions": {"ignore_eos": true}}));
    let running = GenerateContext::new(context.clone(), None);
    let mut first = engine.generate(request(&prompt(0), CONTEXT, endless), running).await.unwrap();
    first.next().await.unwrap().unwrap();
    let mut waiting = Vec::new();
    for priority in [0, 5] {
        let request = request(&prompt(1), 8, json!({"routing": {"priority": priority}}));
        waiting.push(engine.generate(request, GenerateContext::new(mock_context(), None)).await.unwrap());
    }
    context.stop_generating();
    let (mut usual, mut urgent) = (waiting.remove(0), waiting.remove(0));
    let ended = tokio::time::timeout(PATIENCE, async {
        tokio::select! {
            biased;
            _ = usual.next() => "usual",
            n_chunks = urgent.by_ref().count() => if n_chunks == 8 { "urgent" } else { "cut" },
        }
    });
    assert_eq!(ended.await.unwrap(), "urgent");
    engine.cleanup().await.unwrap();
}

#[tokio::test]
async fn stop_tokens_and_limits_end_a_text() {
    let engine = started(2).await;
    let (known, reason) = tokens(&engine, request(&prompt(2), 12, json!({}))).await;
    assert_eq!((known.len(), reason), (12, FinishReason::Length));
    let stop = known[5];
    let until = known.iter().position(|&token| token == stop).unwrap() + 1;
    for (field, reason) in [("stop_token_ids", Some(StopReason::Int(stop.into()))), ("stop_token_ids_hidden", None)] {
        let stopped = request(&prompt(2), 12, json!({"stop_conditions": {field: [stop]}}));
        let chunks = chunks(&engine, stopped, mock_context()).await.unwrap();
        let last = chunks.last().unwrap();
        assert_eq!((&last.finish_reason, &last.stop_reason), (&Some(FinishReason::Stop), &reason));
        let usage = last.completion_usage.as_ref().unwrap();
        assert_eq!((usage.prompt_tokens, usage.completion_tokens), (prompt(2).len() as u32, until as u32));
        let found: Vec<u32> = chunks.iter().flat_map(|chunk| chunk.token_ids.clone()).collect();
        assert_eq!(found, known[..until]);
    }
    // Before the least number of tokens, another one is sampled in the place of the stop token.
    let longer = request(&prompt(2), 12, json!({"stop_conditions": {"stop_token_ids": [stop], "min_tokens": 8}}));
    let (longer, _) = tokens(&engine, longer).await;
    assert_eq!(longer[..until - 1], known[..until - 1]);
    assert!(longer.len() >= 8 && !longer[..8].contains(&stop), "{longer:?}");

    let endless = request(&prompt(2), 10 * CONTEXT, json!({"stop_conditions": {"ignore_eos": true}}));
    let (full, reason) = tokens(&engine, endless).await;
    assert_eq!((full.len() + prompt(2).len(), reason), (CONTEXT as usize + 1, FinishReason::Length));
    engine.cleanup().await.unwrap();
}

#[tokio::test]
async fn sampling_follows_its_parameters() {
    let engine = started(2).await;
    let (greedy, _) = tokens(&engine, request(&prompt(3), 16, json!({}))).await;
    let hot = |seed: i64| json!({"sampling_options": {"temperature": 1.5, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "seed": seed}});
    let (one, _) = tokens(&engine, request(&prompt(3), 16, hot(7))).await;
    assert_eq!(tokens(&engine, request(&prompt(3), 16, hot(7))).await.0, one);
    assert_ne!(tokens(&engine, request(&prompt(3), 16, hot(8))).await.0, one);
    assert_ne!(one, greedy);
    let narrow = json!({"sampling_options": {"temperature": 1.5, "top_k": 1}});
    assert_eq!(tokens(&engine, request(&prompt(3), 16, narrow)).await.0, greedy);

    let rated = request(&prompt(3), 16, json!({"output_options": {"logprobs": 2}}));
    let chunks = chunks(&engine, rated, mock_context()).await.unwrap();
    for (chunk, token) in chunks.iter().zip(&greedy) {
        let (logprob, top) = (chunk.log_probs.as_ref().unwrap()[0], &chunk.top_logprobs.as_ref().unwrap()[0]);
        // The most likely token is the one that was sampled.
        assert_eq!((chunk.token_ids[0], top[0].token_id, top[0].rank, top.len()), (*token, *token, 1, 2));
        assert!(logprob == top[0].logprob && logprob < 0.0 && top[1].logprob <= logprob, "{logprob} {top:?}");
    }
    engine.cleanup().await.unwrap();
}

#[tokio::test]
async fn guided_replies_match() {
    let engine = started(2).await;
    let tokenizer = std::fs::read_to_string(checkpoint().join("tokenizer.json")).unwrap();
    let tokenizer =
        Tokenizer::new(&TokenizerSection { tokenizer_json: tokenizer, ..TokenizerSection::default() }).unwrap();
    let guided =
        |guided: serde_json::Value| request(&prompt(1), 40, json!({"sampling_options": {"guided_decoding": guided}}));
    for (guide, expected) in [
        (json!({"choice": ["a yellow boat", "a red boat"]}), ["a yellow boat", "a red boat"]),
        (json!({"regex": "(12|21)34"}), ["1234", "2134"]),
        (json!({"json": {"enum": [1, true]}}), ["1", "true"]),
        (json!({"grammar": "root ::= \"left\" | \"right\""}), ["left", "right"]),
    ] {
        let (found, reason) = tokens(&engine, guided(guide.clone())).await;
        let text = tokenizer.decode(&found).unwrap();
        assert!(expected.contains(&text.as_str()) && reason == FinishReason::Stop, "{guide}: {text:?}, {reason}");
    }
    engine.cleanup().await.unwrap();
}

#[tokio::test]
async fn what_cannot_be_answered_is_refused() {
    let engine = started(1).await;
    let long = vec![7; CONTEXT as usize + 1];
    for (prompt, fields, expected) in [
        (&[][..], json!({}), "prompt: expected 1 to 256 tokens, the context, found 0"),
        (&long[..], json!({}), "prompt: expected 1 to 256 tokens, the context, found 257"),
        (&[7, 8192], json!({}), "prompt: expected token ids below 8192, the size of the vocabulary, found 8192"),
        (&[7], json!({"stop_conditions": {"max_tokens": 0}}), "max_tokens: expected at least 1"),
        (&[7], json!({"stop_conditions": {"min_tokens": 9}}), "min_tokens, 9; found 8"),
        (&[7], json!({"stop_conditions": {"stop_token_ids": [9000]}}), "stop tokens: expected token ids below 8192"),
        (&[7], json!({"sampling_options": {"temperature": -1.0}}), "temperature must be 0 or more"),
        (&[7], json!({"sampling_options": {"top_p": 1.5}}), "top-p must be above 0 and at most 1"),
        (&[7], json!({"sampling_options": {"n": 2}}), "n: expected 1 choice"),
        (&[7], json!({"sampling_options": {"guided_decoding": {"regex": "("}}}), "guided decoding: "),
        (&[7], json!({"sampling_options": {"guided_decoding": {"regex": "a", "grammar": "b"}}}), "Only one"),
        (&[7], json!({"output_options": {"prompt_logprobs": 1}}), "prompt_logprobs: expected none"),
        (&[7], json!({"routing": {"lora_name": "other"}}), "adapters are merged when a model is compiled"),
        (&[7], json!({"routing": {"cache_salt": "mine"}}), "cache_salt: expected none"),
        (&[7], json!({"multi_modal_data": {"image_url": [{"Url": "http://localhost/a.png"}]}}), "images"),
    ] {
        let error = chunks(&engine, request(prompt, 8, fields), mock_context()).await.expect_err(expected);
        assert!(error.to_string().contains(expected), "expected {expected:?}, found {error}");
        assert!(format!("{:?}", error.error_type()).contains("InvalidArgument"), "{error:?}");
    }
    engine.cleanup().await.unwrap();
    let gone = chunks(&engine, request(&[7], 8, json!({})), mock_context()).await.unwrap_err();
    assert!(gone.to_string().contains("engine is not running"), "{gone}");
}
