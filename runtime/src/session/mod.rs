//! One sequence, its journal and its recovery; its tokens as an iterator; the scheduler of many. From the top down, each uses those behind it
//! only: `scheduler` → `mixed` → `batch` → `model_drafter` → `saved_state` → `session` → `tokens` → `stream` → `speculation` → `recovery` →
//! `model_state` → `sequence` → `kv_store` → `kv_payload` → `journal` → `fair_lock`, and below them `step`.

pub mod batch;
pub mod fair_lock;
pub mod journal;
pub mod kv_payload;
pub mod kv_store;
pub mod mixed;
pub mod model_drafter;
pub mod model_state;
pub mod recovery;
pub mod saved_state;
pub mod scheduler;
pub mod sequence;
#[expect(clippy::module_inception, reason = "the folder is about sessions, and this is the session")]
pub mod session;
pub mod speculation;
pub mod stream;
pub mod tokens;
