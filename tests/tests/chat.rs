//! unicorn-text as a library: a `Chat` on a real device.

use std::sync::LazyLock;

use tests::compiled::{Compiled, options};
use tests::models::models;
use unicorn_runtime::{CancelToken, LoadOptions, Model};
use unicorn_text::{Chat, ChatOptions, Continuation, EndReason, Message, StopConditions, TextError, Tokenizer};

static MODEL: LazyLock<Compiled> = LazyLock::new(|| {
    let targets = ["llvmpipe", "generic"].into_iter().filter_map(unicorn_spirv::target::by_name).collect();
    Compiled::of_folder(&models().join("gemma3-2m-draft"), &options(targets, vec![]))
});

fn load() -> Model {
    let device = std::env::var("UNICORN_DEVICE").unwrap_or("llvmpipe".into());
    let Ok(device) = device.parse();
    let options = LoadOptions::default().with(|options| {
        options.device = device;
        options.context_tokens = Some(512);
    });
    Model::load(&MODEL.artifact_path(), &options).unwrap()
}

/// Greedy answers of at most `max_tokens`.
fn chat(model: &Model, max_tokens: u32) -> Chat {
    let mut options = ChatOptions::default();
    (options.sampling.temperature, options.max_tokens) = (0.0, Some(max_tokens));
    Chat::new(model, options).unwrap()
}

#[test]
fn a_chat_yields_pieces_and_continues_from_its_cache() {
    let model = load();
    let mut chat = chat(&model, 12);
    drop(model);
    // The chat owns all that it needs.
    let (mut chat, first) = std::thread::spawn(move || {
        let mut answer = chat.ask("Who lives on the island?").unwrap();
        assert_eq!(answer.continuation().cached_tokens(), 0);
        let pieces: Vec<String> = answer.by_ref().map(Result::unwrap).collect();
        assert!(pieces.len() > 1 && pieces.iter().all(|piece| !piece.is_empty()), "{pieces:?}");
        assert_eq!((answer.text(), answer.end_reason()), (pieces.concat().as_str(), Some(EndReason::MaxTokens)));
        assert_eq!(answer.continuation().tokens().len(), 12);
        drop(answer);
        (chat, pieces.concat())
    })
    .join()
    .unwrap();
    assert_eq!(chat.history()[1], Message::new("assistant", first.as_str()));

    let answer = chat.ask("And who else?").unwrap();
    let (cached, prompt) = (answer.continuation().cached_tokens(), answer.continuation().prompt_tokens());
    assert!(0 < cached && cached < prompt, "{cached} of {prompt}");
    // An answer that is not read to its end stays in the history as far as it was read.
    drop(answer);
    assert_eq!(chat.history()[3], Message::new("assistant", ""));

    chat.clear();
    let again: String = chat.ask("Who lives on the island?").unwrap().map(Result::unwrap).collect();
    assert_eq!(again, first);
}

#[test]
fn a_stop_string_and_a_cancelled_token_end_an_answer() {
    let model = load();
    let mut chat = chat(&model, 40);
    let whole: String = chat.ask("Tell me of the sea.").unwrap().map(Result::unwrap).collect();
    let middle = whole.char_indices().nth(whole.chars().count() / 2).unwrap().0;
    let stop: String = whole[middle..].chars().take(4).collect();
    chat.clear();
    chat.options_mut().stop_strings = vec![stop.clone()];
    let mut answer = chat.ask("Tell me of the sea.").unwrap();
    let stopped: String = answer.by_ref().map(Result::unwrap).collect();
    assert_eq!(
        (stopped.as_str(), answer.end_reason()),
        (&whole[..whole.find(&stop).unwrap()], Some(EndReason::StopString))
    );
    drop(answer);

    let cancel = CancelToken::new();
    chat.set_cancel(cancel.clone());
    chat.clear();
    chat.options_mut().stop_strings.clear();
    let mut answer = chat.ask("Tell me of the sea.").unwrap();
    answer.next().unwrap().unwrap();
    cancel.cancel();
    let _rest: Vec<String> = answer.by_ref().map(Result::unwrap).collect();
    assert_eq!(answer.end_reason(), Some(EndReason::Cancelled));
}

#[test]
fn a_prompt_is_continued_until_the_context_is_full() {
    let model = load();
    let tokenizer = Tokenizer::new(model.tokenizer_section()).unwrap();
    let mut session = model.session().unwrap();
    let prompt = tokenizer.encode_prompt(&"The sea was calm. ".repeat(80)).unwrap();
    let sampling = unicorn_runtime::Sampling::default();
    let prompt = &prompt[..500.min(prompt.len())];
    let mut continuation =
        Continuation::new(&mut session, &tokenizer, prompt, &sampling, StopConditions::default()).unwrap();
    assert!(continuation.by_ref().all(|piece| piece.is_ok()));
    assert_eq!(continuation.end_reason(), Some(EndReason::ContextFull));
    assert_eq!(prompt.len() + continuation.tokens().len(), 513, "the last token is sampled and not in the cache");
    drop(continuation);

    let conditions = StopConditions::default();
    let empty = Continuation::new(&mut session, &tokenizer, &[], &sampling, conditions);
    assert!(matches!(empty.err(), Some(TextError::EmptyPrompt)));
}
