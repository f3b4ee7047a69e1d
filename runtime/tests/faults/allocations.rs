//! While requests are served, nothing is allocated on the device: a driver takes up to a millisecond for that, in which all sequences wait.

use std::cell::RefCell;
use std::ops::ControlFlow;
use std::rc::Rc;

use unicorn_runtime::made_calls;
use unicorn_runtime::scheduler::{End, Request, Scheduler, TokenReceiver};

use super::*;

/// Takes three tokens, and notes how many of its prompt's were in the cache.
struct Short {
    n_tokens: usize,
    cached: Rc<RefCell<Vec<u32>>>,
}

impl TokenReceiver for Short {
    fn begin(&mut self, cached_tokens: u32) {
        self.cached.borrow_mut().push(cached_tokens);
    }

    fn token(&mut self, _token: u32) -> ControlFlow<()> {
        self.n_tokens += 1;
        if self.n_tokens == 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    fn is_closed(&self) -> bool {
        false
    }

    fn end(&mut self, why: End<'_>) {
        panic!("{why:?}");
    }
}

#[test]
fn prompts_that_begin_alike_are_served_without_an_allocation() {
    let (_lock, options, _folder, path) = toy();
    let model = Model::load(&path, &multistep(options).with(|options| options.slots = 3)).unwrap();
    let mut scheduler: Scheduler<Short> = model.scheduler().unwrap();
    let cached = Rc::new(RefCell::default());
    inject(None);
    for own in 0..3 {
        let prompt = [prompt(8), vec![own; 5]].concat();
        let receiver = Short { n_tokens: 0, cached: Rc::clone(&cached) };
        scheduler.submit(Request { prompt, sampling: Sampling::default(), priority: 0, receiver });
        scheduler.tick(&mut |_| ControlFlow::Continue(()));
    }
    while !scheduler.is_idle() {
        scheduler.tick(&mut |_| ControlFlow::Continue(()));
    }
    assert_eq!(*cached.borrow(), [0, 8, 8]);
    let calls = made_calls();
    assert!(calls.contains(&"vkQueueSubmit"));
    let allocated: Vec<_> = calls.iter().filter(|call| call.contains("Create") || call.contains("Allocate")).collect();
    assert!(allocated.is_empty(), "{allocated:?}");
}
