//! The smallest tokenizer that takes every text: one token a byte, and no merges.

use serde_json::{Map, Value, json};

const SPECIAL_TOKENS: [&str; 3] = ["<pad>", "<bos>", "<eos>"];

/// `tokenizer.json` and `tokenizer_config.json` for exactly `vocab_size` tokens: the special ones, the bytes, and
/// `<unusedN>` for the rest. If `vocab_size` is too small for all bytes, the last are left out.
pub fn one_token_a_byte(vocab_size: usize) -> (Value, Value) {
    let special = SPECIAL_TOKENS.iter().map(|token| token.to_string());
    let unused = (0..).map(|number| format!("<unused{number}>"));
    let tokens = special.chain(byte_letters()).chain(unused).take(vocab_size);
    let vocab: Map<String, Value> = tokens.enumerate().map(|(id, token)| (token, json!(id))).collect();

    let added = |(id, content): (usize, &&str)| {
        json!({
            "id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true,
        })
    };
    let added_tokens: Vec<Value> = SPECIAL_TOKENS.iter().enumerate().map(added).collect();
    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    let tokenizer = json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added_tokens,
        "normalizer": null,
        "pre_tokenizer": byte_level,
        "post_processor": null,
        "decoder": byte_level,
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
            "vocab": vocab, "merges": [],
        },
    });
    let config = json!({
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>",
    });
    (tokenizer, config)
}

/// The letter that byte-level tokenizers write for each byte: a printable Latin-1 letter for itself, and the next
/// letter from U+0100 on for every other byte. Printable letters come first.
fn byte_letters() -> impl Iterator<Item = String> {
    let printable = |byte: &u32| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let others = (0..256u32).filter(move |byte| !printable(byte)).zip(0x100..).map(|(_, letter)| letter);
    (0..256).filter(printable).chain(others).map(|letter| char::from_u32(letter).expect("a letter").to_string())
}
