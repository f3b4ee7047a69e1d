//! NPU programs of a model as MLIR: one for each shape of its matrix products and of its attention in a step.

use std::collections::BTreeMap;
use std::fmt::Display;

use unicorn_artifact::hash::hash;
use unicorn_artifact::npu::xclbin::{Program, xclbin};
use unicorn_npu::emit::{Dialect, generic_text, module, readable};
use unicorn_npu::lower::Lowered;
use unicorn_npu::stream::encode;
use unicorn_npu::{Design, Problem};

use super::attention::attention;
use super::control::control_part;
use super::named;
use super::options::{NpuMlir, NpuOptions, NpuTexts};
use super::products::{products, solution};
use crate::Planned;
use crate::error::{CompileError, Result};

/// The programs of all products and of the attention of `planned`, in the order of their shapes, in mlir-aie's dialects of `dialect`: 2024 or 2026.
///
/// # Errors
/// [`CompileError::Option`] for options that no program can be made with.
pub fn npu_mlir(planned: &Planned, options: &NpuOptions, dialect: &str) -> Result<NpuTexts> {
    options.check()?;
    let Some(dialect) = Dialect::ALL.into_iter().find(|one| one.name() == dialect) else {
        let what = format!("dialect of mlir-aie is {dialect}, expected 2024 or 2026");
        return Err(CompileError::Option { option: "npu_dialect", what });
    };
    let graph = planned.verified.graph();
    let mut uses: BTreeMap<Problem, Vec<&str>> = BTreeMap::new();
    for product in products(graph, options) {
        uses.entry(product.problem).or_default().push(&graph.matrices[product.matrix.0].name);
    }
    let mut texts = NpuTexts::default();
    for (problem, uses) in uses {
        let (name, uses) = (super::program_name(&problem), named(&uses));
        match solution(&problem) {
            Ok(found) => texts.programs.push(text(name, &uses, &found, (&found.design, &found.lowered), dialect)),
            Err(why) => texts.without.push(format!("{uses}: {why}")),
        }
    }
    let context_tokens = planned.plan().planned_context_tokens as usize;
    match attention(&planned.checkpoint.config, options, context_tokens) {
        Ok(shapes) => {
            for (problem, layers) in shapes {
                let layers: Vec<String> = layers.iter().map(|layer| format!("attention of layer {layer}")).collect();
                let (name, uses) = (super::attention::name(&problem), named(&layers));
                match unicorn_npu::attention::solve(&problem) {
                    Ok(found) => {
                        texts.programs.push(text(name, &uses, &found, (&found.design, &found.lowered), dialect));
                    }
                    Err(fault) => texts.without.push(format!("{uses}: {name} fits no NPU program, {fault}")),
                }
            }
        }
        Err(why) => texts.without.push(format!("attention: {why}, which NPU programs do not compute")),
    }
    Ok(texts)
}

fn text(
    name: String,
    uses: &str,
    explanation: &dyn Display,
    (design, lowered): (&Design, &Lowered),
    dialect: Dialect,
) -> NpuMlir {
    let operations = module(design, dialect);
    NpuMlir {
        name,
        explanation: format!("{explanation}\n  computes           {uses}"),
        readable: readable(&operations),
        generic: generic_text(&operations).expect("MLIR takes what this project makes"),
        instructions: encode(design, lowered),
        control: control_files(design, lowered),
    }
}

/// Commands, device image and XCLBIN; their identity is a hash of the image.
fn control_files(design: &Design, lowered: &Lowered) -> Vec<(String, Vec<u8>)> {
    let control = control_part(design, lowered);
    let image = control.image();
    let identity = *hash(&image).first_chunk().expect("a hash has 32 bytes");
    let arguments: Vec<&str> = design.arguments.iter().map(|argument| argument.name).collect();
    let program = Program { columns: design.columns, arguments: &arguments, image: &image, identity };
    let container = xclbin(&program);
    let mut files: Vec<(String, Vec<u8>)> =
        control.files().into_iter().map(|(name, bytes)| (format!("{name}.cdo"), bytes)).collect();
    files.extend([("pdi".to_owned(), image), ("xclbin".to_owned(), container)]);
    files
}
