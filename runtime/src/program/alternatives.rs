//! Alternatives that the device cannot run, removed before any is counted: a target states what all of its own kernels need, and
//! each module's record states what that module needs in addition.

use unicorn_artifact::{Kernels, MatrixElement, MatrixShape, ModuleNeeds, Pipeline};

use crate::device::facts::DeviceFeatures;

/// Keeps the alternatives whose needs the device meets.
pub fn keep_runnable(kernels: &mut Kernels, features: &DeviceFeatures) {
    for target in &mut kernels.targets {
        let records = &target.modules.records;
        let runs = |module: u32| meets(features, &records[module as usize].needs);
        let runnable =
            |pipeline: &Pipeline| pipeline.alternatives.iter().map(|other| runs(other.module)).collect::<Vec<bool>>();
        let kept: Vec<Vec<bool>> = target.pipelines.iter().map(runnable).collect();
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

/// Whether the device has every feature that a module needs. Sizes (subgroup, workgroup) are the target's and were compared when it
/// was chosen.
pub fn meets(features: &DeviceFeatures, needs: &ModuleNeeds) -> bool {
    let pairs = [
        (needs.float16, features.float16),
        (needs.int8, features.int8),
        (needs.int16, features.int16),
        (needs.int64, features.int64),
        (needs.int64_atomics, features.int64_atomics),
        (needs.integer_dot_product, features.integer_dot_product),
        (needs.memory_model, features.memory_model),
    ];
    let multiplies = |shape: &MatrixShape| features.cooperative_matrix.contains(&matrix_name(shape));
    pairs.iter().all(|(needed, there)| *there || !needed) && needs.matrices.iter().all(multiplies)
}

/// A product of matrices as [`DeviceFeatures::cooperative_matrix`] names it.
fn matrix_name(shape: &MatrixShape) -> String {
    let name = |element| match element {
        MatrixElement::F16 => "f16",
        MatrixElement::F32 => "f32",
        MatrixElement::I8 => "i8",
        MatrixElement::I32 => "i32",
    };
    let MatrixShape { rows, columns, depth, operands, sums } = *shape;
    format!("{rows}x{columns}x{depth} {} -> {}", name(operands), name(sums))
}

#[cfg(test)]
mod tests {
    use unicorn_artifact::{
        Alternative, Dispatch, LogitsRows, ModuleRecord, ModuleSet, Order, Program, TargetKernels, TargetMatch,
    };

    use super::*;

    /// Needs of a module that multiplies int8 matrices of 16 rows.
    fn on_int8_matrices(depth: u32) -> ModuleNeeds {
        let (operands, sums) = (MatrixElement::I8, MatrixElement::I32);
        let matrices = vec![MatrixShape { rows: 16, columns: 16, depth, operands, sums }];
        ModuleNeeds { int8: true, memory_model: true, matrices, ..ModuleNeeds::default() }
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
            images: false,
            from_tokens: 0,
            dispatches: vec![dispatch],
        };
        let needs = [ModuleNeeds::default(), on_int8_matrices(16), on_int8_matrices(32)];
        let records = needs.map(|needs| ModuleRecord { words: 5, needs, ..ModuleRecord::default() });
        let target = TargetKernels {
            name: "one".into(),
            matches: TargetMatch::default(),
            modules: ModuleSet { records: records.into(), frames: Vec::new() },
            pipelines: vec![pipeline],
            programs: vec![program],
            checksum: None,
            bandwidth_probe: None,
            fragments: None,
        };
        let mut kernels = Kernels { targets: vec![target] };
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
    fn every_feature_that_is_needed_has_to_be_there() {
        let needs = ModuleNeeds { float16: true, int64: true, ..ModuleNeeds::default() };
        let with = |float16, int64| DeviceFeatures { float16, int64, ..DeviceFeatures::default() };
        assert!(meets(&with(true, true), &needs));
        assert!(!meets(&with(true, false), &needs) && !meets(&with(false, true), &needs));
        assert!(meets(&with(false, false), &ModuleNeeds::default()));
    }
}
