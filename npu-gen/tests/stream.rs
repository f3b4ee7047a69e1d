//! Instruction streams: their bytes, what is read from them, and designs that run from them.

mod support;

use support::{Case, small};
use unicorn_kernels::Activation;
use unicorn_kernels::npu::tile::Epilogue;
use unicorn_npu::interpret;
use unicorn_npu::lower::{Lowered, lower};
use unicorn_npu::stream::{Instruction, StreamError, as_of_2026, commands, decode, encode, encode_instructions};
use unicorn_npu::{Problem, gemm, solve};

fn small_case() -> (Case, unicorn_npu::Design, Lowered, Vec<u8>) {
    let case = Case::of(small(2, 32, Epilogue::Scale));
    let design = gemm::design(&case.shape);
    let lowered = lower(&design);
    let bytes = encode(&design, &lowered);
    (case, design, lowered, bytes)
}

#[test]
fn designs_run_from_their_encoded_bytes() {
    let solved = |cols, depth, epilogue| {
        let solution = solve(&Problem { rows: 64, cols, depth, epilogue, columns: 4 }).expect("some size fits");
        solution.estimate.shape
    };
    let shapes = [
        small(1, 32, Epilogue::Scale),
        small(2, 64, Epilogue::ActMul(Activation::Silu)),
        small(3, 96, Epilogue::ActMul(Activation::GeluTanh)),
        small(4, 128, Epilogue::Scale),
        // SmolLM2-135M's q, k and v.
        solved(960, 576, Epilogue::Scale),
    ];
    for shape in shapes {
        let case = Case::of(shape);
        let design = gemm::design(&shape);
        let lowered = lower(&design);
        let bytes = encode(&design, &lowered);
        let commands = commands(&decode(&bytes).unwrap(), &lowered).unwrap();
        assert_eq!(commands, interpret::commands(&design, &lowered), "{shape:?}");
        assert_eq!(case.run(&design, &lowered, &commands), Ok(true), "{shape:?}");
    }
}

/// Descriptors that mlir-aie's own `aie-opt` of 2026-03-13 made of these programs: of three dimensions, a line with an offset, and two dimensions.
#[test]
fn a_stream_of_2026_has_the_words_of_mlir_aie() {
    for (problem, columns, descriptor, words) in [
        (
            (1, 2, Epilogue::ActMul(Activation::Silu)),
            2,
            0x1d000,
            [32, 0, 0, 0x0040_0000, 0x8040_000b, 0x0200_002f, 0, 1 << 25],
        ),
        ((1, 2, Epilogue::ActMul(Activation::Silu)), 2, 0x0201_d040, [192, 0, 0, 0, 1 << 31, 2 << 24, 0, 1 << 25]),
        ((2053, 1021, Epilogue::Scale), 3, 0x1d020, [4576, 0, 0, 599_785_472, 2_155_872_827, 2 << 24, 0, 1 << 25]),
    ] {
        let (depth, cols, epilogue) = problem;
        let solution = solve(&Problem { rows: 1, cols, depth, epilogue, columns }).unwrap();
        let stream = encode(&solution.design, &solution.lowered);
        let mut of_2026 = as_of_2026(&stream, columns as u32).unwrap();
        assert_eq!(of_2026[4..8], [columns as u8, 1, 0, 0]);
        of_2026[4] = stream[4];
        let instructions = decode(&of_2026).unwrap();
        let written = |one: &Instruction| matches!(one, Instruction::BlockWrite { address, words: found } if *address == descriptor && found[..] == words);
        assert!(instructions.iter().any(written), "{cols} × {depth}: {instructions:#x?}");
    }
}

/// The transfers of one column, word by word, from the layout of the registers.
#[test]
fn words_are_where_the_registers_are() {
    let shape = small(1, 32, Epilogue::Scale);
    let design = gemm::design(&shape);
    let bytes = encode(&design, &lower(&design));
    let words: Vec<u32> = bytes.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect();
    // Two row tiles of three transfers and a wait.
    assert_eq!(words[..4], [0x0603_0100, 0x0000_0105, 2 * (3 * 3 + 1), bytes.len() as u32]);
    // Outputs: 3 tiles of 16 × 4 runs of 16 bf16, in rows of 48: 8 words, 24 between rows, 96 between blocks of rows, 8 between tiles.
    let block = [0x01, 0, 0x1d000, 48];
    let outputs = [8 * 4 * 16, 0, 0, 8 << 20, 1 << 31 | 4 << 20 | 23, 95, 2 << 20 | 7, 1 << 25];
    assert_eq!(words[4..8], block);
    assert_eq!(words[8..16], outputs);
    assert_eq!(words[16..28], [0x81, 48, 0, 0, 0, 0, 0x1d004, 0, gemm::OUTPUTS as u32, 0, 0, 0]);
    // Into DRAM, three runs, and the end is reported.
    assert_eq!(words[28..34], [0x00, 0, 0x1d204, 0, 1 << 31 | 2 << 16, 24]);
    // Activations: four rows of cores × 4 objects of 16 × 38 bytes, three times.
    assert_eq!(words[34..38], [0x01, 0, 0x1d020, 48]);
    assert_eq!(words[38], 4 * 4 * 16 * 38 / 4);
    assert_eq!(words[44], 0, "the same activations for every tile of columns");
    assert_eq!(words[58..64], [0x00, 0, 0x1d214, 0, 2 << 16 | 1, 24]);
    // Weights: 3 tiles × 4 objects in a line, once, by the second channel out of DRAM.
    assert_eq!(words[64..68], [0x01, 0, 0x1d040, 48]);
    assert_eq!(words[68..76], [3 * 4 * shape.core.weight_bytes() as u32 / 4, 0, 0, 0, 1 << 31, 0, 0, 1 << 25]);
    assert_eq!(words[88..94], [0x00, 0, 0x1d21c, 0, 2, 24]);
    // The last instruction waits for column 0, row 0, channel 0 into DRAM.
    assert_eq!(words[words.len() - 4..], [0x80, 16, 0, 1 << 8 | 1 << 16]);
}

/// No bit is without a meaning: whatever is accepted does something else.
#[test]
fn every_changed_bit_is_refused_or_does_something_else() {
    let (_, _, lowered, bytes) = small_case();
    let original = commands(&decode(&bytes).unwrap(), &lowered).unwrap();
    for bit in 0..8 * bytes.len() {
        let mut changed = bytes.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        let Ok(instructions) = decode(&changed) else { continue };
        assert_eq!(encode_instructions(&instructions), changed, "bit {bit}");
        assert_ne!(commands(&instructions, &lowered), Ok(original.clone()), "bit {bit}");
    }
}

#[test]
fn streams_that_end_early_or_late_are_refused() {
    let (_, _, _, bytes) = small_case();
    for end in 0..bytes.len() {
        assert!(decode(&bytes[..end]).is_err(), "{end} bytes");
        // With a length that agrees.
        let mut changed = bytes[..end].to_vec();
        if let Some(length) = changed.get_mut(12..16) {
            length.copy_from_slice(&(end as u32).to_le_bytes());
            assert!(decode(&changed).is_err(), "{end} bytes");
        }
    }
    let mut longer = [&bytes[..], &[0; 4]].concat();
    longer[12..16].copy_from_slice(&(bytes.len() as u32 + 4).to_le_bytes());
    let error = decode(&longer).unwrap_err();
    assert_eq!(error, StreamError::Bytes { what: "4 bytes behind the last instruction".into(), at: bytes.len() });
}

#[test]
fn what_the_design_does_not_have_is_named() {
    let (_, _, lowered, bytes) = small_case();
    let original = decode(&bytes).unwrap();
    let refused = |change: &dyn Fn(&mut Vec<Instruction>)| {
        let mut changed = original.clone();
        change(&mut changed);
        commands(&changed, &lowered).unwrap_err().to_string()
    };
    let address = |to: u32| {
        move |all: &mut Vec<Instruction>| {
            let Instruction::Write { address, .. } = &mut all[2] else { panic!("a task") };
            *address = to;
        }
    };
    for (error, part) in [
        (refused(&|all| drop(all.drain(..2))), "descriptor 0 of column 0 was never written"),
        (refused(&|all| _ = all.remove(0)), "no packets, locks or chains, and valid"),
        (refused(&|all| _ = all.remove(1)), "descriptor 0 of column 0 has no buffer"),
        (refused(&address(0x1d200)), "expected a descriptor or a queue"),
        (refused(&address(2 << 25 | 0x1d204)), "expected a shim tile of the design"),
        (refused(&address(1 << 20 | 0x1d204)), "expected a shim tile of the design"),
        (refused(&address(0x1d20c)), "channel 1 In"),
        (refused(&address(0x1d214)), "reports its end"),
        (refused(&address(0x1d000)), "expected a queue of tasks"),
    ] {
        assert!(error.contains(part), "{part} is not in: {error}");
    }
}
