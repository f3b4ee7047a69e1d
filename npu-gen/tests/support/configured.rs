//! An array whose registers were written by the commands of a control part, read back by an own description of its registers and compared
//! with the lowered design.

use std::collections::BTreeMap;

use unicorn_artifact::npu::cdo::CdoCommand;
use unicorn_npu::Design;
use unicorn_npu::addresses::Addresses;
use unicorn_npu::device::{Tile, TileKind};
use unicorn_npu::lower::{Channel, Direction, Lowered};
use unicorn_npu::route::Routes;
use unicorn_npu::switch::{Bundle, SwitchPort};
use unicorn_npu::unicorn_artifact;

use super::walk::walk;

/// Ports of a switch in the order of their registers (AM025, "stream switch" of each module): name, and how many.
fn order(kind: TileKind, masters: bool) -> &'static str {
    match (kind, masters) {
        (TileKind::Core, true) => "core1 dma2 control1 fifo1 south4 west4 north6 east4",
        (TileKind::Core, false) => "core1 dma2 control1 fifo1 south6 west4 north4 east4 trace2",
        (TileKind::Memory, true) => "dma6 control1 south4 north6",
        (TileKind::Memory, false) => "dma6 control1 south6 north4 trace1",
        (TileKind::Shim, true) => "control1 fifo1 south6 west4 north6 east4",
        (TileKind::Shim, false) => "control1 fifo1 south8 west4 north4 east4 trace1",
    }
}

fn port(kind: TileKind, masters: bool, register: u32) -> Option<SwitchPort> {
    let mut first = 0;
    for bundle in order(kind, masters).split(' ') {
        let (name, count) = bundle.split_at(bundle.len() - 1);
        let count: u32 = count.parse().unwrap();
        if register < first + count {
            let bundles = [
                ("dma", Bundle::Dma),
                ("control", Bundle::Control),
                ("south", Bundle::South),
                ("west", Bundle::West),
                ("north", Bundle::North),
                ("east", Bundle::East),
            ];
            let bundle = bundles.into_iter().find(|(one, _)| *one == name)?.1;
            return Some(SwitchPort { bundle, index: register - first });
        }
        first += count;
    }
    None
}

/// Registers by address; what was read is taken out, so that what is left was not meant.
struct Registers {
    values: BTreeMap<u32, u32>,
    /// Mask and value of each change of some bits of a register, in order.
    changes: BTreeMap<u32, Vec<[u32; 2]>>,
}

impl Registers {
    fn of(commands: &[CdoCommand]) -> Result<Registers, String> {
        let mut registers = Registers { values: BTreeMap::new(), changes: BTreeMap::new() };
        for command in commands {
            match command {
                CdoCommand::Write { address, value } => registers.write(*address, *value)?,
                CdoCommand::Block { address, words } => {
                    (0..).zip(words).try_for_each(|(index, word)| registers.write(address + 4 * index, *word))?;
                }
                CdoCommand::MaskWrite { address, mask, value } => {
                    registers.changes.entry(*address).or_default().push([*mask, *value]);
                }
                CdoCommand::Nothing { .. } => {}
            }
        }
        Ok(registers)
    }

    fn write(&mut self, address: u32, value: u32) -> Result<(), String> {
        let before = self.values.insert(address, value);
        if before.is_some() { Err(format!("{address:#x} is written twice")) } else { Ok(()) }
    }

    fn take(&mut self, tile: Tile, offset: u32) -> Option<u32> {
        self.values.remove(&(tile.col << 25 | tile.row << 20 | offset))
    }

    fn take_changes(&mut self, tile: Tile, offset: u32) -> Vec<[u32; 2]> {
        self.changes.remove(&(tile.col << 25 | tile.row << 20 | offset)).unwrap_or_default()
    }
}

fn expect<T: PartialEq + std::fmt::Debug>(what: &str, tile: Tile, found: T, expected: T) -> Result<(), String> {
    if found == expected { Ok(()) } else { Err(format!("{tile}: {what} is {found:x?}, expected {expected:x?}")) }
}

/// Whether `commands` configure the array for a lowered design whose parts are at `addresses`; the cores in `running` are started.
pub fn check(
    (design, lowered): (&Design, &Lowered),
    addresses: &Addresses,
    commands: &[CdoCommand],
    running: &[Tile],
) -> Result<(), String> {
    check_addresses((design, lowered), addresses)?;
    let mut registers = Registers::of(commands)?;
    for core in &design.cores {
        let is_running = running.contains(&core.tile);
        let mut expected = vec![[2, 2], [2, 0]];
        expected.extend(is_running.then_some([1, 1]));
        expect("core's control", core.tile, registers.take_changes(core.tile, 0x32000), expected)?;
    }
    check_locks(lowered, addresses, &mut registers)?;
    for (channel, numbers) in lowered.channels.iter().zip(&addresses.descriptors) {
        if !channel.chain.is_empty() {
            check_chain(channel, numbers, addresses, &mut registers)?;
        }
    }
    let routes = routes(lowered, design.columns, &mut registers)?;
    walk(design, lowered, &routes)?;
    let left: Vec<String> =
        registers.values.keys().chain(registers.changes.keys()).map(|address| format!("{address:#x}")).collect();
    if left.is_empty() { Ok(()) } else { Err(format!("nothing of the design is at {left:?}")) }
}

/// Buffers of a tile are in its memory, behind the stack of a core, and none overlaps another.
fn check_addresses((design, lowered): (&Design, &Lowered), addresses: &Addresses) -> Result<(), String> {
    let mut parts: BTreeMap<Tile, Vec<(usize, usize)>> = BTreeMap::new();
    for (memory, at) in lowered.memories.iter().zip(&addresses.memories) {
        parts.entry(memory.tile).or_default().push((*at, at + memory.bytes));
    }
    for (buffer, at) in design.buffers.iter().zip(&addresses.buffers) {
        parts.entry(buffer.tile).or_default().push((*at, at + buffer.len * buffer.element.bytes()));
    }
    for (tile, parts) in &mut parts {
        let (mut end, most) = if tile.row == 1 { (0, 512 << 10) } else { (1024, 64 << 10) };
        parts.sort_unstable();
        for (from, to) in parts {
            if *from < end || *to > most || *from % 32 != 0 {
                return Err(format!("{tile}: bytes {from} to {to}, expected {end} to {most}, from a multiple of 32"));
            }
            end = *to;
        }
    }
    Ok(())
}

fn check_locks(lowered: &Lowered, addresses: &Addresses, registers: &mut Registers) -> Result<(), String> {
    let mut tiles: BTreeMap<Tile, BTreeMap<u32, i32>> = BTreeMap::new();
    for (lock, number) in lowered.locks.iter().zip(&addresses.locks) {
        if tiles.entry(lock.tile).or_default().insert(*number, lock.initial).is_some() {
            return Err(format!("{}: lock {number} is two", lock.tile));
        }
    }
    for (tile, locks) in tiles {
        let (first, count) = if tile.row == 1 { (0xc0000, 64) } else { (0x1f000, 16) };
        for number in 0..count {
            let expected = locks.get(&number).copied().unwrap_or_default();
            let found = registers.take(tile, first + 16 * number).map(|value| value as i32);
            expect(&format!("lock {number}"), tile, found, Some(expected))?;
        }
        expect("number of the last lock", tile, locks.keys().all(|number| *number < count), true)?;
    }
    Ok(())
}

/// Follows the descriptors from the one that the channel starts with.
fn check_chain(
    channel: &Channel,
    numbers: &[u32],
    addresses: &Addresses,
    registers: &mut Registers,
) -> Result<(), String> {
    let Channel { tile, direction, index, chain } = channel;
    let is_memory = tile.row == 1;
    let start = match (is_memory, direction) {
        (false, Direction::In) => 0x1de04,
        (false, Direction::Out) => 0x1de14,
        (true, Direction::In) => 0xa0604,
        (true, Direction::Out) => 0xa0634,
    };
    let first =
        registers.take(*tile, start + 8 * index).ok_or_else(|| format!("{tile}: channel {index} never starts"))?;
    let mut next = first;
    for (descriptor, number) in chain.iter().zip(numbers) {
        let what = |part: &str| format!("{direction:?} {index}, descriptor {number}: {part}");
        expect(&what("number"), *tile, next, *number)?;
        expect(&what("half"), *tile, is_memory && (*number < 24) != (index % 2 == 0), false)?;
        let (at, words) = if is_memory { (0xa0000, 8) } else { (0x1d000, 6) };
        let words: Option<Vec<u32>> =
            (0..words).map(|word| registers.take(*tile, at + 32 * number + 4 * word)).collect();
        let w = words.ok_or_else(|| what("not written"))?;
        let bits = |word: u32, from: u32, count: u32| word >> from & ((1 << count) - 1);
        // Address and length in words, valid, next and its use, acquire, its value and use, release and its value; and all other bits.
        let (fields, rest) = if is_memory {
            let fields = [
                bits(w[1], 0, 19).wrapping_sub(0x20000),
                bits(w[0], 0, 17),
                bits(w[7], 31, 1),
                bits(w[1], 20, 6),
                bits(w[1], 19, 1),
                bits(w[7], 0, 8).wrapping_sub(64),
                bits(w[7], 8, 7),
                bits(w[7], 15, 1),
                bits(w[7], 16, 8).wrapping_sub(64),
                bits(w[7], 24, 7),
            ];
            (fields, bits(w[0], 17, 15) | bits(w[1], 26, 6) | w[2..7].iter().fold(0, |all, word| all | word))
        } else {
            let fields = [
                bits(w[0], 14, 14),
                bits(w[0], 0, 14),
                bits(w[5], 25, 1),
                bits(w[5], 27, 4),
                bits(w[5], 26, 1),
                bits(w[5], 0, 4),
                bits(w[5], 5, 7),
                bits(w[5], 12, 1),
                bits(w[5], 13, 4),
                bits(w[5], 18, 7),
            ];
            let rest = bits(w[0], 28, 4) | bits(w[5], 4, 1) | bits(w[5], 17, 1) | bits(w[5], 31, 1);
            (fields, rest | w[1..5].iter().fold(0, |all, word| all | word))
        };
        next = fields[3];
        let expected = [
            (addresses.memories[descriptor.memory.0] + descriptor.offset) as u32 / 4,
            descriptor.len as u32 / 4,
            1,
            next,
            1,
            addresses.locks[descriptor.acquire.0],
            // -1: at least 1, which is taken.
            0x7f,
            1,
            addresses.locks[descriptor.release.0],
            1,
        ];
        expect(&what("fields"), *tile, fields, expected)?;
        expect(&what("other bits"), *tile, rest, 0)?;
    }
    expect("end of a chain", *tile, next, first)
}

/// The connections that the registers of the switches and of the shim's multiplexers make.
fn routes(lowered: &Lowered, columns: u32, registers: &mut Registers) -> Result<Routes, String> {
    let mut routes = Routes::new();
    for tile in (0..columns).flat_map(|col| (0..6).map(move |row| Tile { col, row })) {
        let kind = tile.kind();
        let at = if kind == TileKind::Memory { 0xb0000 } else { 0x3f000 };
        let mut slaves = Vec::new();
        for register in 0..23 {
            let Some(value) = registers.take(tile, at + 4 * register) else { continue };
            let (master, slave) = (port(kind, true, register), port(kind, false, value & 0x7f));
            let (Some(master), Some(slave)) = (master, slave) else {
                return Err(format!("{tile}: master {register} of slave {value:#x}"));
            };
            expect(&format!("master {master}"), tile, value & !0x7f, 1 << 31)?;
            routes.entry(tile).or_default().insert(master, slave);
            slaves.push(value & 0x7f);
        }
        for register in 0..25 {
            let expected = slaves.contains(&register).then_some(1 << 31);
            expect(&format!("slave {register}"), tile, registers.take(tile, at + 0x100 + 4 * register), expected)?;
        }
        if kind == TileKind::Shim {
            for (direction, offset, first, step) in [(Direction::Out, 0x1f000, 10, 4), (Direction::In, 0x1f004, 4, 2)] {
                let channels = lowered.channels.iter();
                let channels = channels.filter(|channel| channel.tile == tile && channel.direction == direction);
                let mut bits: Vec<u32> = channels.map(|channel| first + step * channel.index).collect();
                bits.sort_unstable();
                let expected: Vec<[u32; 2]> = bits.into_iter().map(|bit| [3 << bit, 1 << bit]).collect();
                expect("multiplexer", tile, registers.take_changes(tile, offset), expected)?;
            }
        }
    }
    Ok(routes)
}
