//! Drafts of texts that are known beforehand: what the model will sample, with wrong tokens among it.

use std::sync::Arc;

use unicorn_runtime::{Draft, Drafter, Speculation};

/// Proposes what follows in one of the texts, but a wrong token at each fifth position of it.
struct KnownTexts {
    texts: Arc<Vec<Vec<u32>>>,
}

impl Drafter for KnownTexts {
    fn draft(&mut self, tokens: &[u32], newest: u32, max_tokens: usize) -> Draft {
        let is_it = |text: &&Vec<u32>| text.starts_with(tokens) && text.get(tokens.len()) == Some(&newest);
        let known = self.texts.iter().find(is_it).into_iter().flatten().enumerate();
        let next = known.skip(tokens.len() + 1).take(max_tokens);
        Draft { tokens: next.map(|(at, &token)| if at % 5 == 0 { token ^ 1 } else { token }).collect(), class: 0 }
    }
}

/// Speculation by these texts, prompts included, that verifies every draft: four of five tokens of it are right.
pub fn known_texts(texts: Vec<Vec<u32>>) -> Speculation {
    let texts = Arc::new(texts);
    let drafter = move || -> Box<dyn Drafter> { Box::new(KnownTexts { texts: texts.clone() }) };
    Speculation::by(drafter).with(|one| one.adaptive = false)
}
