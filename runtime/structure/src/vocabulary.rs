//! The vocabulary as llguidance reads it.

use std::sync::Arc;

use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{ApproximateTokEnv, InferenceCapabilities, SimpleVob, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};
use unicorn_text::{TokenBytes, Tokenizer};

use crate::error::StructureError;

/// Bytes of every token, and the factory of matchers.
pub struct Vocabulary {
    tokens: Vec<TokenBytes>,
    /// `None`: the model has no stop token, so that no text can end.
    factory: Option<ParserFactory>,
}

impl Vocabulary {
    /// Vocabulary of a model with `vocab_size` logits, whose texts end with one of `stop_tokens`.
    pub fn new(tokenizer: &Tokenizer, vocab_size: u32, stop_tokens: &[u32]) -> Vocabulary {
        let mut tokens = tokenizer.vocabulary();
        tokens.resize(vocab_size as usize, TokenBytes::default());
        let stop_tokens: Vec<u32> = stop_tokens.iter().copied().filter(|&token| token < vocab_size).collect();
        let factory = stop_tokens.first().and_then(|&first| {
            let words: Vec<Vec<u8>> = tokens
                .iter()
                .map(|token| match token.is_special {
                    true => [&[TokTrie::SPECIAL_TOKEN_MARKER], token.bytes.as_slice()].concat(),
                    false => token.bytes.clone(),
                })
                .collect();
            let trie = TokTrie::from(&TokRxInfo::new(vocab_size, first), &words).with_eos_tokens(&stop_tokens);
            let environment = Arc::new(ApproximateTokEnv::new(trie)) as Arc<_>;
            let slices = llguidance::earley::SlicedBiasComputer::general_slices();
            let mut factory = ParserFactory::new(&environment, InferenceCapabilities::default(), &slices).ok()?;
            factory.quiet().limits_mut().verbose_errors = false;
            Some(factory)
        });
        Vocabulary { tokens, factory }
    }

    /// Number of tokens.
    pub(crate) fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Bytes of a token; for a special token, its name.
    pub fn bytes(&self, token: u32) -> &[u8] {
        self.tokens.get(token as usize).map(|token| token.bytes.as_slice()).unwrap_or_default()
    }

    /// Whether `text` is the name of a special token.
    pub(crate) fn is_special(&self, text: &str) -> bool {
        self.tokens.iter().any(|token| token.is_special && token.bytes == text.as_bytes())
    }

    /// Adds the tokens with which one of `texts` begins, or that begin with it.
    pub(crate) fn permit_beginnings(&self, texts: &[&[u8]], mask: &mut SimpleVob) {
        for (token, TokenBytes { bytes, .. }) in self.tokens.iter().enumerate() {
            if !bytes.is_empty() && texts.iter().any(|text| text.starts_with(bytes) || bytes.starts_with(text)) {
                mask.allow_token(token as u32);
            }
        }
    }

    /// A matcher of texts that begin with `begun`, which is there already.
    ///
    /// # Errors
    /// For a grammar that is wrong or too large.
    pub(crate) fn matcher(&self, grammar: TopLevelGrammar, begun: &[u8]) -> Result<Matcher, StructureError> {
        let Some(factory) = &self.factory else {
            return Err(StructureError::new("the model has no stop token, with which a text could end"));
        };
        let mut matcher = Matcher::new(factory.create_parser(grammar));
        // What may follow first is found here, where it delays no other request, and an error is the client's.
        let ready = matcher.consume_tokens(&factory.tok_env().tokenize_bytes(begun));
        let ready = ready.and_then(|()| matcher.compute_mask_or_eos());
        ready.map_err(|error| StructureError::new(first_lines(&error.to_string())))?;
        Ok(matcher)
    }
}

/// The first lines of an error: the rest is the parser's state.
fn first_lines(error: &str) -> String {
    if error.contains("NoExtensionBias") {
        return "nothing matches the structure: no token can be its first one".to_owned();
    }
    error
        .lines()
        .filter(|line| !line.trim().is_empty() && *line != "<non-verbose/>")
        .take(3)
        .collect::<Vec<_>>()
        .join("; ")
}
