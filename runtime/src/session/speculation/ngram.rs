//! Drafts from the sequence itself, without a second model (prompt lookup): what followed the last tokens where they stood before.

use crate::session::speculation::drafter::{DRAFT_CLASSES, Draft, Drafter};

/// Proposes what followed the longest earlier occurrence of the last tokens; of equally long ones, the latest. A draft's class is the
/// length of the match.
#[derive(Clone, Copy, Debug)]
pub struct NGram {
    /// Fewest last tokens that must have occurred before, 1 or more.
    pub least_tokens: usize,
}

/// Tokens of a match that are compared: longer matches count as equally good.
const MAX_MATCH_TOKENS: usize = 16;

impl Drafter for NGram {
    fn draft(&mut self, tokens: &[u32], newest: u32, max_tokens: usize) -> Draft {
        let (mut longest, mut behind) = (0, 0);
        for (at, _) in tokens.iter().enumerate().rev().filter(|&(_, &token)| token == newest) {
            let before = tokens[..at].iter().rev().zip(tokens.iter().rev());
            let matched = 1 + before.take(MAX_MATCH_TOKENS - 1).take_while(|(a, b)| a == b).count();
            if matched > longest {
                (longest, behind) = (matched, at + 1);
            }
            if matched == MAX_MATCH_TOKENS {
                break;
            }
        }
        if longest < self.least_tokens.max(1) {
            return Draft::default();
        }
        let mut draft: Vec<u32> = tokens[behind..].iter().copied().chain([newest]).take(max_tokens).collect();
        // A match that reaches the end is a period: the draft continues with itself.
        let period = draft.len();
        (period..max_tokens).for_each(|at| draft.push(draft[at - period]));
        Draft { tokens: draft, class: longest.min(DRAFT_CLASSES) - 1 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draft(least_tokens: usize, tokens: &[u32], newest: u32, max_tokens: usize) -> Draft {
        NGram { least_tokens }.draft(tokens, newest, max_tokens)
    }

    #[test]
    fn the_longest_match_is_continued_and_of_equal_ones_the_latest() {
        let tokens = [1, 2, 3, 4, 9, 2, 3, 5, 9, 7, 3, 6, 1, 2];
        assert_eq!(draft(1, &tokens, 3, 2), Draft { tokens: vec![4, 9], class: 2 });
        assert_eq!(draft(1, &tokens[1..], 3, 1), Draft { tokens: vec![5], class: 1 });
        assert_eq!(draft(1, &tokens[1..13], 3, 1), Draft { tokens: vec![6], class: 0 });
    }

    #[test]
    fn too_short_a_match_is_none() {
        assert_eq!(draft(2, &[1, 2, 3, 1], 2, 4).tokens, [3, 1, 2, 3]);
        assert_eq!(draft(3, &[1, 2, 3, 1], 2, 4), Draft::default());
        assert_eq!(draft(1, &[], 2, 4), Draft::default());
    }

    #[test]
    fn a_period_continues_into_the_draft() {
        assert_eq!(draft(2, &[8, 5, 6, 5], 6, 5).tokens, [5, 6, 5, 6, 5]);
        assert_eq!(draft(2, &[7, 7, 7], 7, 3).tokens, [7, 7, 7]);
    }
}
