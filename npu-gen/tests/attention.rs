//! Attention's pipelines run by the interpreter, from their encoded instructions, against attention from its definition.

mod support;

use support::attention::{AttentionCase, ROUNDING, small_attention};
use unicorn_npu::attention::{AttentionProblem, design, solve};
use unicorn_npu::emit::{Dialect, SOFTMAX, module, readable};
use unicorn_npu::interpret::commands;
use unicorn_npu::lower::lower;
use unicorn_npu::{legal, stream};

#[test]
fn pipelines_of_every_width_compute_attention() {
    for columns in 1..=4 {
        let case = AttentionCase::of(small_attention(columns));
        let design = design(&case.shape);
        let lowered = lower(&design);
        legal::check(&design, &lowered).unwrap_or_else(|faults| panic!("{columns} columns: {faults:?}"));
        let encoded = stream::decode(&stream::encode(&design, &lowered)).unwrap();
        let from_bytes = stream::commands(&encoded, &lowered).unwrap();
        assert_eq!(from_bytes, commands(&design, &lowered));
        let outputs = case.outputs(&design, &lowered, &from_bytes).unwrap();
        let error = case.compare(&outputs).largest;
        assert!(error <= ROUNDING, "{columns} columns: {error}");
    }
}

/// Heads of all usual sizes and numbers of rows and keys that fit badly: each has a design, which computes one tile of rows of each head right.
#[test]
fn odd_sizes_have_a_design_that_computes_attention() {
    for (heads, rows, keys, depth, columns) in [
        (1, 1, 1, 8, 1),
        (3, 5, 33, 40, 2),
        (5, 70, 100, 64, 3),
        (8, 130, 257, 80, 4),
        (2, 64, 96, 96, 4),
        (8, 24, 200, 128, 4),
        (1, 90, 77, 192, 1),
        (4, 33, 130, 256, 4),
        (2, 9, 40, 36, 2),
        (1, 11, 50, 512, 1),
    ] {
        let problem = AttentionProblem { heads, rows, keys, depth, columns };
        let solution = solve(&problem).unwrap_or_else(|fault| panic!("{problem:?}: {fault}"));
        assert!(solution.busy > 0.0 && solution.busy <= 1.0, "{problem:?}: {}", solution.busy);
        let case = AttentionCase::of(solution.shape);
        let commands = commands(&solution.design, &solution.lowered);
        let outputs = case.outputs(&solution.design, &solution.lowered, &commands).unwrap();
        let error = case.compare(&outputs).largest;
        assert!(error <= ROUNDING, "{problem:?}, {:?}: {error}", solution.shape);
    }
}

#[test]
fn attention_that_fits_no_size_is_refused_with_what_it_exceeds() {
    let problem = AttentionProblem { heads: 8, rows: 2048, keys: 4096, depth: 128, columns: 4 };
    for (changed, part) in [
        // A tile of 8 rows of sums alone has 64 KiB.
        (AttentionProblem { depth: 2048, ..problem }, "bytes of memory, expected at most 65536"),
        // 4 GiB of keys and values.
        (AttentionProblem { keys: 1 << 20, ..problem }, "of keys_and_values, expected at most 4294967295"),
    ] {
        let fault = solve(&changed).err().unwrap_or_else(|| panic!("{changed:?} has a design"));
        assert!(fault.to_string().contains(part), "{changed:?}: {fault}");
    }
    // The longest that fits.
    let longest = AttentionProblem { keys: (1 << 20) - 1024, ..problem };
    let solution = solve(&longest).unwrap_or_else(|fault| panic!("{fault}"));
    assert!(solution.design.arguments.iter().all(|one| one.len * one.element.bytes() < 1 << 32));
    let encoded = stream::decode(&stream::encode(&solution.design, &solution.lowered)).unwrap();
    assert_eq!(stream::commands(&encoded, &solution.lowered).unwrap(), commands(&solution.design, &solution.lowered));
}

#[test]
fn each_dialect_has_its_pipelines() {
    let design = design(&small_attention(2));
    for dialect in Dialect::ALL {
        let text = readable(&module(&design, dialect));
        assert_eq!(text.matches("aie.core(").count(), 6, "{text}");
        for line in [
            "aie.objectfifo @q_1(%tile_1_0, {%tile_1_2}, 1 : i32) : !aie.objectfifo<memref<320xi8>>",
            "aie.objectfifo @s_0(%tile_0_2, {%tile_0_3}, 2 : i32) {via_DMA = true} : !aie.objectfifo<memref<576xi8>>",
            "aie.objectfifo @p_1(%tile_1_3, {%tile_1_4}, 2 : i32) {via_DMA = true} : !aie.objectfifo<memref<512xi8>>",
            "aie.objectfifo @out_0(%tile_0_4, {%tile_0_0}, 2 : i32) : !aie.objectfifo<memref<64xbf16>>",
            "aie.objectfifo.link [@kv_in_0] -> [@k_0, @v_0]",
        ] {
            assert!(text.contains(line), "{line} is not in:\n{text}");
        }
        let calls = text.lines().filter(|line| line.trim().starts_with(&format!("func.call @{SOFTMAX}("))).count();
        assert_eq!(calls, 2, "{text}");
        // Where only some cores call it, only they are linked with it; in 2026 the declaration says so.
        let linked = text.matches("link_with").count();
        assert_eq!(linked, if dialect == Dialect::Y2024 { 2 } else { 1 }, "{text}");
        #[cfg(feature = "mlir")]
        unicorn_npu::emit::generic_text(&module(&design, dialect)).unwrap();
    }
}
