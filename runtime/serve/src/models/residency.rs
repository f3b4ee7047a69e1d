//! Which models are loaded: a state machine without threads or clocks of its own.
//!
//! ```text
//! Unloaded ──► Loading ──► Loaded ──► Closing ──► Unloading ──► Unloaded
//!                 │           └──── idle ────────────▲              ▲
//!                 └──── failed ─────────────────────────────────────┘
//! ```

use std::time::{Duration, Instant};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Unloaded,
    Loading,
    Loaded,
    /// Takes no further requests, and is unloaded after its last one has ended: another model waits for its place.
    Closing,
    Unloading,
}

/// What the caller that needs a model does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// It is loaded, and counted as in use until [`Residency::release`].
    Use,
    /// Load it, then report [`Residency::loaded`] or [`Residency::failed`].
    Load,
    /// Stop this one, then report [`Residency::unloaded`], and call again.
    Unload(usize),
    /// Call again after a change.
    Wait,
}

struct Resident {
    state: State,
    is_pinned: bool,
    users: u32,
    used_at: Instant,
    /// Number of loads that have failed or succeeded.
    attempts: u64,
    /// Why the last attempt failed.
    failure: Option<String>,
}

pub(super) struct Residency {
    models: Vec<Resident>,
    max_loaded: usize,
}

impl Residency {
    /// One model for each entry of `pinned`, none of them loaded; pinned ones are never unloaded.
    pub(super) fn new(pinned: &[bool], max_loaded: usize, now: Instant) -> Residency {
        let resident = |&is_pinned: &bool| Resident {
            state: State::Unloaded,
            is_pinned,
            users: 0,
            used_at: now,
            attempts: 0,
            failure: None,
        };
        Residency { models: pinned.iter().map(resident).collect(), max_loaded }
    }

    /// What is to be done so that a request can use the model.
    pub(super) fn next(&mut self, model: usize, now: Instant) -> Next {
        match self.models[model].state {
            State::Loaded => {
                self.models[model].users += 1;
                self.models[model].used_at = now;
                Next::Use
            }
            State::Loading | State::Closing | State::Unloading => Next::Wait,
            State::Unloaded if self.places_taken() < self.max_loaded => {
                self.models[model].state = State::Loading;
                Next::Load
            }
            State::Unloaded => self.make_place(model).map_or(Next::Wait, Next::Unload),
        }
    }

    /// Begins to unload the least recently used model other than `except`. One that is in use is closed first: then, and where
    /// there is none to unload or one is being unloaded already, returns `None`.
    pub(super) fn make_place(&mut self, except: usize) -> Option<usize> {
        if self.models.iter().any(|one| matches!(one.state, State::Closing | State::Unloading)) {
            return None;
        }
        let loaded = self.models.iter_mut().enumerate();
        let mut others = loaded.filter(|(at, one)| *at != except && one.state == State::Loaded && !one.is_pinned);
        let (at, oldest) = others.by_ref().min_by_key(|(_, one)| (one.users > 0, one.used_at))?;
        oldest.state = if oldest.users == 0 { State::Unloading } else { State::Closing };
        (oldest.state == State::Unloading).then_some(at)
    }

    /// Whether a place can become free that `except` does not have.
    pub(super) fn has_others(&self, except: usize) -> bool {
        let others = self.models.iter().enumerate().filter(|(at, _)| *at != except);
        others.into_iter().any(|(_, one)| match one.state {
            State::Loaded => !one.is_pinned,
            State::Closing | State::Unloading => true,
            State::Unloaded | State::Loading => false,
        })
    }

    /// A request has ended. A model to unload now, if there is one.
    pub(super) fn release(&mut self, model: usize, now: Instant) -> Option<usize> {
        let released = &mut self.models[model];
        (released.users, released.used_at) = (released.users - 1, now);
        if released.users > 0 || released.state != State::Closing {
            return None;
        }
        released.state = State::Unloading;
        Some(model)
    }

    /// Begins to unload a model at the operator's request; `None` where it is in use, and is unloaded after that, or not loaded.
    pub(super) fn close(&mut self, model: usize) -> Option<usize> {
        let closed = &mut self.models[model];
        if closed.state != State::Loaded {
            return None;
        }
        closed.state = if closed.users == 0 { State::Unloading } else { State::Closing };
        (closed.state == State::Unloading).then_some(model)
    }

    /// Begins to unload the models that had no request for `after`.
    pub(super) fn unload_idle(&mut self, after: Duration, now: Instant) -> Vec<usize> {
        let mut idle = Vec::new();
        for (at, one) in self.models.iter_mut().enumerate() {
            let is_idle = one.users == 0 && now.saturating_duration_since(one.used_at) >= after;
            if one.state == State::Loaded && !one.is_pinned && is_idle {
                one.state = State::Unloading;
                idle.push(at);
            }
        }
        idle
    }

    pub(super) fn loaded(&mut self, model: usize, now: Instant) {
        let loaded = &mut self.models[model];
        (loaded.state, loaded.used_at, loaded.failure) = (State::Loaded, now, None);
        loaded.attempts += 1;
    }

    pub(super) fn failed(&mut self, model: usize, why: String) {
        let failed = &mut self.models[model];
        (failed.state, failed.failure) = (State::Unloaded, Some(why));
        failed.attempts += 1;
    }

    pub(super) fn unloaded(&mut self, model: usize) {
        self.models[model].state = State::Unloaded;
    }

    pub(super) fn state(&self, model: usize) -> State {
        self.models[model].state
    }

    pub(super) fn attempts(&self, model: usize) -> u64 {
        self.models[model].attempts
    }

    /// Why the model could not be loaded in an attempt after the first `attempts`.
    pub(super) fn failure_since(&self, model: usize, attempts: u64) -> Option<&str> {
        let model = &self.models[model];
        model.failure.as_deref().filter(|_| model.attempts > attempts)
    }

    /// Whether nothing is loaded, nor on its way to or from memory.
    pub(super) fn is_empty(&self) -> bool {
        self.places_taken() == 0
    }

    fn places_taken(&self) -> usize {
        self.models.iter().filter(|one| one.state != State::Unloaded).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Moments, in seconds after the beginning.
    struct Clock(Instant);

    impl Clock {
        fn at(&self, seconds: u64) -> Instant {
            self.0 + Duration::from_secs(seconds)
        }
    }

    fn residency(pinned: &[bool], max_loaded: usize) -> (Residency, Clock) {
        let now = Instant::now();
        (Residency::new(pinned, max_loaded, now), Clock(now))
    }

    /// Loads a model, and ends the request for it.
    fn load(residency: &mut Residency, model: usize, now: Instant) {
        assert_eq!(residency.next(model, now), Next::Load);
        assert_eq!(residency.next(model, now), Next::Wait);
        residency.loaded(model, now);
        assert_eq!(residency.next(model, now), Next::Use);
        assert_eq!(residency.release(model, now), None);
    }

    #[test]
    fn the_least_recently_used_model_makes_place() {
        let (mut models, clock) = residency(&[false; 4], 2);
        load(&mut models, 0, clock.at(1));
        load(&mut models, 1, clock.at(2));
        assert_eq!(models.next(0, clock.at(3)), Next::Use);
        models.release(0, clock.at(4));
        assert_eq!(models.next(2, clock.at(5)), Next::Unload(1));
        assert_eq!(models.next(2, clock.at(5)), Next::Wait, "its place is not free yet");
        assert_eq!(models.next(1, clock.at(5)), Next::Wait);
        models.unloaded(1);
        assert_eq!(models.next(2, clock.at(6)), Next::Load);
    }

    #[test]
    fn a_pinned_model_stays() {
        let (mut models, clock) = residency(&[true, false, false], 2);
        load(&mut models, 0, clock.at(1));
        load(&mut models, 1, clock.at(2));
        assert!(models.unload_idle(Duration::from_secs(1), clock.at(1)).is_empty());
        assert_eq!(models.next(2, clock.at(3)), Next::Unload(1));
        models.unloaded(1);
        assert!(models.unload_idle(Duration::from_secs(1), clock.at(60)).is_empty());
        assert!(!models.has_others(2));
    }

    /// A request that waits is served, however many requests come for a model that is loaded.
    #[test]
    fn a_model_in_use_is_closed_for_one_that_waits() {
        let (mut models, clock) = residency(&[false; 2], 1);
        load(&mut models, 0, clock.at(1));
        assert_eq!(models.next(0, clock.at(2)), Next::Use);
        assert_eq!(models.next(0, clock.at(2)), Next::Use);
        assert_eq!(models.next(1, clock.at(3)), Next::Wait);
        assert_eq!(models.next(0, clock.at(4)), Next::Wait, "it takes no further requests");
        assert_eq!(models.release(0, clock.at(5)), None);
        assert_eq!(models.release(0, clock.at(6)), Some(0));
        models.unloaded(0);
        assert_eq!(models.next(1, clock.at(7)), Next::Load);
        assert_eq!(models.next(0, clock.at(7)), Next::Wait);
    }

    #[test]
    fn an_idle_model_is_unloaded_after_its_time() {
        let (mut models, clock) = residency(&[false; 2], 2);
        load(&mut models, 0, clock.at(1));
        load(&mut models, 1, clock.at(5));
        assert_eq!(models.next(1, clock.at(5)), Next::Use);
        let after = Duration::from_secs(10);
        assert!(models.unload_idle(after, clock.at(10)).is_empty());
        assert_eq!(models.unload_idle(after, clock.at(11)), [0]);
        assert!(models.unload_idle(after, clock.at(99)).is_empty(), "the other one is in use");
        models.unloaded(0);
        assert_eq!(models.close(1), None);
        assert_eq!(models.release(1, clock.at(100)), Some(1));
        models.unloaded(1);
        assert!(models.is_empty());
    }

    #[test]
    fn a_failure_is_returned_to_those_who_waited_for_it() {
        let (mut models, clock) = residency(&[false], 1);
        assert_eq!(models.next(0, clock.at(1)), Next::Load);
        let before = models.attempts(0);
        assert_eq!(models.failure_since(0, before), None);
        models.failed(0, "no such file".into());
        assert_eq!(models.failure_since(0, before), Some("no such file"));
        // A later request tries again.
        assert_eq!(models.failure_since(0, models.attempts(0)), None);
        assert_eq!(models.next(0, clock.at(2)), Next::Load);
    }
}
