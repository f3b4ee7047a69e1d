//! Weight bytes from the artifact to the device, unchanged: over which path, in which order, and whether all of them are resident.
//!
//! In: an open artifact, a device, the tier of each weight slice. Out: filled buffers and an [`crate::UploadReport`].
//! Not known here: what a tensor is, what kernels do with the weights, sequences.
//!
//! ```text
//! ArtifactFile ─► UploadPaths (chosen, measured) ─► Slices (allocated) ─► WeightUpload ─┬─ fill    chunks in LoadOrder
//!                                                                                       ├─ verify  hashes on the device
//!                                                     StreamingLoad: on another thread  └─ audit   against driver, kernel
//! ```
//!
//! Read in this order:
//!
//! - `artifact`: the open artifact file
//! - `order`: chunks of the slices, and the order in which they are loaded
//! - `upload_path`: the four paths of bytes to the device
//! - `slices`: weight slices with their buffers
//! - `page_cache`, `reader`: reads on all cores that leave nothing in the page cache
//! - `fill`: fills the slices' buffers chunk by chunk
//! - `path_choice`: tries and measures upload paths
//! - `verify`: hashes on the device
//! - `upload`: all of it for one model, and the report
//! - `streaming`: the same on another thread, while steps run

pub mod artifact;
pub mod fill;
pub mod order;
pub mod page_cache;
pub mod path_choice;
pub mod reader;
pub mod slices;
pub mod streaming;
pub mod upload;
pub mod upload_path;
pub mod verify;
