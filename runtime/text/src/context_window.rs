//! Which turns of a conversation fit the context.

use crate::error::TextError;

/// Bounds on the tokens of a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    /// Most tokens of a prompt from which nothing is left out.
    most: usize,
    /// Once something is left out, the rest is at most this long, so that not every question computes a whole prompt again.
    target: usize,
}

impl Window {
    /// Bounds that leave a quarter of the context for the answer, or less if the answer is shorter.
    pub(crate) fn for_answer(context_tokens: u32, max_tokens: u32) -> Window {
        let reserved = max_tokens.min(context_tokens / 4);
        Window { most: (context_tokens - reserved) as usize, target: (context_tokens / 2) as usize }
    }

    /// Bounds of a prompt that ends with a part of the answer, after the context was full.
    pub(crate) fn for_rest(context_tokens: u32) -> Window {
        let target = (context_tokens / 2) as usize;
        Window { most: target, target }
    }
}

/// The prompt, with its tokens, that begins at message `from`, or else at one of `later`: the first that is short enough, or else the
/// last. Returns them with the index of that message.
///
/// # Errors
/// Errors of `prompt`. [`TextError::TemplateOutput`] counts as a prompt that is too long, unless there is no shorter one.
pub(crate) fn first_kept<P: AsRef<[u32]>>(
    window: Window,
    from: usize,
    later: impl Iterator<Item = usize>,
    prompt: impl Fn(usize) -> Result<P, TextError>,
) -> Result<(P, usize), TextError> {
    let mut kept = (prompt(from), from);
    let mut bound = window.most;
    for first in later {
        match &kept.0 {
            Ok(tokens) if tokens.as_ref().len() <= bound => break,
            Ok(_) | Err(TextError::TemplateOutput { .. }) => kept = (prompt(first), first),
            Err(_) => break,
        }
        bound = window.target;
    }
    Ok((kept.0?, kept.1))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A prompt of ten tokens for each message from `first` to the fifth.
    fn prompt(first: usize) -> Result<Vec<u32>, TextError> {
        Ok(vec![0; (5 - first) * 10])
    }

    fn first(window: Window) -> (usize, usize) {
        let (tokens, first) = first_kept(window, 0, [1, 2, 3, 4].into_iter(), prompt).unwrap();
        (tokens.len(), first)
    }

    #[test]
    fn nothing_is_left_out_while_the_answer_has_room() {
        assert_eq!(first(Window::for_answer(67, 100)), (50, 0), "a quarter of 67 tokens is 16");
        assert_eq!(first(Window::for_answer(66, 100)), (50, 0));
        assert_eq!(first(Window::for_answer(51, 1)), (50, 0), "one token is enough for an answer of one");
    }

    #[test]
    fn a_full_context_is_emptied_to_its_half() {
        assert_eq!(first(Window::for_answer(60, 100)), (30, 2));
        assert_eq!(first(Window::for_rest(100)), (50, 0));
        assert_eq!(first(Window::for_rest(99)), (40, 1));
    }

    #[test]
    fn the_last_turn_stays_however_long_it_is() {
        assert_eq!(first(Window::for_answer(4, 100)), (10, 4));
    }

    #[test]
    fn a_text_that_was_cut_off_counts_as_too_long() {
        let bounded = |first: usize| match first {
            0 | 1 => Err(TextError::TemplateOutput { max_bytes: 9 }),
            _ => prompt(first),
        };
        let (tokens, first) = first_kept(Window::for_rest(100), 0, [1, 2, 3].into_iter(), bounded).unwrap();
        assert_eq!((tokens.len(), first), (30, 2));
        let none = first_kept(Window::for_rest(100), 0, [].into_iter(), bounded);
        assert!(matches!(none, Err(TextError::TemplateOutput { .. })));
    }
}
