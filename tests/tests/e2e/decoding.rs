//! Tokens one after another: in batches, ahead of the host, after an interruption, and in long sequences.

use tests::launch::{device_matrices, skip_matrix_units};
use tests::models::{everything, models};
use tests::reference::read_golden;
use unicorn_artifact::{ArtifactView, Dispatch, MappedFile, Program};
use unicorn_runtime::{BatchRow, Model, PromptPart, Sampling, Session};

use crate::built::*;

#[test]
fn a_seed_gives_the_same_text_again() {
    let model = Built::of(&models().join("tiny/llama-tied"), INT4).load();
    let text = |seed: u64| -> Vec<u32> {
        let sampling = Sampling::default().with(|sampling| {
            sampling.temperature = 1.0;
            sampling.seed = seed;
        });
        let mut session = model.session().expect("a free slot");
        let mut next = vec![1u32, 5, 9];
        (0..16)
            .map(|_| {
                let token = session.feed_and_sample(&next, &sampling).expect("the step runs").token;
                next = vec![token];
                token
            })
            .collect()
    };
    assert_eq!(text(7), text(7));
    assert_ne!(text(7), text(8), "16 samples of a flat distribution");
}

/// Sequences of different lengths in one step, and samples that feed the next step on the device, against one token at a time.
#[test]
fn batches_and_generation_ahead_sample_what_single_steps_sample() {
    let sampling = Sampling::default().with(|sampling| {
        sampling.temperature = 0.7;
        sampling.top_k = 20;
        sampling.repeat_penalty = 1.2;
        sampling.seed = 3;
    });
    // The generic target splits attention, in batches too.
    let split = Case { target: "generic", ..INT4 };
    let cases = [
        ("gemma3-text", INT4),
        ("mistral-window", split),
        ("phi3-longrope-short", INT4),
        ("qwen3-moe", INT4),
        ("gemma4-layer-inputs", split),
        ("gemma3n", INT4),
        ("qwen35-delta", INT4),
        ("gpt-oss-mxfp4", INT4),
        ("deepseek-v2", INT4),
        ("lfm2", split),
        ("llama-tied", INT4),
        ("gemma2-softcap", split),
        ("gemma4-moe", INT4),
        ("olmo2", INT4),
        ("ministral3", split),
    ];
    let count = if everything() { cases.len() } else { 10 };
    for (name, case) in cases.into_iter().take(count) {
        let prompts: Vec<Vec<u32>> = [3usize, 40, 17, 64, 9]
            .map(|len| (0..len as u32).map(|index| (index * 37 + len as u32) % 250).collect())
            .to_vec();
        let model = Built::of(&models().join("tiny").join(name), case).load_with_slots(2 * prompts.len() as u32);
        let single = |session: &mut Session, prompt: &[u32]| -> Vec<u32> {
            let mut next = prompt.to_vec();
            let mut samples = Vec::new();
            for _ in 0..20 {
                let token = session.feed_and_sample(&next, &sampling).expect("the step runs").token;
                samples.push(token);
                next = vec![token];
            }
            samples
        };
        let expected: Vec<Vec<u32>> =
            prompts.iter().map(|prompt| single(&mut model.session().expect("a free slot"), prompt)).collect();

        for (prompt, expected) in prompts.iter().zip(&expected) {
            let mut session = model.session().expect("a free slot");
            let mut samples = vec![session.feed_and_sample(prompt, &sampling).expect("the step runs").token];
            samples.extend(
                session.generate(expected[0], &sampling, 19).map(|sampled| sampled.expect("the step runs").token),
            );
            assert_eq!(samples, *expected, "{name} ahead");
        }

        let mut sessions: Vec<Session> = prompts.iter().map(|_| model.session().expect("a free slot")).collect();
        let firsts = sessions.iter_mut().zip(&prompts);
        let mut samples: Vec<Vec<u32>> = firsts
            .map(|(session, prompt)| vec![session.feed_and_sample(prompt, &sampling).expect("the step runs").token])
            .collect();
        while samples[0].len() < 20 {
            let newest: Vec<u32> = samples.iter().map(|samples| samples[samples.len() - 1]).collect();
            let rows = sessions.iter_mut().zip(newest);
            let rows = rows.map(|(session, token)| BatchRow { session, token, sampling: &sampling });
            let sampled = model.decode_batch(rows).expect("the step runs");
            samples.iter_mut().zip(&sampled).for_each(|(samples, sampled)| samples.push(sampled.token));
            // Then several, ahead, interrupted sooner or later.
            let rows = sessions.iter_mut().zip(&sampled);
            let rows = rows.map(|(session, sampled)| BatchRow { session, token: sampled.token, sampling: &sampling });
            let (end, most) = (2 * samples[0].len(), 20 - samples[0].len() as u32);
            for step in model.generate_batch(rows, most) {
                let sampled = step.expect("the step runs");
                samples.iter_mut().zip(&sampled).for_each(|(samples, sampled)| samples.push(sampled.token));
                if samples[0].len() == end {
                    break;
                }
            }
        }
        assert_eq!(samples, expected, "{name} in a batch");
        drop(sessions);
        // Those with recurrent state have no such steps.
        if !["qwen35-delta", "lfm2"].contains(&name) {
            assert_eq!(beside_prompts(&model, &prompts, &sampling), expected, "{name} beside prompts");
        }
    }
}

/// Twenty samples behind each prompt. The first two are fed alone, the others in parts, each in one step with the newest tokens of those before, and
/// with the beginning of the next one where it ends a prompt.
fn beside_prompts(model: &Model, prompts: &[Vec<u32>], sampling: &Sampling) -> Vec<Vec<u32>> {
    const PART: usize = 25;
    assert_eq!(model.prompts_beside(), 2);
    let mut sessions: Vec<Session> = prompts.iter().map(|_| model.session().expect("a free slot")).collect();
    let mut samples: Vec<Vec<u32>> = Vec::new();
    for (session, prompt) in sessions.iter_mut().zip(prompts).take(2) {
        samples.push(vec![session.feed_and_sample(prompt, sampling).expect("the step runs").token]);
    }
    let mut rests: Vec<&[u32]> = prompts.iter().map(|prompt| &prompt[..]).collect();
    while samples.len() < prompts.len() {
        let number = samples.len();
        let (decoding, others) = sessions.split_at_mut(number);
        let newest: Vec<u32> = samples.iter().map(|samples| samples[samples.len() - 1]).collect();
        let rows = decoding.iter_mut().zip(newest);
        let rows = rows.map(|(session, token)| BatchRow { session, token, sampling });
        let (mut left, mut n_ended, mut parts) = (PART, 0, Vec::new());
        for (session, rest) in others.iter_mut().zip(&mut rests[number..]).take(2) {
            let n_tokens = rest.len().min(left);
            if n_tokens > 0 {
                parts.push(PromptPart { session, rest, n_tokens, sampling });
            }
            left -= n_tokens;
            *rest = &rest[n_tokens..];
            n_ended += usize::from(rest.is_empty());
        }
        let sampled = model.decode_beside_prompts(rows, parts).expect("the step runs");
        assert_eq!(sampled.len(), number + n_ended);
        samples.resize(sampled.len(), Vec::new());
        samples.iter_mut().zip(&sampled).for_each(|(samples, sampled)| samples.push(sampled.token));
    }
    for (session, samples) in sessions.iter_mut().zip(&mut samples) {
        let (newest, left) = (samples[samples.len() - 1], 20 - samples.len() as u32);
        samples.extend(session.generate(newest, sampling, left).map(|sampled| sampled.expect("the step runs").token));
    }
    samples
}

/// On matrix units, attention of prompts leaves the rows of sequences to the kernel of decode, at the same time. Logits against those of
/// transformers, of models with a window and sinks, a soft cap, and neither.
#[test]
fn rows_beside_prompts_have_attention_of_their_own() {
    const PART: usize = 12;
    if device_matrices().is_none() {
        return skip_matrix_units();
    }
    let models_of_attention = ["gpt-oss", "gemma2-softcap", "llama3-rope"];
    let taken = if everything() { models_of_attention.len() } else { 1 };
    for name in &models_of_attention[..taken] {
        let folder = models().join("tiny").join(name);
        let golden = read_golden(&folder);
        let tokens: Vec<u32> = golden.tokens.iter().map(|&token| token as u32).collect();
        let rows: Vec<&[f32]> = golden.logits.chunks_exact(golden.logits.len() / tokens.len()).collect();
        let built = Built::of(&folder, Case { target: "nvidia", gemms: Gemms::Registers, ..F16 });
        let kernels = kernels_of_mixed_steps(&built);
        for end in ["decode attention f16 /1 apart", " behind"] {
            assert!(kernels.iter().any(|kernel| kernel.ends_with(end)), "{name}: {kernels:?}");
        }
        let model = built.load_with_slots(4);
        let sampling = Sampling::default();
        let mut sessions = [3, 7].map(|begin| {
            let mut session = model.session().expect("a free slot");
            session.feed(&tokens[..begin]).expect("the step runs");
            (session, begin)
        });
        // Two prompts, one of which has begun.
        let mut others = [0, 5].map(|begin| {
            let mut session = model.session().expect("a free slot");
            tokens[..begin].chunks(PART).for_each(|part| session.feed(part).expect("the step runs"));
            (session, &tokens[begin..])
        });
        for step in 0..tokens.len().div_ceil(PART) {
            let newest = sessions.iter_mut().map(|(session, begin)| BatchRow {
                session,
                token: tokens[*begin + step],
                sampling: &sampling,
            });
            let (mut parts, mut n_ended) = (Vec::new(), 0);
            for (session, rest) in others.iter_mut().filter(|(_, rest)| !rest.is_empty()) {
                let n_tokens = rest.len().min(PART);
                parts.push(PromptPart { session, rest, n_tokens, sampling: &sampling });
                *rest = &rest[n_tokens..];
                n_ended += usize::from(rest.is_empty());
            }
            let sampled = model.decode_beside_prompts(newest, parts).expect("the step runs");
            assert_eq!(sampled.len(), sessions.len() + n_ended);
            let ends = sessions.iter().map(|(_, begin)| begin + step).chain([tokens.len() - 1; 2]);
            for (row, sampled) in ends.zip(sampled) {
                let largest = rows[row].iter().copied().fold(f32::MIN, f32::max);
                let deviation = rows[row].iter().map(|logit| logit * logit).sum::<f32>() / rows[row].len() as f32;
                let error = f64::from((sampled.logit - largest).abs() / deviation.sqrt());
                assert!(error < 3.0 * F16_TOLERANCE, "{name}, row {row} of step {step}: {error}");
            }
        }
    }
}

/// Names of the kernels of steps that decode beside a prompt.
fn kernels_of_mixed_steps(built: &Built) -> Vec<String> {
    let file = MappedFile::open(&built.artifact()).expect("it was written");
    let view = ArtifactView::parse(file.bytes()).expect("it was compiled");
    let target = &view.kernels.targets[0];
    let mixed = target.programs.iter().filter(|program| program.logits.prompts_beside() > 0);
    let kernel = |dispatch: &Dispatch| target.pipelines[dispatch.pipeline as usize].name.clone();
    mixed.flat_map(|program| &program.dispatches).map(kernel).collect()
}

/// Steps in flight at the end of a text are discarded, whatever they wrote; the text continues beyond the end of a page, and with
/// a window that moves.
#[test]
fn an_interrupted_generation_continues_with_the_same_tokens() {
    let sampling = Sampling::default().with(|sampling| {
        sampling.temperature = 0.7;
        sampling.top_k = 20;
        sampling.repeat_penalty = 1.2;
        sampling.seed = 5;
    });
    for (name, case) in [
        ("mistral-window", INT4),
        ("gemma3-text", Case { target: "generic", ..INT4 }),
        // Steps in flight have changed its state, which is computed again.
        ("qwen35-delta", INT4),
    ] {
        let model = Built::of(&models().join("tiny").join(name), case).load();
        let begin = || {
            let mut session = model.session().expect("a free slot");
            let prompt: Vec<u32> = (0..58).map(|index| index * 37 % 250).collect();
            let first = session.feed_and_sample(&prompt, &sampling).expect("the steps run");
            (session, vec![first])
        };
        let (mut session, mut expected) = begin();
        while expected.len() < 16 {
            let newest = expected[expected.len() - 1].token;
            expected.push(session.feed_and_sample(&[newest], &sampling).expect("the step runs"));
        }
        drop(session);
        for n_taken in 1..=9 {
            let (mut session, mut samples) = begin();
            while samples.len() < expected.len() {
                let newest = samples[samples.len() - 1].token;
                let (end, most) = (samples.len() + n_taken, expected.len() - samples.len());
                let tokens = session.generate(newest, &sampling, most as u32).take(end - samples.len());
                samples.extend(tokens.map(|sampled| sampled.expect("the step runs")));
            }
            assert_eq!(samples, expected, "{name}, interrupted after {n_taken}");
        }
    }
}

/// Counter synchronisation against barriers: a dispatch that reads what the one before has not made visible continues with
/// another layer's activations, and the text differs. One sequence, whose norms are folded, and three at once.
#[test]
fn counters_give_the_tokens_that_barriers_give() {
    let built = Built::of(&models().join("gemma3-2m-draft"), Case { target: "nvidia", ..INT4 });
    let text = |barriers: bool| -> Vec<u32> {
        let model = built.try_load(3, barriers).expect("it loads");
        let mut sessions = [(); 3].map(|()| model.session().expect("a free slot"));
        let sampling = Sampling::default();
        let first = sessions[0].feed_and_sample(&[2, 100, 200, 300], &sampling).expect("the steps run").token;
        let mut samples = vec![first];
        samples
            .extend(sessions[0].generate(first, &sampling, 150).map(|sampled| sampled.expect("the step runs").token));
        let rows = sessions.each_mut().map(|session| BatchRow { session, token: first, sampling: &sampling });
        for step in model.generate_batch(rows, 50) {
            samples.extend(step.expect("the step runs").iter().map(|one| one.token));
        }
        samples
    };
    let with_barriers = text(true);
    for _ in 0..3 {
        assert_eq!(text(false), with_barriers);
    }
}

/// From some length on another program decodes, also in the middle of a generation. Logits of all rows come from programs that
/// do not depend on the length.
#[test]
fn a_long_sequence_switches_to_the_long_context_program() {
    const LONG_CONTEXT_FROM: usize = 20;
    let folder = models().join("tiny").join("llama-tied");
    let built = Built::of(&folder, Case { target: "nvidia", long_context_from: Some(LONG_CONTEXT_FROM), ..INT4 });
    let file = MappedFile::open(&built.artifact()).expect("it was just written");
    let view = ArtifactView::parse(file.bytes()).expect("the artifact is sound");
    let is_long_context = |program: &Program| program.from_tokens as usize == LONG_CONTEXT_FROM && program.samples;
    assert!(view.kernels.targets[0].programs.iter().any(is_long_context), "a program for long contexts");

    let model = built.load();
    let prompt: Vec<u32> = (0..LONG_CONTEXT_FROM as u32 - 6).map(|index| index * 37 % 250).collect();
    let sampling = Sampling::default();
    let mut session = model.session().expect("a free slot");
    let first = session.feed_and_sample(&prompt, &sampling).expect("the steps run");
    let mut samples = vec![first];
    samples.extend(session.generate(first.token, &sampling, 12).map(|sampled| sampled.expect("the step runs")));
    // Fed one by one, the program is chosen for each step.
    for _ in 0..3 {
        let newest = samples[samples.len() - 1].token;
        samples.push(session.feed_and_sample(&[newest], &sampling).expect("the step runs"));
    }
    drop(session);

    let all: Vec<i32> =
        prompt.iter().copied().chain(samples.iter().map(|one| one.token)).map(|one| one as i32).collect();
    let logits = logits(&model, &all[..all.len() - 1], 0);
    let vocab = logits.len() / (all.len() - 1);
    let rows = logits.chunks_exact(vocab).skip(prompt.len() - 1);
    let expected: Vec<f32> = rows.zip(&samples).map(|(row, one)| row[one.token as usize]).collect();
    let found: Vec<f32> = samples.iter().map(|one| one.logit).collect();
    assert_eq!((found.len(), expected.len()), (16, 16));
    assert_close("logits of the sampled tokens", &found, &expected, INTEGER_TOLERANCE);
    for (row, one) in logits.chunks_exact(vocab).skip(prompt.len() - 1).zip(&samples) {
        let largest = row.iter().copied().fold(f32::MIN, f32::max);
        assert!(largest - one.logit <= 0.1 * largest.abs(), "{one:?} was sampled, the largest logit is {largest}");
    }
}
