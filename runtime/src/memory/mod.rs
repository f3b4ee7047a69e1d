//! Tiers, budgets, buffers, KV pages, and what the driver says is held.

pub mod budget;
pub mod buffers;
pub mod pages;
pub mod residency;
pub mod usage;
