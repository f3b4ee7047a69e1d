//! Instruction streams read by AMD's own assembler and disassembler, of Debian's package of XRT, where they are: `cargo xtask test` fetches them.
//!
//! `AIEBU_ASM` and `AIEBU_DUMP` name the programs; without them, this check is skipped.

mod support;

use std::path::Path;
use std::process::Command;

use support::small;
use test_support::skip;
use unicorn_kernels::Activation;
use unicorn_kernels::npu::tile::Epilogue;
use unicorn_npu::lower::{Direction, lower};
use unicorn_npu::stream::{Instruction, decode, encode};
use unicorn_npu::{Problem, gemm, solve};

/// What the disassembler prints of an instruction, without its columns.
fn disassembled(instruction: &Instruction) -> Vec<String> {
    match instruction {
        Instruction::Write { address, value } => vec![format!("XAIE_IO_WRITE @{address:#x}, {value:#x}")],
        Instruction::BlockWrite { address, words } => {
            let head = format!("XAIE_IO_BLOCKWRITE @{address:#x}, [{}]", words.len());
            // The base address is that of the patch, for which the assembler makes a relocation.
            let shown = |index: usize, word: u32| if index == 1 { 0 } else { word };
            let word = |(index, word): (usize, &u32)| format!("XAIE_IO_BLOCKWRITE.{index} {:#x}", shown(index, *word));
            std::iter::once(head).chain(words.iter().enumerate().map(word)).collect()
        }
        Instruction::Patch { address, argument, offset_bytes } => {
            vec![format!("XAIE_IO_CUSTOM_OP_DDR_PATCH @{address:#x}, #{argument}, +{offset_bytes:#x}")]
        }
        Instruction::Wait { tile, direction, channel } => {
            let direction = if *direction == Direction::In { "S2MM" } else { "MM2S" };
            vec![format!("XAIE_IO_CUSTOM_OP_TCT R[{}]+1, C[{}]+1, #DMA_{direction}, {channel}", tile.row, tile.col)]
        }
    }
}

#[test]
fn the_disassembler_reads_the_instructions_that_were_meant() {
    let program = |name: &str| std::env::var_os(name);
    let (Some(assembler), Some(disassembler)) = (program("AIEBU_ASM"), program("AIEBU_DUMP")) else {
        return skip("aiebu", "AIEBU_ASM and AIEBU_DUMP name no programs");
    };
    let solved = |cols, depth| {
        let problem = Problem { rows: 512, cols, depth, epilogue: Epilogue::Scale, columns: 4 };
        solve(&problem).expect("some size fits").estimate.shape
    };
    let shapes = [
        small(1, 32, Epilogue::Scale),
        small(3, 64, Epilogue::ActMul(Activation::Silu)),
        // Llama-3-8B's q, k and v, and down.
        solved(6144, 4096),
        solved(4096, 14336),
    ];
    for (index, shape) in shapes.iter().enumerate() {
        let design = gemm::design(shape);
        let bytes = encode(&design, &lower(&design));
        let file = |extension: &str| {
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("stream-{index}")).with_extension(extension)
        };
        std::fs::write(file("bin"), &bytes).unwrap();
        let run = |command: &mut Command| {
            let output = command.output().expect("the program starts");
            assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
            String::from_utf8(output.stdout).unwrap()
        };
        run(Command::new(&assembler).args(["-t", "aie2txn", "-c"]).arg(file("bin")).arg("-o").arg(file("elf")));
        let text = run(Command::new(&disassembler).arg("-d").arg(file("elf")));
        let is_instruction = |line: &&str| line.trim_start().starts_with("XAIE_IO_");
        let in_words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        let found: Vec<String> = text.lines().filter(is_instruction).map(in_words).collect();
        let expected: Vec<String> = decode(&bytes).unwrap().iter().flat_map(disassembled).collect();
        assert_eq!(found, expected, "{shape:?}");
    }
}
