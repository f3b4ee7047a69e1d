//! `tokenizer.ggml.model` llama: SentencePiece's BPE, where a pair is merged when its whole is a token, best score
//! first, and characters without a token become bytes. `gemma4`: the same with a list of merges in place of scores.

use serde_json::{Value as Json, json};

use super::TokenizerParts;
use super::byte_level;
use super::vocabulary::{Token, TokenKind, Vocabulary};
use crate::error::Result;
use crate::import::gguf::reader::Gguf;

pub fn parts(gguf: &Gguf, vocabulary: &Vocabulary) -> Result<TokenizerParts> {
    let adds_space = gguf.bool("tokenizer.ggml.add_space_prefix")?.unwrap_or(true);
    with_merges(gguf, vocabulary, adds_space, merges(gguf, vocabulary)?)
}

/// Gemma 4's tokenizer; as in llama.cpp, runs of line breaks are apart from the rest, and BOS is added although early
/// files state otherwise.
pub fn merging_parts(gguf: &Gguf, vocabulary: &Vocabulary) -> Result<TokenizerParts> {
    let merges = byte_level::merges(gguf, vocabulary)?;
    let pre_tokenizer = byte_level::split(r"[^\n]+|[\n]+");
    Ok(TokenizerParts { pre_tokenizer, always_adds_bos: true, ..with_merges(gguf, vocabulary, false, merges)? })
}

/// The parts for these merges; `adds_space`: before a text.
fn with_merges(gguf: &Gguf, vocabulary: &Vocabulary, adds_space: bool, merges: Vec<Json>) -> Result<TokenizerParts> {
    let escape_spaces = json!({ "type": "Replace", "pattern": { "String": " " }, "content": SPACE });
    let normalizer = if adds_space {
        json!({ "type": "Sequence", "normalizers": [{ "type": "Prepend", "prepend": SPACE }, escape_spaces] })
    } else {
        escape_spaces
    };
    let mut decoders = vec![
        json!({ "type": "Replace", "pattern": { "String": SPACE }, "content": " " }),
        json!({ "type": "ByteFallback" }),
        json!({ "type": "Fuse" }),
    ];
    if adds_space {
        decoders.push(json!({ "type": "Strip", "content": " ", "start": 1, "stop": 0 }));
    }
    let unknown_id = gguf.unsigned("tokenizer.ggml.unknown_token_id")?.unwrap_or(0);
    let unknown = vocabulary.tokens().nth(unknown_id).map(|token| token.text);
    let in_vocabulary = |id: u32| (vocabulary.len() > id as usize).then_some(id);
    Ok(TokenizerParts {
        normalizer,
        pre_tokenizer: Json::Null,
        decoder: json!({ "type": "Sequence", "decoders": decoders }),
        model: json!({
            "type": "BPE",
            "dropout": null,
            "unk_token": unknown,
            "continuing_subword_prefix": null,
            "end_of_word_suffix": null,
            "fuse_unk": true,
            "byte_fallback": true,
            "ignore_merges": false,
            "vocab": vocabulary.to_json(),
            "merges": merges,
        }),
        default_add_bos: true,
        always_adds_bos: false,
        swallows_space: if is_phi3(gguf)? { swallows_space_in_phi3 } else { |_| false },
        default_bos_id: in_vocabulary(1),
        default_eos_id: in_vocabulary(2),
    })
}

/// Phi-3's tokens take the white space after them, which no key of a file states.
fn is_phi3(gguf: &Gguf) -> Result<bool> {
    Ok(gguf.string("general.architecture")? == Some("phi3"))
}

fn swallows_space_in_phi3(token: &str) -> bool {
    !["<unk>", "<s>", "<|endoftext|>"].contains(&token)
}

/// What SentencePiece writes for a space.
const SPACE: &str = "▁";

/// Every pair of tokens whose whole is a token. SentencePiece has no list of merges: it merges the neighbours whose
/// whole has the best score, and that is the order of this list. Pairs of equal score go by length, longest first.
fn merges(gguf: &Gguf, vocabulary: &Vocabulary) -> Result<Vec<Json>> {
    let scores = vocabulary.scores(gguf)?;
    let scores = if are_equal(vocabulary, &scores) { scores_by_id(vocabulary) } else { scores };
    let mut pairs = Vec::new();
    for token in vocabulary.tokens() {
        let mut splits: Vec<Split> = splits(token.text, scores[token.id as usize], vocabulary).collect();
        splits.sort_by_key(|split| (split.left_id, split.right_id));
        pairs.extend(splits);
    }
    pairs.sort_by(|a, b| {
        let by_score = b.score.total_cmp(&a.score);
        by_score.then(b.left_chars.cmp(&a.left_chars)).then(b.right_chars.cmp(&a.right_chars))
    });
    let text = |id| vocabulary.text(id);
    Ok(pairs.iter().map(|pair| json!([text(pair.left_id), text(pair.right_id)])).collect())
}

/// Whether all ordinary tokens have the same score, as in a file that was made without SentencePiece's.
fn are_equal(vocabulary: &Vocabulary, scores: &[f32]) -> bool {
    let ordinary = vocabulary.tokens().filter(|token| token.kind == TokenKind::Ordinary);
    let mut scores = ordinary.map(|token| scores[token.id as usize]);
    let first = scores.next();
    scores.all(|score| Some(score) == first)
}

/// SentencePiece numbers tokens from the best score on, but for runs of spaces, whose score is the worst.
fn scores_by_id(vocabulary: &Vocabulary) -> Vec<f32> {
    let is_spaces = |token: &Token| token.text.replace(SPACE, "").is_empty();
    vocabulary.tokens().map(|token| if is_spaces(&token) { f32::MIN } else { -(token.id as f32) }).collect()
}

/// A token as two others.
struct Split {
    score: f32,
    left_id: u32,
    right_id: u32,
    left_chars: usize,
    right_chars: usize,
}

fn splits(token: &str, score: f32, vocabulary: &Vocabulary) -> impl Iterator<Item = Split> {
    let token_chars = token.chars().count();
    token.char_indices().enumerate().skip(1).filter_map(move |(left_chars, (cut, _))| {
        let (left, right) = token.split_at(cut);
        Some(Split {
            score,
            left_id: vocabulary.id(left)?,
            right_id: vocabulary.id(right)?,
            left_chars,
            right_chars: token_chars - left_chars,
        })
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use tokenizers::Tokenizer;

    use super::super::read;
    use super::super::tests::{encode, parsed, tokenizer_of};
    use crate::import::gguf::reader::Gguf;
    use crate::import::gguf::test_file::{TestFile, TestValue};

    /// The tokenizer alone: the rest of the file is of another architecture.
    fn tokenizer_with(file: &TestFile) -> Tokenizer {
        let bytes = file.bytes();
        read(&Gguf::read(Path::new("model.gguf"), &bytes).unwrap()).unwrap().tokenizer_json.parse().unwrap()
    }

    /// Tokens 0-2 unknown, bos, eos; 3-5 the bytes of é; then letters, words and a user-defined token.
    fn file() -> TestFile {
        let tokens = [
            ("<unk>", 2),
            ("<s>", 3),
            ("</s>", 3),
            ("<0xC3>", 6),
            ("<0xA9>", 6),
            ("<0x0A>", 6),
            ("▁", 1),
            ("a", 1),
            ("b", 1),
            ("c", 1),
            ("ab", 1),
            ("bc", 1),
            ("▁a", 1),
            ("▁ab", 1),
            ("<b>", 4),
        ];
        let mut file = TestFile::with_tokenizer("llama", &tokens);
        // "bc" before "ab" before "▁a"; scores of single characters do not matter.
        let scores = [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, -9.0, -9.0, -9.0, -9.0, -2.0, -1.0, -3.0, -4.0, 0.0];
        file.set("tokenizer.ggml.scores", TestValue::Floats(&scores));
        file
    }

    #[test]
    fn the_best_score_merges_first() {
        let tokenizer = tokenizer_of(&file());
        assert_eq!(encode(&tokenizer, "abc"), ["▁a", "bc"]);
        assert_eq!(encode(&tokenizer, "ab"), ["▁ab"]);
    }

    #[test]
    fn characters_without_a_token_become_bytes_and_decode_again() {
        let tokenizer = tokenizer_of(&file());
        assert_eq!(encode(&tokenizer, "aé\n"), ["▁a", "<0xC3>", "<0xA9>", "<0x0A>"]);
        assert_eq!(tokenizer.decode(&[12, 3, 4, 5], false).unwrap(), "aé\n");
        assert_eq!(encode(&tokenizer, "ü"), ["▁", "<unk>"]);
    }

    #[test]
    fn user_defined_tokens_are_found_before_spaces_are_written_otherwise() {
        assert_eq!(encode(&tokenizer_of(&file()), "a<b>a"), ["▁a", "<b>", "▁a"]);
    }

    /// Llama 2's vocabulary with a score of -1000 for each token: llama.cpp's ids of the true file then.
    #[test]
    fn equal_scores_merge_in_the_order_of_the_tokens() {
        let mut file = file();
        file.set("tokenizer.ggml.scores", TestValue::Floats(&[-1000.0; 15]));
        assert_eq!(encode(&tokenizer_of(&file), "abc"), ["▁ab", "c"]);
    }

    #[test]
    fn phi_3s_tokens_take_the_white_space_after_them() {
        let mut file = file();
        assert_eq!(encode(&tokenizer_of(&file), "<b> \na"), ["<b>", "▁", "▁", "<0x0A>", "a"]);
        file.set("general.architecture", TestValue::String("phi3"));
        let tokenizer = tokenizer_with(&file);
        let ids = |text| tokenizer.encode(text, false).unwrap().get_ids().to_vec();
        assert_eq!(ids("<b> \na"), [14, 12]);
        assert_eq!(ids("<s> a"), [1, 6, 12]);
    }

    #[test]
    fn gemma_puts_no_space_before_a_text() {
        let mut file = file();
        file.set("tokenizer.ggml.add_space_prefix", TestValue::Bool(false));
        let tokenizer = tokenizer_of(&file);
        assert_eq!(encode(&tokenizer, "ab ab"), ["ab", "▁ab"]);
        assert_eq!(tokenizer.decode(&[13, 10], false).unwrap(), " abab");
    }

    #[test]
    fn gemma_4_merges_by_its_list_and_never_over_a_line_break() {
        let tokens = [
            ("<unk>", 2),
            ("<s>", 3),
            ("</s>", 3),
            ("<0xC3>", 6),
            ("<0xA9>", 6),
            ("▁", 1),
            ("a", 1),
            ("b", 1),
            ("\n", 1),
            ("\n\n", 1),
            ("▁a", 1),
            ("ab", 1),
            ("a\n", 1),
        ];
        let mut file = TestFile::with_tokenizer("gemma4", &tokens);
        file.set("tokenizer.ggml.merges", TestValue::Strings(&["\n \n", "a \n", "a b", "▁ a"]));
        let tokenizer = tokenizer_of(&file);
        assert_eq!(encode(&tokenizer, "ab a\n\né"), ["ab", "▁a", "\n\n", "<0xC3>", "<0xA9>"]);
        assert_eq!(tokenizer.decode(&[11, 10, 9, 3, 4], false).unwrap(), "ab a\n\né");
        file.set("tokenizer.ggml.add_bos_token", TestValue::Bool(false));
        assert!(parsed(&file).add_bos);
    }

    #[test]
    fn bos_is_added_unless_the_file_disables_it() {
        let mut file = file();
        let files = parsed(&file);
        assert_eq!((files.add_bos, files.bos_id, files.bos_token.as_deref()), (true, Some(1), Some("<s>")));
        let encoding = tokenizer_of(&file).encode("ab", true).unwrap();
        assert_eq!(encoding.get_ids(), [1, 13]);
        file.set("tokenizer.ggml.add_bos_token", TestValue::Bool(false));
        assert!(!parsed(&file).add_bos);
    }

    #[test]
    fn eos_is_added_where_the_file_states_it() {
        let mut file = file();
        file.set("tokenizer.ggml.add_eos_token", TestValue::Bool(true));
        let with_special = |file: &TestFile| tokenizer_of(file).encode("ab", true).unwrap().get_ids().to_vec();
        assert_eq!(with_special(&file), [1, 13, 2]);
        file.set("tokenizer.ggml.add_bos_token", TestValue::Bool(false));
        assert_eq!(with_special(&file), [13, 2]);
    }
}
