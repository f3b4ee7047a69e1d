//! A lock that is given to its waiters in the order in which they came. `std::sync::Mutex` does not guarantee an order: a thread
//! that unlocks and locks again at once usually gets it back, and two sequences that generate on two threads would not
//! alternate.

use std::ops::{Deref, DerefMut};
use std::sync::{Condvar, Mutex, MutexGuard};

/// Lock in order of arrival. A value whose holder panicked is given to the next holder unchanged.
pub struct FairLock<T> {
    value: Mutex<T>,
    tickets: Mutex<Tickets>,
    served: Condvar,
}

struct Tickets {
    next: u64,
    /// Ticket of the holder, or of the next holder.
    serving: u64,
}

/// Access to the value; dropped, it unlocks.
pub struct FairGuard<'l, T> {
    lock: &'l FairLock<T>,
    /// `Some` until it is dropped.
    value: Option<MutexGuard<'l, T>>,
}

impl<T> FairLock<T> {
    /// An unlocked lock.
    pub fn new(value: T) -> FairLock<T> {
        let tickets = Mutex::new(Tickets { next: 0, serving: 0 });
        FairLock { value: Mutex::new(value), tickets, served: Condvar::new() }
    }

    /// Waits until all earlier callers have unlocked.
    pub fn lock(&self) -> FairGuard<'_, T> {
        let mut tickets = lock(&self.tickets);
        let mine = tickets.next;
        tickets.next += 1;
        let others = |tickets: &mut Tickets| tickets.serving != mine;
        drop(self.served.wait_while(tickets, others).unwrap_or_else(|poisoned| poisoned.into_inner()));
        FairGuard { lock: self, value: Some(lock(&self.value)) }
    }

    /// Whether someone waits for the holder to unlock.
    pub fn is_contended(&self) -> bool {
        let tickets = lock(&self.tickets);
        tickets.next > tickets.serving + 1
    }
}

/// A value that a panic left behind is used unchanged: what these locks guard is valid between any two statements.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl<T> Drop for FairGuard<'_, T> {
    fn drop(&mut self) {
        self.value = None;
        let mut tickets = lock(&self.lock.tickets);
        tickets.serving += 1;
        if tickets.next > tickets.serving {
            self.lock.served.notify_all();
        }
    }
}

impl<T> Deref for FairGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.value.as_ref().expect("some until it is dropped")
    }
}

impl<T> DerefMut for FairGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.value.as_mut().expect("some until it is dropped")
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn threads_that_lock_again_and_again_alternate() {
        const TIMES: usize = 200;
        let order = FairLock::new(Vec::new());
        let first = order.lock();
        thread::scope(|scope| {
            for name in ["one", "two"] {
                let order = &order;
                scope.spawn(move || {
                    for _ in 0..TIMES {
                        let mut guard = order.lock();
                        guard.push(name);
                        // While the other has work left, it waits before this one can come again.
                        let came = |guard: &Vec<&str>| guard.iter().filter(|&&one| one != name).count() == TIMES;
                        while !order.is_contended() && !came(&guard) {
                            thread::yield_now();
                        }
                    }
                });
            }
            while lock(&order.tickets).next < 3 {
                thread::yield_now();
            }
            drop(first);
        });
        let order = order.lock().clone();
        assert!(order.windows(2).all(|pair| pair[0] != pair[1]), "{order:?}");
        assert_eq!(order.len(), 2 * TIMES);
    }

    #[test]
    fn a_holder_that_panics_unlocks() {
        let value = FairLock::new(1);
        thread::scope(|scope| {
            let panics = scope.spawn(|| {
                let mut guard = value.lock();
                *guard = 2;
                panic!("with the lock held");
            });
            assert!(panics.join().is_err());
        });
        assert_eq!(*value.lock(), 2);
    }
}
