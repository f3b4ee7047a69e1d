//! The control part of a program: the commands that configure the array before its first instruction stream.
//!
//! ```text
//! Lowered ─ route ─► connections ┐
//!         ─ addresses ─► places ─┴─ control ─► Control { init, programs, enable } ─► .cdo files, device image (PDI)
//!
//! init       cores stopped · every lock of a tile in use · descriptors, and the first of each chain started · stream switches
//! programs   machine code of the cores, where there is any
//! enable     the cores that have machine code
//! ```
//!
//! Registers, by their offset in the tile (address: column << 25 │ row << 20 │ offset):
//!
//! ```text
//!                    core tile                   memory tile                 shim tile
//! locks              0x1f000 + 16 n              0xc0000 + 16 n              of the instruction stream
//! descriptors        0x1d000 + 32 n, 6 words     0xa0000 + 32 n, 8 words     of the instruction stream
//! start in, out      0x1de04, 0x1de14 + 8 n      0xa0604, 0xa0634 + 8 n      of the instruction stream
//! masters, slaves    0x3f000, 0x3f100 + 4 n      0xb0000, 0xb0100 + 4 n      0x3f000, 0x3f100 + 4 n
//! multiplexers                                                               0x1f000 out of DRAM, 0x1f004 into DRAM
//! core control       0x32000: run 1, reset 2
//! program memory     0x20000
//! ```
//!
//! Sources: aie-rt's `xaiemlgbl_params.h` (offsets and fields), `xaie_dma_aieml.c` (signs of a descriptor's lock values) and `xaie_plif.c`
//! (multiplexers); iree-amd-aie's `iree_aie_configure.cc` (order, numbers of a memory tile's own locks and addresses as its DMA counts them,
//! tokens); AM020 and AM025.

use std::collections::{BTreeMap, BTreeSet};

use unicorn_artifact::npu::cdo::{CdoCommand, cdo_file};
use unicorn_artifact::npu::control::{CORE_CONTROL, CORE_ENABLE};
use unicorn_artifact::npu::pdi::write_pdi;

use crate::addresses::{Addresses, MemoryFull, addresses};
use crate::design::Design;
use crate::device::{Tile, TileKind, WORD_BYTES, limits};
use crate::lower::{Channel, Direction, Lowered};
use crate::route::{RouteError, Switch, route};
use crate::switch::{Bundle, SHIM_INTO_DRAM, SHIM_OUT_OF_DRAM, Side, SwitchPort, register_of};

const COLUMN_SHIFT: u32 = 25;
const ROW_SHIFT: u32 = 20;

const CORE_RESET: u32 = 2;
const PROGRAM_AT: u32 = 0x2_0000;
const LOCK_BYTES: u32 = 16;
const DESCRIPTOR_BYTES: u32 = 32;
const START_BYTES: u32 = 8;
const SLAVES_BEHIND_MASTERS: u32 = 0x100;
/// A port in use; of a master, with the number of its slave in the lower bits.
const PORT_ENABLE: u32 = 1 << 31;
const SHIM_OUT_OF_DRAM_MUX: u32 = 0x1_f000;
const SHIM_INTO_DRAM_MUX: u32 = 0x1_f004;
/// Lowest bits of the fields of the DMA's ports, in the order of [`SHIM_OUT_OF_DRAM`] and [`SHIM_INTO_DRAM`].
const SHIM_OUT_OF_DRAM_SHIFTS: [u32; 2] = [10, 14];
const SHIM_INTO_DRAM_SHIFTS: [u32; 2] = [4, 6];
/// A port's two bits of a multiplexer: joined to the DMA.
const MUX_DMA: u32 = 1;
/// A memory tile's DMA counts the memory and locks of its left neighbour before its own.
const OWN_MEMORY_AT: usize = 512 << 10;
const OWN_LOCKS_AT: u32 = 64;
/// A descriptor waits until its lock is at least 1 and takes 1: written as -1, in 7 bits.
const ACQUIRE_ONE: u32 = 0x7f;
const RELEASE_ONE: u32 = 1;

/// Machine code and constants of one core.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct CoreProgram {
    /// Words of the program memory from its start.
    pub code: Vec<u32>,
    /// Words of the data memory, each run with its offset in bytes.
    pub data: Vec<(u32, Vec<u32>)>,
}

/// Commands of the control part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Control {
    /// Locks, descriptors, switches.
    pub init: Vec<CdoCommand>,
    /// Machine code; empty without any.
    pub programs: Vec<CdoCommand>,
    /// Starts the cores that have machine code; empty without any.
    pub enable: Vec<CdoCommand>,
}

impl Control {
    /// Its parts that have commands, with their names, in the order of the image.
    fn parts(&self) -> impl Iterator<Item = (&'static str, &Vec<CdoCommand>)> {
        let parts = [("elfs", &self.programs), ("init", &self.init), ("enable", &self.enable)];
        parts.into_iter().filter(|(_, commands)| !commands.is_empty())
    }

    /// Files of the parts, named as mlir-aie's tools name them: `elfs`, `init`, `enable`.
    pub fn files(&self) -> Vec<(&'static str, Vec<u8>)> {
        self.parts().map(|(name, commands)| (name, cdo_file(commands))).collect()
    }

    /// The device image.
    pub fn image(&self) -> Vec<u8> {
        write_pdi(&self.parts().map(|(_, commands)| commands.clone()).collect::<Vec<_>>())
    }
}

/// Why a design has no control part.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ControlError {
    /// Streams without routes.
    #[error(transparent)]
    Route(#[from] RouteError),
    /// Buffers without addresses.
    #[error(transparent)]
    Memory(#[from] MemoryFull),
}

/// The control part of a design that passed [`crate::legal`], with the cores' `programs`: without any it configures the array and starts no core.
///
/// # Errors
/// Streams that find no way, and memory that is not enough.
///
/// # Panics
/// If a number exceeds its field, which a legal design's do not, or a program is none of the design's cores.
pub fn control(
    design: &Design,
    lowered: &Lowered,
    programs: &BTreeMap<Tile, CoreProgram>,
) -> Result<Control, ControlError> {
    let addresses = addresses(design, lowered)?;
    let routes = route(design, lowered)?;
    let mut init = Vec::new();
    for core in &design.cores {
        for value in [CORE_RESET, 0] {
            init.push(mask_write(core.tile, CORE_CONTROL, CORE_RESET, value));
        }
    }
    init.extend(locks(lowered, &addresses));
    for (channel, numbers) in lowered.channels.iter().zip(&addresses.descriptors) {
        init.extend(chain(channel, numbers, &addresses));
    }
    for (tile, switch) in &routes {
        init.extend(connections(*tile, switch));
    }
    let (mut code, mut enable) = (Vec::new(), Vec::new());
    for (tile, program) in programs {
        assert!(design.cores.iter().any(|core| core.tile == *tile), "{tile} has a program, which the design has not");
        code.extend(core_memory(*tile, program));
        enable.push(mask_write(*tile, CORE_CONTROL, CORE_ENABLE, CORE_ENABLE));
    }
    Ok(Control { init, programs: code, enable })
}

fn address(tile: Tile, offset: u32) -> u32 {
    assert!(offset < 1 << ROW_SHIFT, "offset {offset:#x} is in another tile");
    tile.col << COLUMN_SHIFT | tile.row << ROW_SHIFT | offset
}

fn write(tile: Tile, offset: u32, value: u32) -> CdoCommand {
    CdoCommand::Write { address: address(tile, offset), value }
}

fn mask_write(tile: Tile, offset: u32, mask: u32, value: u32) -> CdoCommand {
    CdoCommand::MaskWrite { address: address(tile, offset), mask, value }
}

/// Offsets of the registers of a tile with memory.
struct Offsets {
    locks: u32,
    descriptors: u32,
    /// Start of channels into the tile and out of it.
    starts: [u32; 2],
}

/// `None` for shim tiles, which instruction streams program.
fn offsets(kind: TileKind) -> Option<Offsets> {
    match kind {
        TileKind::Core => Some(Offsets { locks: 0x1_f000, descriptors: 0x1_d000, starts: [0x1_de04, 0x1_de14] }),
        TileKind::Memory => Some(Offsets { locks: 0xc_0000, descriptors: 0xa_0000, starts: [0xa_0604, 0xa_0634] }),
        TileKind::Shim => None,
    }
}

/// Every lock of each tile in use: the design's with their first values, the others with 0.
fn locks(lowered: &Lowered, addresses: &Addresses) -> Vec<CdoCommand> {
    let mut tiles: BTreeMap<Tile, Vec<u32>> = BTreeMap::new();
    for (lock, number) in lowered.locks.iter().zip(&addresses.locks) {
        let most = limits(lock.tile.kind()).locks as usize;
        let values = tiles.entry(lock.tile).or_insert_with(|| vec![0; most]);
        values[*number as usize] = u32::try_from(lock.initial).expect("a legal lock starts at 0 or more");
    }
    let of_tile = |(tile, values): (Tile, Vec<u32>)| {
        let first = offsets(tile.kind()).expect("a tile with memory has locks").locks;
        let numbered = (0..).zip(values);
        numbered.map(move |(number, value)| write(tile, first + LOCK_BYTES * number, value)).collect::<Vec<_>>()
    };
    tiles.into_iter().flat_map(of_tile).collect()
}

/// The descriptors of a channel, and its start.
fn chain(channel: &Channel, numbers: &[u32], addresses: &Addresses) -> Vec<CdoCommand> {
    let Channel { tile, direction, index, chain } = channel;
    let (Some(first), Some(offsets)) = (numbers.first(), offsets(tile.kind())) else { return Vec::new() };
    let followers = numbers.iter().skip(1).chain([first]);
    let mut commands: Vec<CdoCommand> = chain
        .iter()
        .zip(numbers)
        .zip(followers)
        .map(|((descriptor, number), next)| {
            let fields = DescriptorFields {
                at: addresses.memories[descriptor.memory.0] + descriptor.offset,
                len: descriptor.len,
                acquire: addresses.locks[descriptor.acquire.0],
                release: addresses.locks[descriptor.release.0],
                next: *next,
            };
            let words = fields.words(tile.kind());
            CdoCommand::Block { address: address(*tile, offsets.descriptors + DESCRIPTOR_BYTES * number), words }
        })
        .collect();
    let start = offsets.starts[usize::from(*direction == Direction::Out)] + START_BYTES * index;
    commands.push(write(*tile, start, *first));
    commands
}

/// What a descriptor of one run of consecutive bytes holds.
struct DescriptorFields {
    /// Offset in the tile's memory, in bytes.
    at: usize,
    /// Bytes of the run.
    len: usize,
    acquire: u32,
    release: u32,
    /// The descriptor that follows, without end.
    next: u32,
}

impl DescriptorFields {
    fn words(&self, kind: TileKind) -> Vec<u32> {
        let DescriptorFields { at, len, acquire, release, next } = *self;
        let words = |bytes: usize, bits: u32| {
            assert!(bytes.is_multiple_of(WORD_BYTES) && bytes / WORD_BYTES < 1 << bits, "{bytes} bytes in {bits} bits");
            (bytes / WORD_BYTES) as u32
        };
        match kind {
            TileKind::Core => vec![
                words(at, 14) << 14 | words(len, 14),
                0,
                0,
                0,
                0,
                next << 27
                    | 1 << 26
                    | 1 << 25
                    | RELEASE_ONE << 18
                    | release << 13
                    | 1 << 12
                    | ACQUIRE_ONE << 5
                    | acquire,
            ],
            TileKind::Memory => vec![
                words(len, 17),
                next << 20 | 1 << 19 | words(OWN_MEMORY_AT + at, 19),
                0,
                0,
                0,
                0,
                0,
                1 << 31
                    | RELEASE_ONE << 24
                    | (OWN_LOCKS_AT + release) << 16
                    | 1 << 15
                    | ACQUIRE_ONE << 8
                    | (OWN_LOCKS_AT + acquire),
            ],
            TileKind::Shim => unreachable!("instruction streams write these"),
        }
    }
}

/// Masters, slaves and multiplexers of a tile.
fn connections(tile: Tile, switch: &Switch) -> Vec<CdoCommand> {
    let kind = tile.kind();
    let masters_at = if kind == TileKind::Memory { 0xb_0000 } else { 0x3_f000 };
    let register = |side, port| register_of(kind, side, port).expect("a route passes ports that exist");
    let mut commands = Vec::new();
    let mut enabled = BTreeSet::new();
    for (master, slave) in switch {
        let slave = register(Side::Slave, *slave);
        commands.push(write(tile, masters_at + 4 * register(Side::Master, *master), PORT_ENABLE | slave));
        // Once, also of a slave with several masters.
        if enabled.insert(slave) {
            commands.push(write(tile, masters_at + SLAVES_BEHIND_MASTERS + 4 * slave, PORT_ENABLE));
        }
    }
    if kind == TileKind::Shim {
        let south = |index| SwitchPort { bundle: Bundle::South, index };
        for (index, shift) in SHIM_OUT_OF_DRAM.into_iter().zip(SHIM_OUT_OF_DRAM_SHIFTS) {
            if switch.values().any(|slave| *slave == south(index)) {
                commands.push(mux(tile, SHIM_OUT_OF_DRAM_MUX, shift));
            }
        }
        for (index, shift) in SHIM_INTO_DRAM.into_iter().zip(SHIM_INTO_DRAM_SHIFTS) {
            if switch.contains_key(&south(index)) {
                commands.push(mux(tile, SHIM_INTO_DRAM_MUX, shift));
            }
        }
    }
    commands
}

fn mux(tile: Tile, offset: u32, shift: u32) -> CdoCommand {
    mask_write(tile, offset, 3 << shift, MUX_DMA << shift)
}

/// Code and constants of a core.
fn core_memory(tile: Tile, program: &CoreProgram) -> Vec<CdoCommand> {
    let code = (PROGRAM_AT, &program.code);
    let runs = program.data.iter().map(|(at, words)| (*at, words)).chain([code]);
    let block = |(at, words): (u32, &Vec<u32>)| CdoCommand::Block { address: address(tile, at), words: words.clone() };
    runs.filter(|(_, words)| !words.is_empty()).map(block).collect()
}
