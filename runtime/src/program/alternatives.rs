//! Alternatives that the device cannot run, taken out before anybody counts them: a target says what all of its own kernels
//! need, and an alternative on matrices of int8 says the rest by its words.

use std::collections::BTreeMap;

use unicorn_artifact::Kernels;

use crate::device::facts::DeviceFeatures;

/// Keeps the alternatives whose matrices the device multiplies.
pub fn keep_runnable(kernels: &mut Kernels, features: &DeviceFeatures) {
    let runs = |module: u32| {
        let matrices = int8_matrices(&kernels.modules[module as usize]);
        matrices.is_none_or(|(rows, depth)| features.multiplies_int8_matrices(rows, depth))
    };
    for target in &mut kernels.targets {
        let alternatives = |pipeline: &unicorn_artifact::Pipeline| -> Vec<bool> {
            pipeline.alternatives.iter().map(|other| runs(other.module)).collect()
        };
        let kept: Vec<Vec<bool>> = target.pipelines.iter().map(alternatives).collect();
        for (pipeline, kept) in target.pipelines.iter_mut().zip(&kept) {
            keep(&mut pipeline.alternatives, kept);
        }
        for dispatch in target.programs.iter_mut().flat_map(|program| &mut program.dispatches) {
            keep(&mut dispatch.alternatives, &kept[dispatch.pipeline as usize]);
        }
    }
}

fn keep<T>(items: &mut Vec<T>, kept: &[bool]) {
    let mut kept = kept.iter();
    items.retain(|_| *kept.next().expect("alternatives were counted when the artifact was read"));
}

/// Words before the first instruction of a SPIR-V module.
const HEADER_WORDS: usize = 5;
const OP_TYPE_INT: u32 = 21;
const OP_CONSTANT: u32 = 43;
const OP_TYPE_COOPERATIVE_MATRIX: u32 = 4456;
/// The use of a matrix on the left of a product.
const MATRIX_A: u32 = 0;

/// Rows and depth of the int8 matrices that a module multiplies, if it does.
fn int8_matrices(words: &[u32]) -> Option<(u32, u32)> {
    let mut int8 = None;
    let mut constants: BTreeMap<u32, u32> = BTreeMap::new();
    let mut rest = words.get(HEADER_WORDS..)?;
    while let Some(&first) = rest.first() {
        let (len, opcode) = ((first >> 16) as usize, first & 0xffff);
        let operands = rest.get(1..len)?;
        match (opcode, operands) {
            (OP_TYPE_INT, &[id, 8, _]) => int8 = Some(id),
            (OP_CONSTANT, &[_, id, value]) => {
                constants.insert(id, value);
            }
            (OP_TYPE_COOPERATIVE_MATRIX, &[_, element, _, rows, columns, usage])
                if Some(element) == int8 && constants.get(&usage) == Some(&MATRIX_A) =>
            {
                return Some((*constants.get(&rows)?, *constants.get(&columns)?));
            }
            _ => {}
        }
        rest = &rest[len..];
    }
    None
}

#[cfg(test)]
mod tests {
    use unicorn_artifact::{Alternative, Dispatch, LogitsRows, Order, Pipeline, Program, TargetKernels, TargetMatch};

    use super::*;

    /// A module with one matrix: 16 rows, `depth` columns.
    fn on_integers(depth: u32) -> Vec<u32> {
        let instruction = |opcode: u32, operands: &[u32]| {
            let first = (operands.len() as u32 + 1) << 16 | opcode;
            [&[first], operands].concat()
        };
        [
            vec![0; HEADER_WORDS],
            instruction(OP_TYPE_INT, &[1, 32, 0]),
            instruction(OP_TYPE_INT, &[2, 8, 1]),
            instruction(OP_CONSTANT, &[1, 3, 16]),
            instruction(OP_CONSTANT, &[1, 4, depth]),
            instruction(OP_CONSTANT, &[1, 5, MATRIX_A]),
            instruction(OP_TYPE_COOPERATIVE_MATRIX, &[6, 2, 5, 3, 4, 5]),
        ]
        .concat()
    }

    #[test]
    fn an_alternative_stays_where_the_device_has_its_matrices() {
        let alternative = |name: &str, module| Alternative { name: name.into(), module };
        let others = [alternative("halves", 0), alternative("16 deep", 1), alternative("32 deep", 2)];
        let pipeline = Pipeline { name: "gemm".into(), module: 0, bindings: 4, alternatives: others.into() };
        let dispatch = Dispatch {
            pipeline: 0,
            workgroups: [1, 1, 1],
            alternatives: vec![[2, 1, 1], [3, 1, 1], [4, 1, 1]],
            bindings: Vec::new(),
            order: Order::Free,
            label: "gemm".into(),
            weight_bytes: 0,
        };
        let program = Program {
            rows: 64,
            logits: LogitsRows::None,
            samples: false,
            batch: false,
            from_tokens: 0,
            dispatches: vec![dispatch],
        };
        let target = TargetKernels {
            name: "one".into(),
            matches: TargetMatch::default(),
            pipelines: vec![pipeline],
            programs: vec![program],
            checksum: None,
            reads: None,
            fragments: None,
        };
        let mut kernels =
            Kernels { modules: vec![vec![0; HEADER_WORDS], on_integers(16), on_integers(32)], targets: vec![target] };
        let features = DeviceFeatures {
            int8: true,
            memory_model: true,
            cooperative_matrix: vec!["16x16x32 i8 -> i32".into()],
            ..DeviceFeatures::default()
        };
        keep_runnable(&mut kernels, &features);
        let names: Vec<&str> =
            kernels.targets[0].pipelines[0].alternatives.iter().map(|other| other.name.as_str()).collect();
        assert_eq!(names, ["halves", "32 deep"]);
        assert_eq!(kernels.targets[0].programs[0].dispatches[0].alternatives, [[2, 1, 1], [4, 1, 1]]);
    }

    #[test]
    fn words_that_end_too_soon_ask_for_nothing() {
        let words = on_integers(16);
        for len in 0..words.len() {
            assert_eq!(int8_matrices(&words[..len]), None);
        }
        assert_eq!(int8_matrices(&words), Some((16, 16)));
    }
}
