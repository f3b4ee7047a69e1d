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
const DIGITS_BY_THREES: &str = r"\p{N}{1,3}";
/// GPT-4's: digits by threes, a word takes the character before it, newlines stay with punctuation.
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// The same with single digits.
const QWEN2: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Qwen 3.5's: a word keeps its combining marks.
const QWEN35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Seed-Coder's: Qwen 2's, but signs leave line breaks to the next word.
const SEED_CODER: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+";
/// GPT-4o's: words also end where a capital follows a small letter.
const GPT4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Mistral's: GPT-4o's without contractions and with single digits.
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// DeepSeek's first models': letters of alphabets with capitals, then signs, then Chinese and Korean.
const DEEPSEEK_LLM: &[&str] = &[
    r"[\r\n]",
    r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+",
    r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
    r"\s+$",
    HAN_AND_HANGUL,
    r"\p{N}+",
];
const DEEPSEEK_CODER: &[&str] = &[r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", HAN_AND_HANGUL, EACH_DIGIT];
const HAN_AND_HANGUL: &str = "[一-龥ࠀ-一가-퟿]+";
/// DeepSeek's from the third model on: digits by threes, Chinese and Japanese apart, a sign begins a word of ASCII letters.
const DEEPSEEK_V3: &[&str] = &[
    DIGITS_BY_THREES,
    "[一-龥぀-ゟ゠-ヿ]+",
    r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##,
];
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
        names: &[
            "gpt-2",
            "phi-2",
            "olmo",
            "mpt",
            "jais",
            "trillion",
            "exaone4",
            "a.x-4.0",
            "mellum",
            "gigachat",
            "granite-docling",
        ],
        patterns: &[GPT2],
        ..PLAIN
    },
    PreTokenizer {
        names: &["smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"],
        patterns: &[EACH_DIGIT, GPT2],
        ..PLAIN
    },
    PreTokenizer {
        names: &["llama3", "llama-v3", "llama-bpe", "falcon3", "pixtral", "lfm2", "midm-2.0"],
        patterns: &[LLAMA3],
        takes_known_words_whole: true,
        adds_bos: true,
        ..PLAIN
    },
    PreTokenizer { names: &["dbrx", "smaug-bpe", "chatglm-bpe"], patterns: &[LLAMA3], ..PLAIN },
    PreTokenizer { names: &["glm4"], patterns: &[LLAMA3], takes_known_words_whole: true, ..PLAIN },
    PreTokenizer {
        names: &["minicpm5"],
        patterns: &[DIGITS_BY_THREES, LLAMA3],
        takes_known_words_whole: true,
        ..PLAIN
    },
    // Qwen's own tokenizer composes; llama.cpp leaves that out.
    PreTokenizer { names: &["qwen2"], patterns: &[QWEN2], composes_unicode: true, ..PLAIN },
    PreTokenizer { names: &["qwen35"], patterns: &[QWEN35], composes_unicode: true, ..PLAIN },
    PreTokenizer {
        names: &["deepseek-r1-qwen", "stablelm2", "megrez", "hunyuan", "grok-2", "kormo", "f2llmv2", "solar-open"],
        patterns: &[QWEN2],
        ..PLAIN
    },
    PreTokenizer { names: &["seed-coder"], patterns: &[SEED_CODER], ..PLAIN },
    PreTokenizer { names: &["deepseek-llm"], patterns: DEEPSEEK_LLM, ..PLAIN },
    PreTokenizer { names: &["deepseek-coder"], patterns: DEEPSEEK_CODER, ..PLAIN },
    PreTokenizer { names: &["deepseek-v3", "joyai-llm"], patterns: DEEPSEEK_V3, ..PLAIN },
    PreTokenizer { names: &["gpt-4o", "llama4", "kanana2"], patterns: &[GPT4O], ..PLAIN },
    PreTokenizer { names: &["tekken"], patterns: &[TEKKEN], takes_known_words_whole: true, adds_bos: true, ..PLAIN },
    PreTokenizer { names: &["superbpe"], patterns: &[r"\p{N}+", r"(?=(\d{3})+(?!\d))"], ..PLAIN },
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

    /// Words of tokenizers 0.23 with Oniguruma in place of our engine; token ids of llama.cpp agree.
    #[test]
    fn scripts_marks_and_numbers_split_by_each_kinds_rule() {
        let text = "हिंदी Ünï 漢字カナ한국어，1234.foo!\n ";
        for (name, expected) in [
            ("qwen35", &["हिंदी", " Ünï", " 漢字カナ한국어", "，", "1", "2", "3", "4", ".foo", "!\n", " "][..]),
            (
                "deepseek-llm",
                &["हिंदी", " Ü", "n", "ï", " ", "漢字カナ한국어", "，", "1234", ".", "foo", "!", "\n", " "],
            ),
            (
                "deepseek-coder",
                &[
                    "ह",
                    "िं",
                    "द",
                    "ी",
                    " Ünï",
                    " ",
                    "漢字カナ한국어",
                    "，",
                    "1",
                    "2",
                    "3",
                    "4",
                    ".",
                    "foo",
                    "!",
                    "\n",
                    " ",
                ],
            ),
            ("deepseek-v3", &["हिंदी", " Ünï", " ", "漢字カナ", "한국어", "，", "123", "4", ".foo", "!\n", " "]),
            (
                "seed-coder",
                &["ह", "िं", "द", "ी", " Ünï", " 漢字カナ한국어", "，", "1", "2", "3", "4", ".foo", "!", "\n", " "],
            ),
            ("minicpm5", &["ह", "िं", "द", "ी", " Ünï", " 漢字カナ한국어", "，", "123", "4", ".foo", "!\n", " "]),
            ("superbpe", &["हिंदी Ünï 漢字カナ한국어，", "1", "234", ".foo!\n "]),
        ] {
            assert_eq!(words(name, text), expected, "{name}");
        }
    }

    /// As with Oniguruma; llama.cpp replaces wide spaces by one that is in no range.
    #[test]
    fn a_wide_space_in_a_range_of_letters_is_a_word() {
        assert_eq!(words("deepseek-coder", "a \u{1680} b"), ["a", " ", "\u{1680}", " b"]);
    }
}
