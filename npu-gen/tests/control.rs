//! The control part: its bytes, read back as registers, configure the array for the design; and every mistake in them shows.

mod support;

use std::collections::BTreeMap;

use support::configured::check;
use support::{small, small_gemv};
use unicorn_artifact::npu::cdo::{CdoCommand, decode_object};
use unicorn_artifact::npu::control::{Control as Checked, check_control};
use unicorn_artifact::npu::pdi::read_pdi;
use unicorn_kernels::Activation;
use unicorn_kernels::npu::attention::{AttentionShape, AttentionTile};
use unicorn_kernels::npu::tile::Epilogue;
use unicorn_npu::addresses::addresses;
use unicorn_npu::control::{CoreProgram, control};
use unicorn_npu::design::{Core, Design, Element, Fifo};
use unicorn_npu::device::Tile;
use unicorn_npu::lower::lower;
use unicorn_npu::{Problem, attention, gemm, solve, unicorn_artifact, unicorn_kernels};

fn designs() -> Vec<Design> {
    let tile = AttentionTile { rows: 8, keys: 16, depth: 32 };
    let small = (1..=4).flat_map(|columns| {
        [
            gemm::design(&small(columns, 32, Epilogue::ActMul(Activation::Silu))),
            gemm::design(&small_gemv(columns, 32, Epilogue::Scale)),
            attention::design(&AttentionShape::padded(4, 32, 64, columns, tile)),
        ]
    });
    // Llama-3-8B's q, k and v, and down.
    let solved = [(6144, 4096), (4096, 14336)].map(|(cols, depth)| {
        solve(&Problem { rows: 512, cols, depth, epilogue: Epilogue::Scale, columns: 4 })
            .expect("some size fits")
            .design
    });
    small.chain(solved).collect()
}

fn no_programs() -> BTreeMap<Tile, CoreProgram> {
    BTreeMap::new()
}

/// The commands of a file's bytes.
fn of_file(bytes: &[u8]) -> Vec<CdoCommand> {
    let words: Vec<u32> = bytes.chunks_exact(4).map(|four| u32::from_le_bytes(four.try_into().unwrap())).collect();
    decode_object(&words).unwrap()
}

fn is_something(command: &CdoCommand) -> bool {
    !matches!(command, CdoCommand::Nothing { .. })
}

#[test]
fn the_bytes_configure_the_array_for_the_design() {
    for design in designs() {
        let lowered = lower(&design);
        let addresses = addresses(&design, &lowered).unwrap();
        let control = control(&design, &lowered, &no_programs()).unwrap();
        let image = control.image();
        let files = control.files();
        assert_eq!(files.iter().map(|(name, _)| *name).collect::<Vec<_>>(), ["init"]);
        let mut commands = read_pdi(&image).unwrap();
        commands.retain(is_something);
        assert_eq!(of_file(&files[0].1), commands);
        check((&design, &lowered), &addresses, &commands, &[]).unwrap_or_else(|fault| panic!("{fault}"));
        assert_eq!(check_control(&image, design.columns), Ok(Checked { writes: commands.len(), cores: 0 }));
        if design.columns > 1 {
            check_control(&image, design.columns - 1).unwrap_err();
        }
    }
}

#[test]
fn cores_start_only_with_a_program() {
    let design = gemm::design(&small(2, 32, Epilogue::Scale));
    let lowered = lower(&design);
    let program = CoreProgram { code: vec![0x15, 0x16, 0x17], data: vec![(0x40, vec![7])] };
    let (here, there) = (Tile::core(0, 3), Tile::core(1, 0));
    let programs = BTreeMap::from([(here, program), (there, CoreProgram { code: vec![9], data: vec![] })]);
    let control = control(&design, &lowered, &programs).unwrap();
    assert_eq!(control.files().iter().map(|(name, _)| *name).collect::<Vec<_>>(), ["elfs", "init", "enable"]);
    let address = |tile: Tile, offset| tile.col << 25 | tile.row << 20 | offset;
    let block = |tile, offset, words: &[u32]| CdoCommand::Block { address: address(tile, offset), words: words.into() };
    let code = [block(here, 0x40, &[7]), block(here, 0x20000, &[0x15, 0x16, 0x17]), block(there, 0x20000, &[9])];
    assert_eq!(control.programs, code);
    let mut commands = read_pdi(&control.image()).unwrap();
    commands.retain(is_something);
    // First the code, last the start.
    assert_eq!(commands.drain(..3).collect::<Vec<_>>(), code);
    check((&design, &lowered), &addresses(&design, &lowered).unwrap(), &commands, &[here, there]).unwrap();
    assert_eq!(check_control(&control.image(), 2).unwrap().cores, 2);
}

/// Each command left out, done twice, and with each bit of its address, mask and values changed.
fn mutants(commands: &[CdoCommand]) -> Vec<(String, Vec<CdoCommand>)> {
    let mut mutants = Vec::new();
    for (index, command) in commands.iter().enumerate() {
        let mut with = |what: String, change: &dyn Fn(&mut Vec<CdoCommand>)| {
            let mut mutant = commands.to_vec();
            change(&mut mutant);
            mutants.push((format!("command {index}, {command:x?}: {what}"), mutant));
        };
        with("left out".into(), &|commands| _ = commands.remove(index));
        with("done twice".into(), &|commands| commands.insert(index, command.clone()));
        for bit in 0..32 {
            let words = match command {
                CdoCommand::Write { .. } => 2,
                CdoCommand::MaskWrite { .. } => 3,
                CdoCommand::Block { words, .. } => 1 + words.len(),
                CdoCommand::Nothing { .. } => 0,
            };
            for word in 0..words {
                with(format!("bit {bit} of operand {word}"), &|commands| {
                    let operand = match (&mut commands[index], word) {
                        (CdoCommand::Write { address, .. } | CdoCommand::MaskWrite { address, .. }, 0) => address,
                        (CdoCommand::Block { address, .. }, 0) => address,
                        (CdoCommand::Write { value, .. }, _) | (CdoCommand::MaskWrite { value, .. }, 2) => value,
                        (CdoCommand::MaskWrite { mask, .. }, _) => mask,
                        (CdoCommand::Block { words, .. }, _) => &mut words[word - 1],
                        (CdoCommand::Nothing { .. }, _) => unreachable!(),
                    };
                    *operand ^= 1 << bit;
                });
            }
        }
    }
    mutants
}

#[test]
fn every_mistake_in_the_commands_shows() {
    for design in [gemm::design(&small(1, 32, Epilogue::Scale)), gemm::design(&small_gemv(2, 32, Epilogue::Scale))] {
        let lowered = lower(&design);
        let addresses = addresses(&design, &lowered).unwrap();
        let commands = control(&design, &lowered, &no_programs()).unwrap().init;
        check((&design, &lowered), &addresses, &commands, &[]).unwrap();
        let mutants = mutants(&commands);
        assert!(mutants.len() > 10_000, "{} mutants", mutants.len());
        let is_noticed = |mutant: &[CdoCommand]| check((&design, &lowered), &addresses, mutant, &[]).is_err();
        let survivors: Vec<&String> =
            mutants.iter().filter(|(_, mutant)| !is_noticed(mutant)).map(|(what, _)| what).collect();
        assert!(survivors.is_empty(), "{survivors:#?}");
    }
}

/// One stream of one word from a core to DRAM: the registers and values that aie-rt writes for it, as iree-amd-aie's `cdo_dump.txt` lists
/// them. Our descriptor names a next one, itself: bit 26 of its last word.
#[test]
fn a_stream_out_of_a_core_has_the_values_of_aie_rt() {
    let tile = Tile::core(1, 0);
    let mut design = gemm::design(&small(2, 32, Epilogue::Scale));
    design.fifos = vec![Fifo {
        name: "out".into(),
        producer: tile,
        consumers: vec![Tile::shim(1)],
        depth: 1,
        element: Element::I32,
        len: 1,
    }];
    design.links.clear();
    design.buffers.clear();
    design.cores = vec![Core { tile, program: vec![] }];
    let lowered = lower(&design);
    let program = CoreProgram { code: vec![0x15], data: vec![] };
    let control = control(&design, &lowered, &BTreeMap::from([(tile, program)])).unwrap();
    let write = |address, value| CdoCommand::Write { address, value };
    let mask_write = |address, mask, value| CdoCommand::MaskWrite { address, mask, value };
    let mut expected = vec![
        mask_write(0x0223_2000, 2, 2),
        mask_write(0x0223_2000, 2, 0),
        write(0x0221_f000, 1),
        write(0x0221_f010, 0),
        CdoCommand::Block { address: 0x0221_d000, words: vec![0x0040_0001, 0, 0, 0, 0, 0x0204_1fe1 | 1 << 26] },
        write(0x0221_de14, 0),
        write(0x0203_f008, 0x8000_0000),
        write(0x0203_f100, 0x8000_0000),
        write(0x0203_f010, 0x8000_000e),
        write(0x0203_f138, 0x8000_0000),
        mask_write(0x0201_f004, 0x30, 0x10),
        write(0x021b_001c, 0x8000_000d),
        write(0x021b_0134, 0x8000_0000),
        write(0x0223_f014, 0x8000_0001),
        write(0x0223_f104, 0x8000_0000),
    ];
    // The other locks, which we set to 0.
    let others = (2..16).map(|number| write(0x0221_f000 + 16 * number, 0));
    let at = 4;
    expected.splice(at..at, others);
    assert_eq!(control.init, expected);
    assert_eq!(control.enable, [mask_write(0x0223_2000, 1, 1)]);
}
