//! A trial of a model's tokenizer. Its rules are untrusted data, and some of them make the library that runs them panic or never
//! end: that is found here, before an artifact is made, and not at the first request.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use tokenizers::Tokenizer;

/// Name of the thread on which a model's tokenizer is tried. A panic there is an error of the compile, so a program's panic hook
/// may leave it out.
pub const TRIAL_THREAD: &str = "tokenizer trial";

/// Far more than the half second that the largest tokenizers take.
const LIMIT: Duration = Duration::from_secs(60);

/// Letters of several scripts, an emoji of several code points, numbers, white space, a control character.
const TEXT: &str =
    "Hello, world!  It's 1,234.5 – naïve Straße\n\n\tДа 日本語 한국어 العربية e\u{301} 👩‍🚀\u{0} <s> </s> ";

/// Tokens that are decoded at a time.
const DECODED_TOKENS: usize = 64;

/// Parses tokenizer.json, encodes a text with it and decodes every token.
///
/// # Errors
/// When it is not a tokenizer, panics, or takes longer than a minute.
pub fn tried(tokenizer_json: &str) -> Result<Tokenizer, String> {
    tried_within(LIMIT, tokenizer_json, trial)
}

fn tried_within(limit: Duration, tokenizer_json: &str, trial: Trial) -> Result<Tokenizer, String> {
    let (sender, receiver) = mpsc::channel();
    let owned = tokenizer_json.to_owned();
    let work = move || drop(sender.send(caught(&owned, trial)));
    match thread::Builder::new().name(TRIAL_THREAD.into()).spawn(work) {
        Ok(_) => receiver.recv_timeout(limit).unwrap_or_else(|_| {
            Err(format!("tokenizer is not done with a short text after {} s, expected less than 1 s", limit.as_secs()))
        }),
        // No thread can be started: the trial runs on this one, without a limit of time.
        Err(_) => caught(tokenizer_json, trial),
    }
}

type Trial = fn(&str) -> Result<Tokenizer, String>;

fn caught(tokenizer_json: &str, trial: Trial) -> Result<Tokenizer, String> {
    catch_unwind(AssertUnwindSafe(|| trial(tokenizer_json)))
        .unwrap_or_else(|_| Err("tokenizer panics while it encodes or decodes, expected one that can be run".into()))
}

fn trial(tokenizer_json: &str) -> Result<Tokenizer, String> {
    let tokenizer: Tokenizer = tokenizer_json.parse().map_err(|error| format!("tokenizer: {error}"))?;
    // Callers handle errors; only a tokenizer that gives no result is refused.
    let _ = tokenizer.encode(TEXT, true);
    let ids: Vec<u32> = (0..tokenizer.get_vocab_size(true) as u32).collect();
    for some in ids.chunks(DECODED_TOKENS) {
        let _ = tokenizer.decode(some, false);
    }
    Ok(tokenizer)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn with_decoder(decoder: Value) -> String {
        json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
            "pre_tokenizer": null, "post_processor": null, "decoder": decoder,
            "model": { "type": "WordLevel", "unk_token": "<unk>", "vocab": { "<unk>": 0, "a": 1, "bb": 2 } },
        })
        .to_string()
    }

    #[test]
    fn a_decoder_that_panics_is_refused() {
        // It takes five letters off the end of every token, of which "a" has one.
        let message = tried(&with_decoder(json!({ "type": "Strip", "content": "a", "start": 0, "stop": 5 })));
        assert_eq!(message.unwrap_err(), "tokenizer panics while it encodes or decodes, expected one that can be run");
        assert!(tried(&with_decoder(json!({ "type": "Strip", "content": "a", "start": 0, "stop": 1 }))).is_ok());
        assert!(tried("{}").unwrap_err().starts_with("tokenizer: "));
    }

    #[test]
    fn a_tokenizer_that_never_ends_is_refused() {
        let endless = |_: &str| loop {
            thread::sleep(Duration::from_millis(50));
        };
        let message = tried_within(Duration::ZERO, "", endless).unwrap_err();
        assert_eq!(message, "tokenizer is not done with a short text after 0 s, expected less than 1 s");
    }
}
