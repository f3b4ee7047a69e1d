//! unicorn-text: a `Chat` and a `Continuation`.

use std::sync::Arc;

use unicorn_runtime::{CancelToken, LoadOptions, Model};
use unicorn_structure::{AnswerStructure, Structure};
use unicorn_text::{
    Chat, ChatOptions, ChatTemplate, Continuation, EndReason, Message, StopConditions, TextError, Tokenizer,
};

use crate::{MODEL, SCHEMA, device};

fn load() -> Model {
    load_for(1)
}

fn load_for(slots: u32) -> Model {
    let Ok(device) = device().parse();
    let options = LoadOptions::default().with(|options| {
        options.device = device;
        options.context_tokens = Some(512);
        options.slots = slots;
    });
    Model::load(&MODEL.artifact_path(), &options).unwrap()
}

/// Greedy answers of at most `max_tokens`.
fn chat(model: &Model, max_tokens: u32) -> Chat {
    Chat::new(model, greedy(max_tokens)).unwrap()
}

fn greedy(max_tokens: u32) -> ChatOptions {
    let mut options = ChatOptions::default();
    (options.sampling.temperature, options.max_tokens) = (0.0, Some(max_tokens));
    options
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

/// As in a server: tokenizer and template are parsed once, and each thread has a chat of its own.
#[test]
fn an_answer_matches_a_schema_a_grammar_or_an_expression() {
    let model = load();
    let mut chat = chat(&model, 100);
    let mut ask = |structure: Structure| {
        let constraint = AnswerStructure::new(&structure, &model, chat.tokenizer()).unwrap();
        chat.options_mut().constraint = Some(Arc::new(constraint));
        let mut answer = chat.ask("Who lives on the island?").unwrap();
        let text: String = answer.by_ref().map(Result::unwrap).collect();
        assert_eq!(answer.end_reason(), Some(EndReason::StopToken), "{text}");
        text
    };
    let text = ask(Structure::from_schema_text(SCHEMA).unwrap());
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert!(json["a"].is_boolean() && json.as_object().unwrap().len() == 1, "{text}");
    let text = ask(Structure::from_grammar("root ::= \"<\" [0-9] [0-9] \">\"".into()).unwrap());
    assert!(text.len() == 4 && text.starts_with('<') && text[1..3].parse::<u8>().is_ok(), "{text}");
    let text = ask(Structure::Regex("(yes|no)!".into()));
    assert!(["yes!", "no!"].contains(&text.as_str()), "{text}");
    // Without it, the same chat answers freely.
    chat.options_mut().constraint = None;
    let free: String = chat.ask("Who lives on the island?").unwrap().map(Result::unwrap).collect();
    assert!(free.split_whitespace().count() > 5, "{free}");
}

#[test]
fn chats_on_several_threads_share_a_parsed_tokenizer_and_template() {
    const QUESTIONS: [&str; 3] = ["Who lives on the island?", "Tell me of the sea.", "Where is the ship?"];
    let ask = |chat: &mut Chat, question| chat.ask(question).unwrap().map(Result::unwrap).collect::<String>();
    let model = load_for(QUESTIONS.len() as u32);
    let section = model.tokenizer_section();
    let tokenizer = Tokenizer::new(section).unwrap();
    let template = ChatTemplate::new(section, model.context_tokens()).unwrap();
    let alone = QUESTIONS.map(|question| ask(&mut chat(&model, 12), question));
    let together = std::thread::scope(|scope| {
        let answers = QUESTIONS.map(|question| {
            let (tokenizer, template) = (tokenizer.clone(), template.clone());
            let mut chat = Chat::with_parsed(&model, tokenizer, template, greedy(12)).unwrap();
            scope.spawn(move || ask(&mut chat, question))
        });
        answers.map(|answer| answer.join().unwrap())
    });
    assert_eq!(together, alone);
    assert!(StopConditions::of(section).stop_tokens == section.stop_ids && !section.stop_ids.is_empty());
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

/// Tokens of a prompt with these messages.
fn prompt_tokens(chat: &Chat, tokenizer: &Tokenizer, messages: &[Message]) -> u32 {
    let text = chat.template().render(messages, &chat.options().template_arguments).unwrap();
    tokenizer.encode(&text).unwrap().len() as u32
}

#[test]
fn a_full_context_loses_its_oldest_turns_and_keeps_the_system_message() {
    let model = load();
    let tokenizer = Tokenizer::new(model.tokenizer_section()).unwrap();
    let mut chat = chat(&model, 60);
    chat.options_mut().system = Some("You tell short stories of the sea.".to_owned());
    let question = "What happened on the island after the storm had sunk the ship of the captain?";
    while chat.turns_left_out() == 0 {
        assert!(chat.history().len() < 40, "512 tokens do not hold so much");
        chat.ask(question).unwrap().for_each(|piece| drop(piece.unwrap()));
    }
    let left_out = chat.turns_left_out();
    let system = Message::new("system", chat.options().system.clone().unwrap());
    let kept = chat.history()[2 * left_out..].to_vec();
    let next: Vec<Message> = [vec![system], kept, vec![Message::new("user", "And then?")]].concat();
    let expected = prompt_tokens(&chat, &tokenizer, &next);
    let answer = chat.ask("And then?").unwrap();
    let continuation = answer.continuation();
    assert_eq!(continuation.prompt_tokens(), expected, "the system message and all turns but the oldest");
    assert!(expected < 512 * 3 / 4, "half of the context was freed, not one turn at a time: {expected}");
    drop(answer);
    assert_eq!(chat.turns_left_out(), left_out);

    // An answer that fills the context goes on without older turns.
    chat.options_mut().max_tokens = None;
    let mut answer = chat.ask("Go on.").unwrap();
    let begun: String = answer.by_ref().map(Result::unwrap).collect();
    assert_eq!(answer.end_reason(), Some(EndReason::ContextFull));
    drop(answer);
    assert!(chat.can_resume());
    let more: String = chat.resume().unwrap().unwrap().take(8).map(Result::unwrap).collect();
    assert_eq!(chat.history().last().unwrap().content, begun + &more);
    assert!(chat.turns_left_out() > left_out);

    assert_eq!(chat.take_last_question().unwrap(), "Go on.");
    assert_eq!(chat.history().last().unwrap().role, "assistant");
}
