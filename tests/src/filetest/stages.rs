//! The text of each stage.

use std::fmt::Write;

use unicorn_artifact::{ArtifactView, Order};
use unicorn_compiler::Form;
use unicorn_compiler::import::{self, ModelConfig};
use unicorn_compiler::{fuse, graph};

use super::settings::{ModelSettings, Settings};
use super::{kernel, program};
use crate::compiled::{Compiled, options};

/// The text of a stage, or why there is none.
pub fn run(settings: &Settings) -> Result<String, String> {
    match settings {
        Settings::Graph(model) => Ok(graph::build(&config(model)?).to_string()),
        Settings::Fuse(model) => {
            let config = config(model)?;
            let fuse = if model.fuse() { fuse::fuse } else { fuse::plain };
            let fused = fuse(&graph::build(&config), &config, model.policy()?);
            Ok(fused.verify(&config).graph().to_string())
        }
        Settings::Plan(model) => Ok(compiled(model)?.text("plan")),
        Settings::Dispatches(model) => Ok(dispatches(&compiled(model)?.artifact(), model.sequences())),
        Settings::Spirv(settings) => kernel::describe(settings),
        Settings::Mlir(settings) => program::text(settings),
    }
}

/// What the importer makes of the model.
fn config(settings: &ModelSettings) -> Result<ModelConfig, String> {
    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    settings.model()?.write(folder.path());
    Ok(import::open_model(folder.path()).map_err(|error| error.to_string())?.config)
}

fn compiled(settings: &ModelSettings) -> Result<Compiled, String> {
    let mut options = options(vec![settings.target()?], vec![Form::Plan]);
    options.policy = settings.policy()?;
    options.fuse = settings.fuse();
    Ok(Compiled::of(&settings.model()?, &options))
}

/// One line a dispatch of the program that decodes a token of each sequence; `|` after a barrier, `>` where it waits by
/// a counter for the one before.
fn dispatches(artifact: &[u8], sequences: u32) -> String {
    let view = ArtifactView::parse(artifact).expect("the artifact was just written");
    let target = &view.kernels.targets[0];
    let decode = target.programs.iter().find(|program| program.batch && program.rows == sequences);
    let mut text = String::new();
    for dispatch in &decode.expect("sequences are a power of two, 64 at most").dispatches {
        let order = match dispatch.order {
            Order::Free => ' ',
            Order::Barrier => '|',
            Order::CounterSync => '>',
        };
        let [x, y, z] = dispatch.workgroups;
        let (label, bytes) = (&dispatch.label, dispatch.weight_bytes);
        let kernel = &target.pipelines[dispatch.pipeline as usize].name;
        writeln!(text, "{order} {label}: {kernel}, {x}×{y}×{z} workgroups, {bytes} weight bytes")
            .expect("writing to a String");
    }
    text
}
