//! Text that continues a prompt, piece by piece.

use unicorn_runtime::{RunError, Sampling, Session};

use crate::error::TextError;
use crate::output::{EndReason, OutputText, Piece, StopConditions};
use crate::token_sampler::{SampledTokens, TokenSampler};
use crate::tokenizer::Tokenizer;

/// The tokens behind the first one.
type Later<'s> = Box<dyn Iterator<Item = Result<u32, TextError>> + 's>;

/// Pieces of the text that continues a prompt, as the model generates them; none is empty, none ends within a character.
///
/// The device computes steps ahead between two pieces, and nothing is locked. After it ended, [`Continuation::end_reason`] is
/// `Some`; an error ends it without a reason. Dropping it stops the generation, and the session keeps what it has computed.
///
/// ```no_run
/// use unicorn_text::{Continuation, StopConditions, Tokenizer, default_sampling};
///
/// # fn example(model: &unicorn_text::unicorn_runtime::Model) -> Result<(), unicorn_text::TextError> {
/// let section = model.tokenizer_section();
/// let tokenizer = Tokenizer::new(section)?;
/// let mut session = model.session()?;
/// let mut conditions = StopConditions::of(section);
/// conditions.max_tokens = Some(100);
/// let prompt = tokenizer.encode_prompt("Once upon a time")?;
/// for piece in Continuation::new(&mut session, &tokenizer, &prompt, &default_sampling(), conditions)? {
///     print!("{}", piece?);
/// }
/// # Ok(())
/// # }
/// ```
pub struct Continuation<'s> {
    pieces: Pieces<Later<'s>>,
    prompt_tokens: u32,
    cached_tokens: u32,
}

impl<'s> Continuation<'s> {
    /// Feeds `prompt` to the session and samples the first token. Blocks until that is done, a step for each 512 tokens or so. Prompt
    /// tokens that the session already has in its cache, because its tokens begin like the prompt, are not computed again; its other
    /// tokens are dropped.
    ///
    /// When the session's [`CancelToken`](unicorn_runtime::CancelToken) is cancelled, now or later, the continuation ends with
    /// [`EndReason::Cancelled`].
    ///
    /// # Errors
    /// [`TextError::EmptyPrompt`], and [`TextError::Run`] for a prompt longer than the context, a sampling parameter out of its
    /// range, and failures of the device.
    pub fn new(
        session: &'s mut Session,
        tokenizer: &Tokenizer,
        prompt: &[u32],
        sampling: &Sampling,
        conditions: StopConditions,
    ) -> Result<Continuation<'s>, TextError> {
        Continuation::begin(session, tokenizer, prompt, conditions, |session, rest| {
            let first = session.feed_and_sample(rest, sampling)?.token;
            let later = session.generate(first, sampling, u32::MAX).map(|next| Ok(next?.token));
            Ok((first, Box::new(later) as Later<'s>))
        })
    }

    /// As [`Continuation::new`], with tokens that `sampler` samples where it applies. Nothing is speculated, and no step runs ahead where the host
    /// samples.
    ///
    /// # Errors
    /// Errors of [`Continuation::new`], and [`TextError::Sample`].
    pub fn with_sampler(
        session: &'s mut Session,
        tokenizer: &Tokenizer,
        prompt: &[u32],
        sampling: &Sampling,
        conditions: StopConditions,
        sampler: Box<dyn TokenSampler>,
    ) -> Result<Continuation<'s>, TextError> {
        Continuation::begin(session, tokenizer, prompt, conditions, |session, rest| {
            let (later, first) = SampledTokens::begin(session, rest, sampling, sampler)?;
            Ok((first, Box::new(later) as Later<'s>))
        })
    }

    /// `start` feeds what of the prompt is not cached, and returns the first token and those behind it.
    fn begin(
        session: &'s mut Session,
        tokenizer: &Tokenizer,
        prompt: &[u32],
        conditions: StopConditions,
        start: impl FnOnce(&'s mut Session, &[u32]) -> Result<(u32, Later<'s>), TextError>,
    ) -> Result<Continuation<'s>, TextError> {
        if prompt.is_empty() {
            return Err(TextError::EmptyPrompt);
        }
        let max_tokens = conditions.max_tokens;
        let output = OutputText::new(tokenizer, prompt, conditions);
        let cached_tokens = session.keep_common_start(prompt);
        let pieces = match start(session, &prompt[cached_tokens as usize..]) {
            Ok(_) if max_tokens == Some(0) => Pieces::ended(output, EndReason::MaxTokens),
            Ok((first, later)) => Pieces::new(output, first, later),
            Err(TextError::Run(RunError::Cancelled)) => Pieces::ended(output, EndReason::Cancelled),
            Err(error) => return Err(error),
        };
        Ok(Continuation { pieces, prompt_tokens: prompt.len() as u32, cached_tokens })
    }

    /// Why the text ended; `None` while it has not, and after an error.
    pub fn end_reason(&self) -> Option<EndReason> {
        self.pieces.end_reason
    }

    /// Token ids of the text so far, without a stop token.
    pub fn tokens(&self) -> &[u32] {
        &self.pieces.generated
    }

    /// Tokens that were sampled so far, a stop token included.
    pub fn n_sampled(&self) -> u32 {
        self.pieces.output.n_tokens()
    }

    /// Tokens of the prompt.
    pub fn prompt_tokens(&self) -> u32 {
        self.prompt_tokens
    }

    /// Tokens of the prompt that were in the session's cache already.
    pub fn cached_tokens(&self) -> u32 {
        self.cached_tokens
    }
}

impl Iterator for Continuation<'_> {
    type Item = Result<String, TextError>;

    /// Blocks until the next piece is whole, which takes a step or a few.
    fn next(&mut self) -> Option<Result<String, TextError>> {
        self.pieces.next()
    }
}

/// The same for any source of tokens.
struct Pieces<T> {
    output: OutputText,
    /// The first token, until it is taken.
    first: Option<u32>,
    /// The tokens that follow it. `None`: no more are needed.
    tokens: Option<T>,
    generated: Vec<u32>,
    end_reason: Option<EndReason>,
}

impl<T: Iterator<Item = Result<u32, TextError>>> Pieces<T> {
    fn new(output: OutputText, first: u32, tokens: T) -> Pieces<T> {
        Pieces { output, first: Some(first), tokens: Some(tokens), generated: Vec::new(), end_reason: None }
    }

    fn ended(output: OutputText, reason: EndReason) -> Pieces<T> {
        Pieces { output, first: None, tokens: None, generated: Vec::new(), end_reason: Some(reason) }
    }

    fn next(&mut self) -> Option<Result<String, TextError>> {
        while self.tokens.is_some() {
            match self.next_piece() {
                Ok(Piece { text, end }) => {
                    if end.is_some() {
                        // Steps that were computed ahead are dropped.
                        (self.tokens, self.end_reason) = (None, end);
                    }
                    if !text.is_empty() {
                        return Some(Ok(text));
                    }
                }
                Err(error) => {
                    self.tokens = None;
                    return Some(Err(error));
                }
            }
        }
        None
    }

    fn next_piece(&mut self) -> Result<Piece, TextError> {
        let next = match self.first.take() {
            Some(first) => Some(Ok(first)),
            None => self.tokens.as_mut().and_then(T::next),
        };
        match next {
            Some(Ok(token)) => {
                let piece = self.output.push(token)?;
                if piece.end != Some(EndReason::StopToken) {
                    self.generated.push(token);
                }
                Ok(piece)
            }
            None | Some(Err(TextError::Run(RunError::ContextFull { .. }))) => self.output.end(EndReason::ContextFull),
            Some(Err(TextError::Run(RunError::Cancelled))) => self.output.end(EndReason::Cancelled),
            Some(Err(error)) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokenizer::tests::{BYTE_LEVEL, tokenizer};

    fn sampled(token: u32) -> Result<u32, TextError> {
        Ok(token)
    }

    /// Pieces of the first token "a" and those of `tokens`.
    fn pieces(
        tokens: Vec<Result<u32, TextError>>,
        conditions: StopConditions,
    ) -> Pieces<std::vec::IntoIter<Result<u32, TextError>>> {
        Pieces::new(OutputText::new(&tokenizer(BYTE_LEVEL), &[1], conditions), 1, tokens.into_iter())
    }

    fn all<T: Iterator<Item = Result<u32, TextError>>>(pieces: &mut Pieces<T>) -> Vec<String> {
        std::iter::from_fn(|| pieces.next()).map(|piece| piece.unwrap()).collect()
    }

    #[test]
    fn pieces_are_whole_characters_until_the_context_is_full() {
        let mut whole = pieces([3, 4, 5].map(sampled).into(), StopConditions::default());
        assert_eq!(all(&mut whole), ["a", "é", " a"]);
        assert_eq!(
            (whole.end_reason, whole.generated.as_slice()),
            (Some(EndReason::ContextFull), [1, 3, 4, 5].as_slice())
        );
    }

    #[test]
    fn a_stop_token_is_not_among_the_tokens() {
        let conditions = StopConditions { stop_tokens: vec![2], ..StopConditions::default() };
        let mut stopped = pieces([5, 2, 1].map(sampled).into(), conditions);
        assert_eq!(all(&mut stopped), ["a", " a"]);
        assert_eq!((stopped.end_reason, stopped.generated.as_slice()), (Some(EndReason::StopToken), [1, 5].as_slice()));
        assert_eq!(stopped.output.n_tokens(), 3);
    }

    #[test]
    fn cancelling_ends_it_with_the_text_so_far() {
        let mut cancelled = pieces(vec![sampled(3), Err(RunError::Cancelled.into())], StopConditions::default());
        assert_eq!(all(&mut cancelled), ["a", "\u{fffd}"]);
        assert_eq!(cancelled.end_reason, Some(EndReason::Cancelled));
    }

    #[test]
    fn an_error_ends_it_without_a_reason() {
        let mut failed = pieces(vec![Err(RunError::NoTokens.into()), sampled(1)], StopConditions::default());
        assert_eq!(failed.next().unwrap().unwrap(), "a");
        assert!(matches!(failed.next(), Some(Err(TextError::Run(RunError::NoTokens)))));
        assert!(failed.next().is_none() && failed.end_reason.is_none());
    }
}
