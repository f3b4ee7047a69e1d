//! Texts that do not depend on which requests run beside them, or ran before.

use std::collections::VecDeque;
use std::ops::ControlFlow;

use tests::compiled::{Compiled, options};
use tests::recorder::{Recorder, ask, text};
use tests::tiny_model::{Family, TinyModel};
use unicorn_runtime::scheduler::Scheduler;
use unicorn_runtime::{DeviceChoice, LoadOptions, Model, RunError, Speculation};
use unicorn_spirv::target;

fn load(slots: u32) -> Model {
    let generic = target::by_name("generic").expect("a preset");
    let tiny = TinyModel { family: Family::Llama, layers: 2, ..TinyModel::default() };
    let compiled = Compiled::of(&tiny, &options(vec![generic], Vec::new()));
    let options = LoadOptions::default().with(|options| {
        options.device = DeviceChoice::Name(std::env::var("UNICORN_DEVICE").unwrap_or("llvmpipe".into()));
        (options.slots, options.context_tokens) = (slots, Some(448));
    });
    Model::load(&compiled.artifact_path(), &options).expect("it loads")
}

/// Prompts of one part and of several, some of which begin alike, and conversations that go on with what was sampled.
fn prompts() -> Vec<(Vec<u32>, usize)> {
    let begun = |len: usize, seed: u32, more: usize| [text(1, len), text(seed, more)].concat();
    let mut prompts = vec![(begun(10, 2, 3), 9), (begun(200, 3, 40), 5), (begun(150, 4, 80), 6), (begun(64, 5, 1), 12)];
    prompts.extend([(begun(200, 6, 100), 4), (begun(130, 7, 0), 8), (begun(1, 8, 190), 3), (begun(200, 3, 47), 7)]);
    prompts
}

fn scheduler(model: &Model, deterministic: bool) -> Scheduler<Recorder> {
    let mut scheduler = model.scheduler().expect("slots");
    scheduler.set_max_prefill_tokens(64);
    scheduler.set_deterministic(deterministic).expect("nothing is against it");
    scheduler
}

/// Runs the prompts, of which number `at` arrives after as many ticks as `arrivals` says, and returns the numbers of each.
fn run(scheduler: &mut Scheduler<Recorder>, arrivals: &[usize]) -> Vec<Vec<u32>> {
    let mut waiting: VecDeque<_> = prompts().into_iter().zip(arrivals.iter().copied()).collect();
    let mut answers = Vec::new();
    let mut ticks = 0;
    while !waiting.is_empty() || !scheduler.is_idle() {
        while waiting.front().is_some_and(|(_, at)| *at <= ticks) {
            let ((prompt, most), _) = waiting.pop_front().expect("it is at the front");
            let (request, answer) = Recorder::request(prompt, most);
            answers.push(answer);
            scheduler.submit(request);
        }
        scheduler.tick(&mut |_| ControlFlow::Break(()));
        ticks += 1;
    }
    answers.into_iter().map(|answer| std::mem::take(&mut answer.lock().unwrap().logits)).collect()
}

#[test]
fn a_text_is_that_of_its_request_alone() {
    let n_prompts = prompts().len();
    // Each by a scheduler of its own, one after the other.
    let model = load(1);
    let alone: Vec<Vec<u32>> =
        prompts().iter().map(|(prompt, most)| ask(&mut scheduler(&model, true), prompt, *most).logits).collect();
    drop(model);
    let model = load(3);
    let mut schedules =
        vec![vec![0; n_prompts], (0..n_prompts).map(|at| 3 * at).collect(), (0..n_prompts).map(|at| 40 * at).collect()];
    let mut state = 7_usize;
    for _ in 0..6 {
        let mut at = 0;
        schedules.push(
            (0..n_prompts)
                .map(|_| {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    at += state >> 59;
                    at
                })
                .collect(),
        );
    }
    let mut differ = 0;
    for arrivals in &schedules {
        // Two rounds: what sessions hold from the first one must not show in the second.
        let scheduler_of = |deterministic| {
            let mut scheduler = scheduler(&model, deterministic);
            [(); 2].map(|()| run(&mut scheduler, arrivals))
        };
        for found in scheduler_of(true) {
            let wrong = found.iter().zip(&alone).position(|(found, alone)| found != alone);
            assert_eq!(wrong, None, "prompt that has other numbers, of those that come at {arrivals:?}");
        }
        differ +=
            scheduler_of(false).iter().flatten().zip(alone.iter().cycle()).filter(|(one, other)| one != other).count();
    }
    assert!(differ > 0, "without the option, nothing depends on other requests: this test shows nothing");
}

#[test]
fn what_computes_tokens_in_another_way_is_refused() {
    let model = load(1);
    let folder = tempfile::tempdir().unwrap();
    let refused = |change: &dyn Fn(&mut Scheduler<Recorder>)| {
        let mut scheduler = model.scheduler::<Recorder>().expect("slots");
        change(&mut scheduler);
        match scheduler.set_deterministic(true) {
            Err(RunError::NotDeterministic { with }) => with,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(refused(&|one| one.set_speculation(Some(Speculation::ngram(2))).unwrap()), "speculation");
    let store = |one: &mut Scheduler<Recorder>| one.set_kv_store(Some(model.kv_store(folder.path(), 1 << 20).unwrap()));
    assert_eq!(refused(&store), "a store of KV caches");
}
