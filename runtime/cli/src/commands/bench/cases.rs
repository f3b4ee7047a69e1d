//! What a benchmark measures, and for which sequences the model is loaded: pure functions of the command line.

use crate::args::BenchArgs;

/// Steps of a run that are not timed: the first steps fill caches that later ones find warm.
pub const WARM_UP_STEPS: u32 = 4;

/// One line of the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Case {
    /// All tokens at once into an empty cache, up to the first sampled token.
    Prefill { tokens: u32 },
    /// One sequence continues after `depth` tokens.
    Decode { depth: u32 },
    /// That number of sequences at once, each from an empty cache.
    Batch { sequences: u32 },
    /// The rows that an image becomes.
    Image,
}

/// Cases that are measured on one loaded model.
#[derive(Debug, PartialEq, Eq)]
pub struct Group {
    pub cases: Vec<Case>,
    pub slots: u32,
    pub context_tokens: u32,
}

/// Everything to measure. The cache holds `slots` sequences of `context_tokens`: cases with a long context have a model of
/// their own, because 64 sequences of their length would fill the memory of most devices.
#[derive(Debug, PartialEq, Eq)]
pub struct Cases {
    pub groups: Vec<Group>,
    /// Notes for the user on what was changed.
    pub notes: Vec<String>,
}

impl Cases {
    /// Cases for a model that was made for `max_positions` tokens.
    pub fn new(args: &BenchArgs, max_positions: u32) -> Cases {
        let mut notes = Vec::new();
        let run_tokens = WARM_UP_STEPS.saturating_add(args.n_gen.saturating_mul(args.repetitions));
        let max_depth = max_positions.saturating_sub(run_tokens);
        let mut depths: Vec<u32> = Vec::new();
        let by_default = [0].iter().filter(|_| args.depths.is_empty() && args.sequences.is_empty());
        for &depth_tokens in args.depths.iter().chain(by_default) {
            let depth = depth_tokens.min(max_depth);
            if depth < depth_tokens {
                notes.push(format!(
                    "depth {depth_tokens}: measured at {depth}, the model's context is {max_positions} tokens"
                ));
            }
            if !depths.contains(&depth) {
                depths.push(depth);
            }
        }
        let prefills = args.n_prompt.iter().filter(|&&tokens| tokens > 0).map(|&tokens| Case::Prefill { tokens });
        let alone = prefills.chain(depths.into_iter().map(|depth| Case::Decode { depth }));
        let alone: Vec<Case> = alone.chain(args.image.then_some(Case::Image)).collect();
        let together: Vec<Case> = args.sequences.iter().map(|&sequences| Case::Batch { sequences }).collect();
        let context_of = |case: &Case| match *case {
            Case::Prefill { tokens } => tokens,
            // A window cannot go back, so that each run begins where the one before ended.
            Case::Decode { depth } if depth > 0 => depth + run_tokens,
            Case::Decode { .. } | Case::Batch { .. } | Case::Image => args.n_gen.max(WARM_UP_STEPS),
        };
        let group = |cases: Vec<Case>, slots: u32| {
            let context_tokens = cases.iter().map(context_of).max()?;
            Some(Group { cases, slots, context_tokens })
        };
        let slots = args.sequences.iter().copied().max().unwrap_or(1);
        Cases { groups: group(alone, 1).into_iter().chain(group(together, slots)).collect(), notes }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Args, Command};

    fn args(line: &str) -> BenchArgs {
        let words = ["unicorn-run", "bench", "m"].into_iter().chain(line.split_whitespace());
        let Some(Command::Bench(args)) = Args::try_parse_from(words).unwrap().command else { panic!("a benchmark") };
        args
    }

    #[test]
    fn by_default_one_prompt_and_one_decode_are_measured() {
        let Cases { groups, notes } = Cases::new(&args(""), 8192);
        let cases = vec![Case::Prefill { tokens: 512 }, Case::Decode { depth: 0 }];
        assert_eq!((groups, notes.len()), (vec![Group { cases, slots: 1, context_tokens: 512 }], 0));
    }

    #[test]
    fn batches_have_a_model_of_their_own() {
        let Cases { groups, .. } = Cases::new(&args("-p 64,512 --depth 0,2048 -s 1,32 -n 16 -r 2"), 8192);
        assert_eq!(groups.iter().map(|group| group.cases.len()).collect::<Vec<_>>(), [4, 2]);
        assert_eq!((groups[0].slots, groups[0].context_tokens), (1, 2048 + 2 * 16 + WARM_UP_STEPS));
        assert_eq!((groups[1].slots, groups[1].context_tokens), (32, 16));
    }

    #[test]
    fn tests_that_are_not_selected_are_left_out() {
        let Cases { groups, .. } = Cases::new(&args("-p 0 -s 4"), 8192);
        assert_eq!(groups.iter().map(|group| &group.cases[..]).collect::<Vec<_>>(), [[Case::Batch { sequences: 4 }]]);
    }

    #[test]
    fn a_depth_beyond_the_model_is_clipped_with_a_note() {
        let Cases { groups, notes } = Cases::new(&args("--depth 0,8192,32768 -n 100 -r 2"), 8192);
        let max_depth = 8192 - 200 - WARM_UP_STEPS;
        assert_eq!(groups[0].cases[1..], [Case::Decode { depth: 0 }, Case::Decode { depth: max_depth }]);
        assert_eq!((groups[0].context_tokens, notes.len()), (8192, 2));
        assert!(notes[0].starts_with("depth 8192: measured at 7988"), "{}", notes[0]);
    }
}
