//! Follows streams through configured stream switches: an own description of ports and wires, apart from the router's.

use std::collections::{BTreeMap, BTreeSet};

use unicorn_npu::Design;
use unicorn_npu::device::{Tile, TileKind};
use unicorn_npu::lower::{Channel, Direction, Lowered};
use unicorn_npu::route::Routes;
use unicorn_npu::switch::{Bundle, SwitchPort};

/// A DMA channel: tile, direction, number.
type End = (Tile, Direction, u32);

fn end(channel: &Channel) -> End {
    (channel.tile, channel.direction, channel.index)
}

/// Masters and slaves to the south, west, north and east, and of the DMA (AM020, "AXI4-Stream Interconnect").
fn counts(kind: TileKind) -> [[u32; 5]; 2] {
    match kind {
        TileKind::Core => [[4, 4, 6, 4, 2], [6, 4, 4, 4, 2]],
        TileKind::Memory => [[4, 0, 6, 0, 6], [6, 0, 4, 0, 6]],
        TileKind::Shim => [[6, 4, 6, 4, 0], [8, 4, 4, 4, 0]],
    }
}

fn place(bundle: Bundle) -> Option<usize> {
    [Bundle::South, Bundle::West, Bundle::North, Bundle::East, Bundle::Dma].iter().position(|one| *one == bundle)
}

/// What is wrong with the routes of a design; `Ok`: each stream arrives at its destinations and nowhere else.
pub fn walk(design: &Design, lowered: &Lowered, routes: &Routes) -> Result<(), String> {
    for (tile, switch) in routes {
        let [masters, slaves] = counts(tile.kind());
        for (master, slave) in switch {
            let tokens = tile.kind() == TileKind::Shim && slave.bundle == Bundle::Control;
            let ports = [(master, masters), (slave, slaves)].into_iter().skip(usize::from(tokens) * 2);
            for (port, counts) in ports {
                if place(port.bundle).is_none_or(|place| port.index >= counts[place]) {
                    return Err(format!("{tile} has no port {port}"));
                }
            }
            let vertical = |port: &SwitchPort| matches!(port.bundle, Bundle::South | Bundle::North);
            let lane_kept = master.index == slave.index;
            let lane_rule = match tile.kind() {
                TileKind::Memory => vertical(master) && vertical(slave),
                TileKind::Core => master.bundle == slave.bundle,
                TileKind::Shim => master.bundle == slave.bundle && master.bundle != Bundle::South,
            } || master.bundle == Bundle::Dma && slave.bundle == Bundle::Dma;
            if lane_rule && !lane_kept {
                return Err(format!("{tile} cannot connect {slave} to {master}"));
            }
        }
    }
    let mut passed: BTreeSet<(Tile, SwitchPort)> = BTreeSet::new();
    for flow in &lowered.flows {
        let from = &lowered.channels[flow.from.0];
        let expected: BTreeSet<End> = flow.to.iter().map(|id| end(&lowered.channels[id.0])).collect();
        let mut found = BTreeSet::new();
        let mut ways = vec![(from.tile, source(from))];
        while let Some((tile, slave)) = ways.pop() {
            let switch = routes.get(&tile).cloned().unwrap_or_default();
            for (master, _) in switch.iter().filter(|(_, one)| **one == slave) {
                if !passed.insert((tile, *master)) {
                    return Err(format!("{tile}: master {master} is passed twice"));
                }
                match follow(tile, *master, design.columns)? {
                    Hop::Tile(next) => ways.push(next),
                    Hop::Channel(channel) => _ = found.insert((tile, Direction::In, channel)),
                }
            }
        }
        if found != expected {
            let name = &design.fifo(flow.fifo).name;
            return Err(format!("stream of {name} arrives at {found:?}, expected {expected:?}"));
        }
    }
    // Every shim tile in use sends its tokens out of the array; nothing else is connected.
    let mut others: BTreeMap<Tile, Vec<(SwitchPort, SwitchPort)>> = BTreeMap::new();
    for (tile, switch) in routes {
        let rest = switch.iter().filter(|(master, _)| !passed.contains(&(*tile, **master)));
        let rest: Vec<_> = rest.map(|(master, slave)| (*master, *slave)).collect();
        let zero = |bundle| SwitchPort { bundle, index: 0 };
        let tokens = vec![(zero(Bundle::South), zero(Bundle::Control))];
        let expected = if tile.kind() == TileKind::Shim { tokens } else { Vec::new() };
        if rest != expected {
            others.insert(*tile, rest);
        }
    }
    if others.is_empty() { Ok(()) } else { Err(format!("no stream uses {others:?}")) }
}

/// The slave by which a channel's stream enters its tile's switch.
fn source(channel: &Channel) -> SwitchPort {
    match channel.tile.kind() {
        TileKind::Shim => SwitchPort { bundle: Bundle::South, index: 3 + 4 * channel.index },
        _ => SwitchPort { bundle: Bundle::Dma, index: channel.index },
    }
}

enum Hop {
    Tile((Tile, SwitchPort)),
    Channel(u32),
}

/// Where a master leads.
fn follow(tile: Tile, master: SwitchPort, columns: u32) -> Result<Hop, String> {
    let SwitchPort { bundle, index } = master;
    let outside = || format!("{tile}: master {master} leads out of the array");
    let (dx, dy, opposite) = match bundle {
        Bundle::Dma => return Ok(Hop::Channel(index)),
        Bundle::South if tile.row == 0 => return index.checked_sub(2).map(Hop::Channel).ok_or_else(outside),
        Bundle::South => (0, -1, Bundle::North),
        Bundle::North => (0, 1, Bundle::South),
        Bundle::West => (-1, 0, Bundle::East),
        Bundle::East => (1, 0, Bundle::West),
        Bundle::Control => return Err(outside()),
    };
    let (col, row) = (tile.col as i32 + dx, tile.row as i32 + dy);
    if !(0..columns as i32).contains(&col) || !(0..6).contains(&row) {
        return Err(outside());
    }
    Ok(Hop::Tile((Tile { col: col as u32, row: row as u32 }, SwitchPort { bundle: opposite, index })))
}
