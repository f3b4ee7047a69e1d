//! What a sequence was fed, step by step: enough to compute its KV cache again, bit for bit.
//!
//! The cache of a generated text could be computed sooner, in a few long steps like a prompt. But a program of another length
//! adds up in another order, or on other units, and K and V differ in their last bits; with integer activations two programs
//! differ by up to 1.5e-2 in their logits (kernels/README.md). A later sample can depend on that, and the same seed would no
//! longer give the same text: whether recovery is right could not be tested. So recovery is exact, and its cost is this: the
//! generated part of a sequence takes as long again as it took. The prompt was fed in long steps and takes them again.

use unicorn_artifact::KvSegment;
use unicorn_artifact::kv_segment::KvStep;

/// The tokens of a sequence and, for each, the program and the step that put it into the cache.
pub struct Journal {
    tokens: Vec<u32>,
    steps: Vec<FedStep>,
}

#[derive(Clone, Copy)]
struct FedStep {
    program: usize,
    n_tokens: u32,
    rope_variant: u32,
}

/// A step to run again.
pub struct Entry<'j> {
    /// Index of the program among those of the target.
    pub program: usize,
    /// Position of the first token in the sequence.
    pub position: u32,
    /// The tokens that the step appended.
    pub tokens: &'j [u32],
    /// Variant of LongRoPE's frequencies that the step used; 0 for models without variants.
    pub rope_variant: u32,
}

impl Journal {
    /// Empty, with room for `context_tokens`: appending allocates nothing.
    pub fn new(context_tokens: u32) -> Journal {
        let capacity = context_tokens as usize;
        Journal { tokens: Vec::with_capacity(capacity), steps: Vec::with_capacity(capacity) }
    }

    /// Tokens that it has room for.
    pub fn capacity(&self) -> u32 {
        self.tokens.capacity() as u32
    }

    /// All tokens, in order.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Number of tokens.
    pub fn len_tokens(&self) -> u32 {
        self.tokens.len() as u32
    }

    /// Tokens from the first on, at most `most`, that were fed with LongRoPE's frequencies of this variant.
    pub fn len_of_variant(&self, rope_variant: u32, most: u32) -> u32 {
        let mut len = 0;
        for step in self.steps.iter().take_while(|step| step.rope_variant == rope_variant) {
            len += step.n_tokens;
            if len >= most {
                return most;
            }
        }
        len
    }

    /// Tokens from the first on that steps of these programs appended.
    pub fn len_of_steps(&self, is_one: impl Fn(usize) -> bool) -> u32 {
        self.steps.iter().take_while(|step| is_one(step.program)).map(|step| step.n_tokens).sum()
    }

    /// Number of the steps that appended the tokens before `position`, where one of them ends.
    pub fn steps_before(&self, position: u32) -> usize {
        let mut end = 0;
        let ends = self.steps.iter().map(|step| {
            end += step.n_tokens;
            end
        });
        ends.take_while(|&end| end <= position).count()
    }

    /// A step of `program` that appends `tokens`.
    pub fn append(&mut self, tokens: &[u32], program: usize, rope_variant: u32) {
        self.tokens.extend_from_slice(tokens);
        self.steps.push(FedStep { program, n_tokens: tokens.len() as u32, rope_variant });
    }

    /// Removes tokens from `len_tokens` on. A step that loses some of its tokens computes the same for the others: no
    /// row attends to a later one.
    pub fn truncate(&mut self, len_tokens: u32) {
        while self.len_tokens() > len_tokens {
            let last = self.steps.last_mut().expect("every token belongs to a step");
            let cut = last.n_tokens.min(self.tokens.len() as u32 - len_tokens);
            last.n_tokens -= cut;
            if last.n_tokens == 0 {
                self.steps.pop();
            }
            self.tokens.truncate(self.tokens.len() - cut as usize);
        }
    }

    /// Becomes the first `len_tokens` of another journal, whose steps put them into the cache.
    pub fn adopt(&mut self, donor: &Journal, len_tokens: u32) {
        self.tokens.clone_from(&donor.tokens);
        self.steps.clone_from(&donor.steps);
        self.truncate(len_tokens);
    }

    /// The steps that appended the tokens from `position` on.
    pub fn steps_from(&self, position: u32) -> Vec<KvStep> {
        let mut end = 0;
        let step = |step: &FedStep| {
            end += step.n_tokens;
            let n_tokens = step.n_tokens.min(end.saturating_sub(position));
            KvStep { program: step.program as u32, n_tokens, rope_variant: step.rope_variant }
        };
        self.steps.iter().map(step).filter(|step| step.n_tokens > 0).collect()
    }

    /// Appends the tokens of a segment by its steps.
    pub fn extend(&mut self, segment: &KvSegment) {
        self.tokens.extend_from_slice(&segment.tokens);
        self.steps.extend(segment.steps.iter().map(|step| FedStep {
            program: step.program as usize,
            n_tokens: step.n_tokens,
            rope_variant: step.rope_variant,
        }));
    }

    /// The step of that index, whose first token has position `position`, after all tokens of the steps before. `None`: there are
    /// no more.
    pub fn entry(&self, index: usize, position: u32) -> Option<Entry<'_>> {
        let &FedStep { program, n_tokens, rope_variant } = self.steps.get(index)?;
        let tokens = &self.tokens[position as usize..(position + n_tokens) as usize];
        Some(Entry { program, position, tokens, rope_variant })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(journal: &Journal) -> Vec<(usize, u32, Vec<u32>)> {
        let mut entries = Vec::new();
        let mut position = 0;
        while let Some(entry) = journal.entry(entries.len(), position) {
            position += entry.tokens.len() as u32;
            entries.push((entry.program, entry.position, entry.tokens.to_vec()));
        }
        entries
    }

    #[test]
    fn steps_are_replayed_in_order_and_truncated() {
        let mut journal = Journal::new(8);
        journal.append(&[1, 2, 3], 7, 0);
        journal.append(&[4], 5, 0);
        journal.append(&[5], 5, 1);
        assert_eq!(entries(&journal), [(7, 0, vec![1, 2, 3]), (5, 3, vec![4]), (5, 4, vec![5])]);
        assert_eq!([2, 4, 9].map(|most| journal.len_of_variant(0, most)), [2, 4, 4]);
        assert_eq!(journal.len_of_variant(1, 9), 0);
        journal.truncate(9);
        assert_eq!(journal.len_tokens(), 5);
        journal.truncate(2);
        assert_eq!(entries(&journal), [(7, 0, vec![1, 2])]);
        journal.append(&[9], 5, 0);
        let mut other = Journal::new(8);
        other.adopt(&journal, 1);
        assert_eq!((other.tokens(), entries(&other)), ([1].as_slice(), vec![(7, 0, vec![1])]));
        assert_eq!((journal.tokens(), entries(&journal).len()), ([1, 2, 9].as_slice(), 2));
        journal.truncate(0);
        assert!(entries(&journal).is_empty());
    }

    #[test]
    fn a_journal_goes_on_from_the_steps_of_another() {
        let mut journal = Journal::new(8);
        journal.append(&[1, 2, 3], 7, 0);
        journal.append(&[4], 5, 0);
        let step = |program, n_tokens| KvStep { program, n_tokens, rope_variant: 0 };
        assert_eq!(journal.steps_from(0), [step(7, 3), step(5, 1)]);
        assert_eq!([0, 3, 4].map(|position| journal.steps_before(position)), [0, 1, 2]);
        assert_eq!((journal.steps_from(2), journal.steps_from(4)), (vec![step(7, 1), step(5, 1)], vec![]));
        let segment = KvSegment {
            artifact: [0; 32],
            target: "generic".into(),
            parent: None,
            first_token: 0,
            tokens: journal.tokens().to_vec(),
            steps: journal.steps_from(0),
            groups: Vec::new(),
            payload_hash: [0; 32],
        };
        let mut other = Journal::new(8);
        other.extend(&segment);
        assert_eq!(entries(&other), entries(&journal));
    }
}
