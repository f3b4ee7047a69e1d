//! Files that commands read and write.

pub mod corrections_file;
pub mod json_file;
pub mod known_drivers;
pub mod logits_file;
pub mod output_file;
pub mod state_folder;
pub mod tuning_file;
pub mod user_folders;
