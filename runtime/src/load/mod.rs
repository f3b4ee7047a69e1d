//! The order of loading, upload paths and their measurement, readers, streaming while loading, verification.

pub mod checksum;
pub mod delivery;
pub mod order;
pub mod page_cache;
pub mod reader;
pub mod resident;
pub mod streaming;
pub mod upload_path;
pub mod weights;
