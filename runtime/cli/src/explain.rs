//! Adds remedies to the runtime's errors: options and commands that help, and the limit on address space
//! (`ulimit -v`) where it may be the cause, because drivers need a lot of address space and their errors do not name it.

use std::io;

use unicorn_artifact::ParseError;
use unicorn_artifact::account::size;
use unicorn_artifact::amount::typed;
use unicorn_compiler::{CompileError, Remedy};
use unicorn_registry::RegistryError;
use unicorn_runtime::crash;
use unicorn_runtime::machine::address_space_bytes;
use unicorn_runtime::npu::NpuError;
use unicorn_runtime::{LoadError, Replan, RunError};
use unicorn_serve::LeftOut;
use unicorn_terminal::quoted;

/// From now on, under a limit on address space, a crash prints a line that names the limit, and the program ends with status 1.
pub fn crashes() {
    if let Some(limit) = address_space_bytes() {
        crash::exit_on_crash(format!(
            "error: address space is limited to {} (ulimit -v), and the program or a driver crashed, most likely because \
             that is too little; expected a higher limit, or none\n",
            size(limit)
        ));
    }
}

/// The message of `error`, with the limit where it may be the cause.
pub fn load_error(error: &LoadError) -> String {
    with_limit(error.to_string(), lacks_memory(error)) + &commands(error)
}

/// What to type next after a load that failed.
fn commands(error: &LoadError) -> String {
    match error {
        LoadError::InsufficientMemory(report) => {
            let mut commands = String::new();
            if report.fitting_context_tokens > 0 {
                commands += &format!("\n  a shorter context: --ctx {}", report.fitting_context_tokens);
            }
            if let Some(Replan { tier_bytes, context_tokens }) = &report.replan {
                let tiers = tier_bytes.iter().map(|(tier, bytes)| format!("{}={}", tier.name(), typed(*bytes)));
                let tiers = tiers.collect::<Vec<_>>().join(",");
                let artifact = quoted(&report.artifact.display().to_string());
                commands += &format!(
                    "\n  a new plan: unicorn-run replan {artifact} --budget {tiers} --context {context_tokens}"
                );
            }
            commands
        }
        LoadError::NoDevice { found, .. } => found.first().map_or(String::new(), |device| {
            // As a device is described: `0: its name`.
            let number = device.split(':').next().unwrap_or_default();
            format!("; select one by its number, such as --device {number}, by part of its name, or with the variable UNICORN_DEVICE")
        }),
        LoadError::Artifact { source: ParseError::Cut { .. } | ParseError::Hash { .. }, .. } => {
            "; copy, pull or compile the artifact again".into()
        }
        LoadError::NoThread { .. } => ": leave out --lazy".into(),
        LoadError::Loading { source } => commands(source),
        LoadError::Npu { source } => npu_remedy(source),
        LoadError::NotResident { .. } => ": unicorn-run replan ARTIFACT --budget vram=SIZE,gtt=SIZE".into(),
        _ => String::new(),
    }
}

/// The message of `error`, with the options of `replan` that help.
pub fn compile_error(error: &CompileError) -> String {
    match error {
        CompileError::Option { option, what } => match *option {
            "context_tokens" => format!("{what} (--context)"),
            "machine" => format!("{what} (--machine)"),
            "budget" => format!("{what} (--budget)"),
            _ => what.clone(),
        },
        CompileError::DoesNotFit { what, remedies } => {
            let option = |remedy: &Remedy| match remedy {
                Remedy::Context(tokens) => Some(format!("--context {tokens}")),
                Remedy::Memory { tier, bytes } => Some(format!("--budget {}={}", tier.name(), typed(*bytes))),
                Remedy::NoNpu => Some("--no-npu".into()),
                // Other errors need another compile.
                _ => None,
            };
            let options: Vec<String> = remedies.iter().filter_map(option).collect();
            let hint = if options.is_empty() { String::new() } else { format!("\n  try {}", options.join(" or ")) };
            what.clone() + &hint
        }
        other => other.to_string(),
    }
}

/// The message of `error`, with the option or command that helps.
pub fn registry_error(error: &RegistryError) -> String {
    let next = match error {
        RegistryError::Target { .. } => "; fetch others by name, or --target all",
        RegistryError::NotStored(_) => "; unicorn-run list shows what is",
        RegistryError::NoTls { .. } => ": --plain-http",
        _ => "",
    };
    format!("{error}{next}")
}

/// The end of the error for a request of a part that the server was started without.
pub fn how_to_enable(part: LeftOut) -> &'static str {
    match part {
        LeftOut::Embeddings => "; start it with --embeddings",
        LeftOut::Pooling => "; start it without --pooling none",
        LeftOut::Reranking => "; start it with --reranking",
        LeftOut::Metrics => "; start it with --metrics",
        LeftOut::Slots => "; start it without --no-slots",
        _ => "",
    }
}

fn npu_remedy(error: &NpuError) -> String {
    let control = match error {
        NpuError::NoCorePrograms { .. } => {
            "\n  where Peano (llvm-aie) is installed, a folder with bin/clang++, have it compile them: \
             unicorn-compile replan ARTIFACT --npu-peano DIR"
        }
        NpuError::NoXrt { .. } => {
            "\n  --npu-driver xrt:FILE names the library; without --npu-driver, the kernel's driver is used, which needs no XRT"
        }
        _ => "",
    };
    format!("{control}{NPU_REMEDY}")
}

/// How to run without the NPU.
const NPU_REMEDY: &str = "\n  try --npu-optional, with which the GPU does its work, or a plan without it: unicorn-compile replan ARTIFACT --no-npu";

/// The same for an error of a step.
pub fn run_error(error: &RunError) -> String {
    match error {
        RunError::Npu { source } => error.to_string() + &npu_remedy(source),
        RunError::Loading { source } => load_error(source),
        RunError::NotRecovered { source, .. } => {
            with_limit(error.to_string(), lacks_memory(source)) + &commands(source)
        }
        RunError::OutOfMemory { .. } | RunError::Vulkan { .. } => with_limit(error.to_string(), true),
        _ => error.to_string(),
    }
}

/// Whether too little memory may be the cause. A driver that cannot be loaded for lack of memory is missing.
fn lacks_memory(error: &LoadError) -> bool {
    match error {
        LoadError::File { source, .. } => source.kind() == io::ErrorKind::OutOfMemory,
        LoadError::NoDevice { found, .. } => found.is_empty(),
        LoadError::Pipeline { source, .. } => lacks_memory(source),
        LoadError::Loading { source } => lacks_memory(source),
        LoadError::NoLoader { .. }
        | LoadError::NoDriver
        | LoadError::OutOfMemory { .. }
        | LoadError::Modules { .. }
        | LoadError::Residency { .. }
        | LoadError::NoThread { .. }
        | LoadError::Vulkan { .. } => true,
        _ => false,
    }
}

fn with_limit(error: String, lacks_memory: bool) -> String {
    match address_space_bytes().filter(|_| lacks_memory) {
        Some(limit) => format!("{error}; address space of this process is limited to {} (ulimit -v)", size(limit)),
        None => error,
    }
}
