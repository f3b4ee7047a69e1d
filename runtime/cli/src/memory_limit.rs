//! What a person is told where this process may have only so much address space (`ulimit -v`): drivers need more of it than
//! one would think, and what they say when there is none left does not name it.

use std::io;

use unicorn_artifact::limits;

use unicorn_artifact::account::size;
use unicorn_runtime::crash;
use unicorn_runtime::{LoadError, RunError};

/// Under a limit a crash is explained in a line, and ends the program with status 1.
pub fn explain_crashes() {
    if let Some(limit) = limits::address_space_bytes() {
        crash::end_with(format!(
            "error: address space is limited to {} (ulimit -v), and the program or a driver crashed, most likely for want of \
             more; expected a higher limit, or none\n",
            size(limit)
        ));
    }
}

/// `error`, and the limit where it may be the reason.
pub fn explain_load(error: &LoadError) -> String {
    explain(error.to_string(), lacks_memory(error))
}

/// The same of a step.
pub fn explain_run(error: &RunError) -> String {
    let lacks = match error {
        RunError::OutOfMemory { .. } | RunError::Vulkan { .. } => true,
        RunError::Loading { source } => lacks_memory(source),
        RunError::NotRecovered { source, .. } => lacks_memory(source),
        _ => false,
    };
    explain(error.to_string(), lacks)
}

/// Whether too little memory is one of the things that end so. A driver that has no room to be loaded is not there.
fn lacks_memory(error: &LoadError) -> bool {
    match error {
        LoadError::File { source, .. } => source.kind() == io::ErrorKind::OutOfMemory,
        LoadError::NoDevice { found, .. } => found.is_empty(),
        LoadError::Pipeline { source, .. } => lacks_memory(source),
        LoadError::Loading { source } => lacks_memory(source),
        LoadError::NoLoader { .. }
        | LoadError::NoDriver
        | LoadError::OutOfMemory { .. }
        | LoadError::Residency { .. }
        | LoadError::NoThread { .. }
        | LoadError::Vulkan { .. } => true,
        _ => false,
    }
}

fn explain(error: String, lacks_memory: bool) -> String {
    match limits::address_space_bytes().filter(|_| lacks_memory) {
        Some(limit) => format!("{error}; address space of this process is limited to {} (ulimit -v)", size(limit)),
        None => error,
    }
}
