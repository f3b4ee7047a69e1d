//! One sequence, its journal and its recovery; the scheduler.

pub mod journal;
pub mod recovery;
pub mod scheduler;
pub mod session;
