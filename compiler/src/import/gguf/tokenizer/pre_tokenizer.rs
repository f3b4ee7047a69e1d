//! How text is cut into words before byte-level BPE merges inside them, by `tokenizer.ggml.pre`.

use crate::error::{CompileError, Result};

/// One rule by which text is split.
pub struct PreTokenizer {
    /// Names in `tokenizer.ggml.pre`.
    names: &'static [&'static str],
    /// Applied one after the other; each match is a word, and so is each text between matches.
    pub patterns: &'static [&'static str],
    /// Text is first converted to Unicode's composed form (NFC).
    pub composes_unicode: bool,
    /// A word that is a token becomes that token without merging.
    pub takes_known_words_whole: bool,
    /// Whether BOS is added where the file does not state it.
    pub adds_bos: bool,
}

impl PreTokenizer {
    pub fn named(name: &str) -> Result<&'static PreTokenizer> {
        PRE_TOKENIZERS.iter().find(|known| known.names.contains(&name)).ok_or_else(|| CompileError::Unsupported {
            what: format!("tokenizer.ggml.pre {name}"),
            detail: format!(
                "supported are: {}",
                PRE_TOKENIZERS.iter().flat_map(|known| known.names).copied().collect::<Vec<_>>().join(", ")
            ),
        })
    }
}

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const EACH_DIGIT: &str = r"\p{N}";
/// GPT-4's: digits by threes, a word takes the character before it, newlines stay with punctuation.
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// The same with single digits.
const QWEN2: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// GPT-4o's: words also end where a capital follows a small letter.
const GPT4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Mistral's: GPT-4o's without contractions and with single digits.
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// llama.cpp's for files without a name.
const DEFAULT: &[&str] = &[r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"];

const PLAIN: PreTokenizer = PreTokenizer {
    names: &[],
    patterns: &[],
    composes_unicode: false,
    takes_known_words_whole: false,
    adds_bos: false,
};

const PRE_TOKENIZERS: &[PreTokenizer] = &[
    PreTokenizer { names: &["default"], patterns: DEFAULT, ..PLAIN },
    PreTokenizer {
        names: &["gpt-2", "phi-2", "olmo", "mpt", "jais", "trillion", "exaone4", "a.x-4.0", "mellum"],
        patterns: &[GPT2],
        ..PLAIN
    },
    PreTokenizer {
        names: &["smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"],
        patterns: &[EACH_DIGIT, GPT2],
        ..PLAIN
    },
    PreTokenizer {
        names: &["llama3", "llama-v3", "llama-bpe", "falcon3", "pixtral", "lfm2"],
        patterns: &[LLAMA3],
        takes_known_words_whole: true,
        adds_bos: true,
        ..PLAIN
    },
    PreTokenizer { names: &["dbrx", "smaug-bpe", "glm4", "chatglm-bpe"], patterns: &[LLAMA3], ..PLAIN },
    // Qwen's own tokenizer composes; llama.cpp leaves that out.
    PreTokenizer { names: &["qwen2"], patterns: &[QWEN2], composes_unicode: true, ..PLAIN },
    PreTokenizer {
        names: &["deepseek-r1-qwen", "stablelm2", "megrez", "hunyuan", "grok-2"],
        patterns: &[QWEN2],
        ..PLAIN
    },
    PreTokenizer { names: &["gpt-4o", "llama4", "kanana2"], patterns: &[GPT4O], ..PLAIN },
    PreTokenizer { names: &["tekken"], patterns: &[TEKKEN], takes_known_words_whole: true, adds_bos: true, ..PLAIN },
];

#[cfg(test)]
mod tests {
    use tokenizers::{OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer as _, PreTokenizerWrapper};

    use super::PreTokenizer;

    /// Where `name` cuts `text`, each pattern as a step of its own.
    fn words(name: &str, text: &str) -> Vec<String> {
        let mut pieces = PreTokenizedString::from(text);
        for pattern in PreTokenizer::named(name).unwrap().patterns {
            let step = super::super::byte_level::split(pattern);
            serde_json::from_value::<PreTokenizerWrapper>(step).unwrap().pre_tokenize(&mut pieces).unwrap();
        }
        let splits = pieces.get_splits(OffsetReferential::Original, OffsetType::Byte);
        splits.into_iter().map(|(word, _, _)| word.to_string()).collect()
    }

    /// The words of each kind, found to be llama.cpp's by comparing token ids on several hundred texts.
    #[test]
    fn each_kind_splits_by_its_own_rule() {
        let text = "I'LL don't pay12345 £1!\n\n  helloWorld";
        for (name, expected) in [
            ("gpt-2", &["I", "'", "LL", " don", "'t", " pay", "12345", " £", "1", "!", "\n\n ", " helloWorld"][..]),
            (
                "smollm",
                &[
                    "I",
                    "'",
                    "LL",
                    " don",
                    "'t",
                    " pay",
                    "1",
                    "2",
                    "3",
                    "4",
                    "5",
                    " £",
                    "1",
                    "!",
                    "\n\n ",
                    " helloWorld",
                ],
            ),
            ("llama-bpe", &["I", "'LL", " don", "'t", " pay", "123", "45", " £", "1", "!\n\n", " ", " helloWorld"]),
            (
                "qwen2",
                &["I", "'LL", " don", "'t", " pay", "1", "2", "3", "4", "5", " £", "1", "!\n\n", " ", " helloWorld"],
            ),
            ("gpt-4o", &["I'LL", " don't", " pay", "123", "45", " £", "1", "!\n\n", " ", " hello", "World"]),
            (
                "tekken",
                &[
                    "I", "'LL", " don", "'t", " pay", "1", "2", "3", "4", "5", " £", "1", "!\n\n", " ", " hello",
                    "World",
                ],
            ),
            (
                "default",
                &["I", "'", "LL", " don", "'", "t", " pay", "123", "45", " £", "1", "!", "\n\n ", " helloWorld"],
            ),
        ] {
            assert_eq!(words(name, text), expected, "{name}");
        }
    }
}
