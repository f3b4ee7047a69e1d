//! A model that several owners use at once: what may be called when, and that no one waits for another's step. On the toy
//! artifact, whose logits are known.

use std::thread;

use toy_artifact::{multistep, options, prompt, twin, write_toy};
use unicorn_runtime::{CancelToken, Model, RunError, Sampled, Sampling, Session, Tokens};

#[expect(dead_code, reason = "other tests use the rest")]
mod toy_artifact;

/// What a service keeps of a conversation. Neither half borrows the other.
struct Conversation {
    model: Model,
    session: Session,
}

/// A loaded toy and the folder of its artifact.
fn toy(slots: u32) -> (Model, tempfile::TempDir) {
    let options = multistep(options()).with(|options| options.slots = slots);
    let folder = tempfile::tempdir().unwrap();
    let model = Model::load(&write_toy(folder.path()), &options).unwrap();
    (model, folder)
}

/// The sampled tokens after a prompt of `n_tokens`, with nothing else going on.
fn alone(model: &Model, n_tokens: u32, max_tokens: u32) -> Vec<Sampled> {
    let mut session = model.session().unwrap();
    let first = session.feed_and_sample(&prompt(n_tokens), &Sampling::default()).unwrap();
    collect(session.generate(first.token, &Sampling::default(), max_tokens))
}

fn collect(tokens: Tokens<'_>) -> Vec<Sampled> {
    tokens.map(|sampled| sampled.unwrap()).collect()
}

fn assert_send<T: Send + 'static>(_: &T) {}

#[test]
fn one_struct_holds_a_model_and_its_session_and_moves_to_another_thread() {
    let (model, _folder) = toy(1);
    let expected = alone(&model, 20, 10);
    let session = model.session().unwrap();
    let mut conversation = Conversation { model, session };
    assert_send(&conversation);
    let found = thread::spawn(move || {
        let first = conversation.session.feed_and_sample(&prompt(20), &Sampling::default()).unwrap();
        assert_eq!(conversation.model.slots(), 1);
        collect(conversation.session.generate(first.token, &Sampling::default(), 10))
    });
    assert_eq!(found.join().unwrap(), expected);
}

/// With several steps in flight each time: the next user of the device lets them end, and their tokens are not lost.
#[test]
fn every_method_may_be_called_between_two_tokens() {
    let (model, _folder) = toy(3);
    let (expected, expected_inner) = (alone(&model, 20, 40), alone(&model, 33, 3));
    let mut kept = model.session().unwrap();
    kept.feed(&prompt(50)).unwrap();
    let mut session = model.session().unwrap();
    let first = session.feed_and_sample(&prompt(20), &Sampling::default()).unwrap();
    let mut found = Vec::new();
    for sampled in session.generate(first.token, &Sampling::default(), 40) {
        found.push(sampled.unwrap());
        match found.len() % 5 {
            0 => assert_eq!(alone(&model, 33, 3), expected_inner),
            1 => drop(model.session().unwrap()),
            2 => {
                let mut other = model.session().unwrap();
                let first = other.feed_and_sample(&prompt(33), &Sampling::default()).unwrap();
                // Dropped with steps in flight.
                let two: Vec<_> = other.generate(first.token, &Sampling::default(), 100).take(2).collect();
                assert_eq!(two[1].as_ref().unwrap(), &expected_inner[1]);
            }
            3 => kept.truncate(50 - found.len() as u32 / 4).unwrap(),
            _ => {
                let (used, all) = model.kv_pages();
                assert!(0 < used && used <= all && model.take_recoveries().is_empty());
                assert_eq!(model.report().target, "toy");
            }
        }
    }
    assert_eq!(found, expected);
}

#[test]
fn a_callback_may_use_the_model() {
    let (model, _folder) = toy(2);
    let expected = twin(&prompt(20));
    let mut session = model.session().unwrap();
    let mut sink = |position: u32, logits: &[f32]| {
        assert_eq!(logits, expected[position as usize]);
        let mut other = model.session().unwrap();
        let sampled = other.feed_and_sample(&prompt(position + 1), &Sampling::default()).unwrap();
        assert_eq!(sampled.logit, expected[position as usize][sampled.token as usize]);
    };
    session.feed_with_logits(&prompt(20), &mut sink).unwrap();
}

#[test]
fn sequences_that_generate_on_several_threads_get_their_own_tokens() {
    let (model, _folder) = toy(4);
    let lengths = [5, 30, 64, 90];
    let expected = lengths.map(|n_tokens| alone(&model, n_tokens, 60));
    let threads = lengths.map(|n_tokens| {
        let model = model.clone();
        thread::spawn(move || (0..3).map(|_| alone(&model, n_tokens, 60)).collect::<Vec<_>>())
    });
    for (thread, expected) in threads.into_iter().zip(expected) {
        thread.join().unwrap().iter().for_each(|found| assert_eq!(found, &expected));
    }
}

#[test]
fn a_cancelled_session_stops_between_two_tokens_and_continues_after_a_reset() {
    let (model, _folder) = toy(1);
    let expected = alone(&model, 20, 12);
    let mut session = model.session().unwrap();
    let cancel = CancelToken::new();
    session.set_cancel(cancel.clone());
    cancel.cancel();
    assert!(matches!(session.feed(&prompt(20)), Err(RunError::Cancelled)));
    assert_eq!(session.len_tokens(), 0);
    assert!(cancel.reset());

    let first = session.feed_and_sample(&prompt(20), &Sampling::default()).unwrap();
    let mut found = Vec::new();
    let mut tokens = session.generate(first.token, &Sampling::default(), 12);
    found.extend(tokens.by_ref().take(5).map(|sampled| sampled.unwrap()));
    cancel.cancel();
    assert!(matches!(tokens.next(), Some(Err(RunError::Cancelled))));
    assert!(tokens.next().is_none());
    drop(tokens);
    cancel.reset();
    found.extend(collect(session.generate(found[4].token, &Sampling::default(), 7)));
    assert_eq!(found, expected);
}
