//! The whole runtime on a toy artifact, against the same sums on the CPU.
//!
//! Runs on llvmpipe unless UNICORN_DEVICE names another device.

use std::ops::ControlFlow;
use std::sync::mpsc;
use std::time::Duration;

use test_support::skip;
use toy_artifact::{
    CONTEXT, FIRST_SLICE_WORDS, LOGITS_ROWS, VOCAB, multistep, next_token, options, prompt, repeat_penalty, twin,
    write_toy, write_toy_behind_another_layout,
};
use unicorn_runtime::{BatchRow, LoadError, LoadOptions, Model, RunError, Sampling, UploadPath};

#[expect(dead_code, reason = "other tests use the rest")]
mod toy_artifact;

#[test]
fn any_chunking_gives_the_twins_logits() {
    let toy = Toy::load(|_| ());
    let tokens = prompt(150);
    let expected = twin(&tokens);
    for chunk in [0, 1, 3, 8, 150] {
        let mut session = toy.model.session().unwrap();
        session.set_chunk_tokens(chunk);
        let mut seen = 0;
        let mut check = |position: u32, logits: &[f32]| {
            assert_eq!(position, seen);
            assert_eq!(logits, expected[position as usize], "position {position}, chunks of {chunk}");
            seen += 1;
        };
        // A part is fed without logits, so that later rows read what other programs wrote.
        session.feed_with_logits(&tokens[..40], &mut check).unwrap();
        session.feed_with_logits(&tokens[40..], &mut check).unwrap();
        assert_eq!((seen, session.len_tokens()), (150, 150));
    }
    assert_no_validation_messages();
}

#[test]
fn sampled_tokens_follow_the_last_row_and_truncation_repeats_them() {
    let toy = Toy::load(|_| ());
    let tokens = prompt(33);
    let mut session = toy.model.session().unwrap();
    let first = session.feed_and_sample(&tokens, &Sampling::default()).unwrap();
    let expected = twin(&tokens);
    assert_eq!(first.token, next_token(&tokens));
    assert_eq!(first.logit, expected[32][first.token as usize]);
    let second = session.feed_and_sample(&[first.token], &Sampling::default()).unwrap();
    assert!(session.take_gpu_seconds().is_none_or(|seconds| seconds < 60.0));

    session.truncate(33).unwrap();
    let again = session.feed_and_sample(&[first.token], &Sampling::default()).unwrap();
    assert_eq!(again.token, second.token);
    // The last of these steps begins at position 94 and attends to 84 to 94.
    session.feed(&prompt(60)).unwrap();
    session.feed(&[3]).unwrap();
    let error = session.truncate(40).unwrap_err();
    assert!(matches!(error, RunError::NotInCache { len_tokens: 40, kept_from: 84 }), "{error}");
    session.clear();
    assert_eq!(session.feed_and_sample(&tokens, &Sampling::default()).unwrap().token, first.token);
}

#[test]
fn sampling_parameters_and_history_reach_the_kernel() {
    let toy = Toy::load(|_| ());
    let mut session = toy.model.session().unwrap();
    // The toy counts as candidates: samples so far, tokens of history, and 1000 for LongRoPE's second set.
    let plain = session.feed_and_sample(&prompt(20), &Sampling::default()).unwrap();
    assert_eq!(plain.candidates, 0);
    let penalty = Sampling::default().with(|sampling| {
        sampling.repeat_penalty = 1.5;
        sampling.repeat_last_n = 7;
    });
    assert_eq!(session.feed_and_sample(&[1], &penalty).unwrap().candidates, 1 + 7);
    session.feed(&prompt(80)).unwrap();
    assert_eq!(session.feed_and_sample(&[1], &Sampling::default()).unwrap().candidates, 2 + 1000);
    let error = session.feed_and_sample(&[1], &Sampling::default().with(|sampling| sampling.top_p = 0.0)).unwrap_err();
    assert_eq!(error.to_string(), "top-p must be above 0 and at most 1, found 0");
}

/// Each sample feeds the next step on the device; the text, the penalty's history and the samples are those of single steps.
#[test]
fn generating_ahead_gives_what_single_steps_give() {
    let multistep = |options: &mut LoadOptions| *options = multistep(options.clone()).with(|options| options.slots = 2);
    let toy = Toy::load(multistep);
    let sampling = repeat_penalty();
    let [mut stepped, mut ahead] = [toy.model.session().unwrap(), toy.model.session().unwrap()];
    let first = stepped.feed_and_sample(&prompt(70), &sampling).unwrap();
    assert_eq!(ahead.feed_and_sample(&prompt(70), &sampling).unwrap(), first);
    for most in [1, 2, 7, 40] {
        let mut next = stepped.tokens().last().copied().unwrap() % VOCAB;
        let begun_with = next;
        let expected: Vec<_> = (0..most)
            .map(|_| {
                let sampled = stepped.feed_and_sample(&[next], &sampling).unwrap();
                next = sampled.token;
                sampled
            })
            .collect();
        // One of the runs is interrupted with steps in flight.
        let limit = if most == 7 { 100 } else { most };
        let tokens = ahead.generate(begun_with, &sampling, limit).take(most as usize);
        let samples: Vec<_> = tokens.map(|sampled| sampled.unwrap()).collect();
        assert_eq!(samples, expected, "{most} tokens");
        assert_eq!(ahead.tokens(), stepped.tokens());
    }
    // The context ends before the stream is dropped.
    let room = CONTEXT - ahead.len_tokens();
    let count = ahead.generate(1, &sampling, u32::MAX).inspect(|sampled| assert!(sampled.is_ok())).count() as u32;
    assert_eq!((count, ahead.len_tokens()), (room, CONTEXT));
    assert_no_validation_messages();
}

/// A generation that ends anywhere, also within a submission of several steps and just after pages of a window were freed,
/// continues as single steps do.
#[test]
fn an_interrupted_generation_continues_with_the_same_tokens() {
    let toy = Toy::load(|options| *options = multistep(options.clone()));
    let sampling = repeat_penalty();
    let begin = || {
        let mut session = toy.model.session().unwrap();
        let first = session.feed_and_sample(&prompt(30), &sampling).unwrap();
        (session, vec![first])
    };
    let (mut stepped, mut expected) = begin();
    while expected.len() < 100 {
        let newest = expected[expected.len() - 1].token;
        expected.push(stepped.feed_and_sample(&[newest], &sampling).unwrap());
    }
    drop(stepped);
    for n_taken in 1..=9 {
        let (mut session, mut samples) = begin();
        while samples.len() < expected.len() {
            let (newest, most) = (samples[samples.len() - 1].token, expected.len() - samples.len());
            let tokens = session.generate(newest, &sampling, most as u32).take(n_taken);
            samples.extend(tokens.map(|sampled| sampled.unwrap()));
        }
        assert_eq!(samples, expected, "interrupted after {n_taken}");
    }
    assert_no_validation_messages();
}

#[test]
fn a_batch_gives_each_sequence_what_it_gets_alone() {
    let toy = Toy::load(|options| options.slots = 6);
    let sampling = repeat_penalty();
    // Sequences of different lengths, some beyond the window and LongRoPE's limit.
    let lengths = [5, 30, 120];
    let sessions = || lengths.map(|_| toy.model.session().unwrap());
    let (mut alone, mut together) = (sessions(), sessions());
    for ((one, other), len) in alone.iter_mut().zip(&mut together).zip(lengths) {
        one.feed(&prompt(len)).unwrap();
        other.feed(&prompt(len)).unwrap();
    }
    for step in 0..12 {
        let token = 3 * step % VOCAB;
        let expected = alone.each_mut().map(|session| session.feed_and_sample(&[token], &sampling).unwrap());
        let rows = together.each_mut().map(|session| BatchRow { session, token, sampling: &sampling });
        assert_eq!(toy.model.decode_batch(rows).unwrap(), expected, "step {step}");
    }
    assert_eq!(toy.model.batch_rows(), LOGITS_ROWS);
    // Ahead of the host, until the longest is full; then there is room for none of them.
    let room = CONTEXT - together[2].len_tokens();
    let rows = together.each_mut().map(|session| BatchRow { session, token: 1, sampling: &sampling });
    let samples: Vec<_> = toy.model.generate_batch(rows, u32::MAX).map(|sampled| sampled.unwrap()).collect();
    assert_eq!(samples.len() as u32, room);
    for (index, session) in alone.iter_mut().enumerate() {
        let mut expected = samples.iter().map(|step| step[index]);
        for sampled in session.generate(1, &sampling, room) {
            assert_eq!(Some(sampled.unwrap()), expected.next(), "sequence {index}");
        }
    }
    let rows = together.each_mut().map(|session| BatchRow { session, token: 1, sampling: &sampling });
    let error = toy.model.generate_batch(rows, 1).next().unwrap().unwrap_err();
    assert!(matches!(error, RunError::ContextFull { .. }), "{error}");
    assert_eq!(together.map(|session| session.tokens().to_vec()), alone.map(|session| session.tokens().to_vec()));
    assert_no_validation_messages();
}

#[test]
fn sessions_share_the_model_but_no_page() {
    let toy = Toy::load(|options| options.slots = 2);
    let (one, two) = (prompt(120), prompt(121)[1..].to_vec());
    let mut sessions = [toy.model.session().unwrap(), toy.model.session().unwrap()];
    assert!(matches!(toy.model.session(), Err(RunError::NoFreeSlot { slots: 2 })));
    let twins = [twin(&one), twin(&two)];
    for at in (0..120).step_by(5) {
        for ((session, tokens), twin) in sessions.iter_mut().zip([&one, &two]).zip(&twins) {
            let mut check = |position: u32, logits: &[f32]| assert_eq!(logits, twin[position as usize]);
            session.feed_with_logits(&tokens[at..at + 5], &mut check).unwrap();
        }
    }
    drop(sessions);
    toy.model.session().unwrap().feed(&prompt(CONTEXT)).unwrap();
}

#[test]
fn mistakes_of_callers_are_errors() {
    let toy = Toy::load(|_| ());
    let mut session = toy.model.session().unwrap();
    let unknown = session.feed(&[VOCAB]).unwrap_err();
    assert_eq!(unknown.to_string(), "token id 97 is unknown: the vocabulary has 97 entries");
    let full = session.feed(&prompt(CONTEXT + 1)).unwrap_err();
    assert!(full.to_string().starts_with("context is full: 200 tokens, needs 201;"), "{full}");
    assert!(matches!(session.feed_and_sample(&[], &Sampling::default()), Err(RunError::NoTokens)));
    assert_eq!(session.len_tokens(), 0);
}

#[test]
fn a_changed_weight_is_found_if_weights_are_verified() {
    let folder = tempfile::tempdir().unwrap();
    let path = write_toy(folder.path());
    let mut bytes = std::fs::read(&path).unwrap();
    let at = bytes.windows(4).position(|word| word == 5000u32.to_le_bytes()).unwrap();
    bytes[at + 1] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let options = options();
    let error = Model::load(&path, &options).err().unwrap();
    assert!(matches!(error, LoadError::Artifact { .. }) && error.to_string().contains("hash"), "{error}");
    let trusting = options.with(|options| options.verify_weights = false);
    assert!(Model::load(&path, &trusting).is_ok());
}

#[test]
fn loading_reports_what_it_did() {
    let folder = tempfile::tempdir().unwrap();
    let path = write_toy(folder.path());
    let options = options();
    let mut last = (0, 0);
    let model = Model::load_with_progress(&path, &options, &mut |done, total| {
        last = (done, total);
        ControlFlow::Continue(())
    })
    .unwrap();
    let weight_bytes = 4 * FIRST_SLICE_WORDS as u64 + 4 * u64::from(VOCAB);
    assert_eq!(last, (weight_bytes, weight_bytes));
    let report = model.report();
    assert_eq!((report.weight_bytes, report.target.as_str()), (weight_bytes, "toy"));
    assert!(report.memory.iter().map(|tier| tier.weights).sum::<u64>() >= weight_bytes);
    assert_eq!(model.context_tokens(), CONTEXT);

    let long = options.clone().with(|options| options.context_tokens = Some(CONTEXT + 1));
    let error = Model::load(&path, &long).err().unwrap().to_string();
    assert!(error.starts_with("context must be 1 to 200 tokens"), "{error}");
    let other = options.with(|options| options.target = Some("other".into()));
    let error = Model::load(&path, &other).err().unwrap().to_string();
    assert!(error.ends_with("target toy: not other, which was requested"), "{error}");
}

#[test]
fn every_upload_path_gives_the_same_model() {
    let tokens = prompt(20);
    let expected = twin(&tokens);
    for upload_path in
        [None, Some(UploadPath::Import), Some(UploadPath::Map), Some(UploadPath::Host), Some(UploadPath::Staging)]
    {
        let options = options();
        let folder = tempfile::tempdir().unwrap();
        let path = write_toy(folder.path());
        let mut parts = Vec::new();
        let loaded = Model::load_with_progress(
            &path,
            &options.with(|options| options.residency = upload_path),
            &mut |done, _| {
                parts.push(done);
                ControlFlow::Continue(())
            },
        );
        let model = match loaded {
            Err(LoadError::Residency { refusals, .. }) if may_lack_path(&refusals) => {
                skip("upload path", refusals.join("; "));
                continue;
            }
            other => other.unwrap_or_else(|error| panic!("{upload_path:?}: {error}")),
        };
        assert!(parts.is_sorted() && parts.len() >= 3, "{upload_path:?}: {parts:?}");
        let words = match upload_path {
            Some(UploadPath::Import) => "import of the mapped file",
            Some(UploadPath::Host) => "imported memory",
            Some(UploadPath::Staging) => "staging copies",
            _ => "",
        };
        let paths = model.report().upload_paths;
        assert!(paths[0].to_string().contains(words), "{upload_path:?}: {paths:?}");
        let mut session = model.session().unwrap();
        let mut check =
            |position: u32, logits: &[f32]| assert_eq!(logits, expected[position as usize], "{upload_path:?}");
        session.feed_with_logits(&tokens, &mut check).unwrap();
    }
    assert_no_validation_messages();
}

/// The device reads the file's pages, so that what is written to the file is what it computes with.
#[test]
fn an_imported_file_that_changes_is_verified_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = write_toy(folder.path());
    let sound = std::fs::read(&path).unwrap();
    let model = match Model::load(&path, &options().with(|options| options.residency = Some(UploadPath::Import))) {
        Err(LoadError::Residency { refusals, .. }) if may_lack_path(&refusals) => {
            return skip("upload path", refusals.join("; "));
        }
        other => other.unwrap(),
    };
    let mut session = model.session().unwrap();
    session.feed(&prompt(50)).unwrap();
    let changed = {
        let mut bytes = sound.clone();
        bytes[4 * FIRST_SLICE_WORDS / 2] ^= 1;
        bytes
    };
    let cases = [(&changed[..], "hash"), (&sound[..sound.len() / 4], "was cut while it was in use")];
    for (bytes, expected) in cases {
        // In place, as a careless copy does it.
        std::fs::write(&path, bytes).unwrap();
        for _ in 0..2 {
            let error = session.feed(&[1]).unwrap_err().to_string();
            assert!(error.contains(expected) && error.contains("toy.unicorn"), "{error}");
        }
        assert_eq!(session.len_tokens(), 50);
    }
    std::fs::write(&path, &sound).unwrap();
    let expected = twin(&[prompt(50), vec![1]].concat());
    let mut check = |position: u32, logits: &[f32]| assert_eq!(logits, expected[position as usize]);
    session.feed_with_logits(&[1], &mut check).unwrap();
    assert_no_validation_messages();
}

#[test]
fn an_unusable_pipeline_cache_does_not_prevent_loading() {
    let folder = tempfile::tempdir().unwrap();
    let path = write_toy(folder.path());
    let options = options();
    let load = |cache_folder: &std::path::Path| {
        let options = options.clone().with(|options| options.cache_folder = Some(cache_folder.to_owned()));
        let model = Model::load(&path, &options).unwrap_or_else(|error| panic!("{error}"));
        model.session().unwrap().feed(&prompt(20)).unwrap();
        model.report().pipelines.clone()
    };
    let caches = folder.path().join("caches");
    let first = load(&caches);
    let second = load(&caches);
    assert_eq!((first.pipelines, &first.note, &second.note), (second.pipelines, &None, &None));
    // Where the driver caches anything at all, the second start finds every pipeline.
    assert!(second.from_cache.is_none_or(|found| found == second.pipelines), "{second:?}");
    // A file where the folder should be: a note, and no other effect.
    let note = load(&path).note.expect("a note");
    assert!(note.contains("toy.unicorn"), "{note}");
}

#[test]
fn short_submissions_are_many_and_change_nothing() {
    let whole = Toy::load(|options| options.submission = Some(Duration::from_secs(3600)));
    let short = Toy::load(|options| options.submission = Some(Duration::from_nanos(1)));
    assert!(whole.model.report().submissions.iter().all(|&count| count == 1));
    let one_for_each_dispatch = [4, 4, 6, 6, 5, 6, 6];
    let submissions = &short.model.report().submissions;
    assert_eq!(submissions.len(), one_for_each_dispatch.len());
    let in_ranges = submissions.iter().zip(one_for_each_dispatch).filter(|&(&found, least)| {
        assert!(found >= least, "{submissions:?}");
        found > least
    });
    assert!(in_ranges.count() > 0, "{submissions:?}");
    let tokens = prompt(150);
    for model in [&whole.model, &short.model] {
        let expected = twin(&tokens);
        let mut check = |position: u32, logits: &[f32]| assert_eq!(logits, expected[position as usize]);
        model.session().unwrap().feed_with_logits(&tokens, &mut check).unwrap();
    }
    assert_no_validation_messages();
}

/// A prompt of one step shows how far it is, too: each submission that has ended counts.
#[test]
fn a_feed_reports_its_progress_within_a_step() {
    let tokens = prompt(8);
    let reports = |submission| {
        let toy = Toy::load(|options| options.submission = Some(submission));
        let (sender, receiver) = mpsc::channel();
        let mut session = toy.model.session().unwrap();
        session.set_feed_progress(Some(Box::new(move |fed, all| sender.send((fed, all)).unwrap())));
        let sampled = session.feed_and_sample(&tokens, &Sampling::default()).unwrap();
        assert_eq!(sampled.token, next_token(&tokens));
        session.set_feed_progress(None);
        let found: Vec<(u32, u32)> = receiver.iter().collect();
        assert!(found.is_sorted() && found.iter().all(|&(_, all)| all == 8), "{found:?}");
        assert_eq!((found.first(), found.last()), (Some(&(0, 8)), Some(&(8, 8))), "{found:?}");
        found.into_iter().filter(|&(fed, _)| 0 < fed && fed < 8).count()
    };
    assert_eq!(reports(Duration::from_secs(3600)), 0);
    assert!(reports(Duration::from_nanos(1)) > 1);
    assert_no_validation_messages();
}

/// A driver may distribute matrices otherwise than all that were seen: the model still runs, by the next target.
#[test]
fn a_target_whose_layout_of_matrices_differs_is_left_out() {
    let folder = tempfile::tempdir().unwrap();
    let path = write_toy_behind_another_layout(folder.path());
    let model = Model::load(&path, &options()).unwrap_or_else(|error| panic!("{error}"));
    let report = model.report();
    assert_eq!((&*report.target, report.left_out.len()), ("toy", 1));
    assert!(report.left_out[0].contains("kernels of target other layout expect"), "{:?}", report.left_out);
    let tokens = prompt(20);
    assert_eq!(
        model.session().unwrap().feed_and_sample(&tokens, &Sampling::default()).unwrap().token,
        next_token(&tokens)
    );
    let forced = options().with(|options| options.target = Some("other layout".into()));
    let error = Model::load(&path, &forced).err().expect("it was requested by name").to_string();
    assert!(error.contains("kernels of target other layout expect; another target"), "{error}");
    assert_no_validation_messages();
}

/// A device need not have all upload paths; llvmpipe does, but for `import` on file systems without leases.
fn may_lack_path(refusals: &[String]) -> bool {
    !is_llvmpipe() || refusals.iter().all(|refusal| refusal.contains("no leases"))
}

fn is_llvmpipe() -> bool {
    std::env::var("UNICORN_DEVICE").is_ok_and(|name| name == "llvmpipe")
}

/// A loaded toy and the folder of its artifact.
struct Toy {
    model: Model,
    _folder: tempfile::TempDir,
}

impl Toy {
    fn load(change: impl FnOnce(&mut LoadOptions)) -> Toy {
        let mut options = options();
        change(&mut options);
        let folder = tempfile::tempdir().unwrap();
        let path = write_toy(folder.path());
        let model = Model::load(&path, &options).unwrap_or_else(|error| panic!("{error}"));
        Toy { model, _folder: folder }
    }
}

fn assert_no_validation_messages() {
    assert_eq!(unicorn_runtime::validation_messages(), 0, "the validation layer reported messages");
}
