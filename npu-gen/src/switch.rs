//! Stream switches: the ports of each kind of tile, which of them can be connected, and which wires join neighbours.
//!
//! ```text
//!            north: 6 out, 4 in                          a slave port receives a stream, a master port sends it on:
//!          ┌──────────────────┐                          a master has one slave, a slave any number of masters
//!  west    │                  │ east: 4 out, 4 in
//!  4, 4    │ DMA 2 out, 2 in  │ (a memory tile has no ports to the sides, and 6 + 6 of its DMA)
//!          └──────────────────┘
//!            south: 4 out, 6 in
//! ```
//!
//! The DMA of a shim tile is behind its southern ports, by a multiplexer: its channels out of DRAM enter the switch at slaves 3 and 7, and
//! masters 2 and 3 lead to its channels into DRAM. Master 0 carries the tokens by which a channel reports the end of a task.
//!
//! Sources: aie-rt's `xaiemlgbl_params.h` (registers, in whose order ports are numbered), `xaie_ss_aieml.c` (pairs that a switch lacks) and
//! `xaie_plif.c` (shim); mlir-aie's `AIETargetModel.cpp`.

use crate::device::{ROWS, Tile, TileKind};
use crate::lower::{Channel, Direction};

/// Where a port leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Bundle {
    /// The tile's own DMA.
    Dma,
    /// The tile's control packets and tokens.
    Control,
    /// The tile below; in a shim tile, its multiplexer.
    South,
    /// The tile to the left.
    West,
    /// The tile above.
    North,
    /// The tile to the right.
    East,
}

/// A port of a stream switch: as a slave or as a master.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SwitchPort {
    /// Where it leads.
    pub bundle: Bundle,
    /// Number within the bundle.
    pub index: u32,
}

impl std::fmt::Display for SwitchPort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} {}", self.bundle, self.index)
    }
}

/// The side of a switch on which a port is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// It sends.
    Master,
    /// It receives.
    Slave,
}

/// A bundle of one side of a switch: number of the first register, and of ports.
type Registers = (Bundle, u32, u32);

fn registers(kind: TileKind, side: Side) -> &'static [Registers] {
    use Bundle::{Control, Dma, East, North, South, West};
    match (kind, side) {
        (TileKind::Core, Side::Master) => {
            &[(Dma, 1, 2), (Control, 3, 1), (South, 5, 4), (West, 9, 4), (North, 13, 6), (East, 19, 4)]
        }
        (TileKind::Core, Side::Slave) => {
            &[(Dma, 1, 2), (Control, 3, 1), (South, 5, 6), (West, 11, 4), (North, 15, 4), (East, 19, 4)]
        }
        (TileKind::Memory, Side::Master) => &[(Dma, 0, 6), (Control, 6, 1), (South, 7, 4), (North, 11, 6)],
        (TileKind::Memory, Side::Slave) => &[(Dma, 0, 6), (Control, 6, 1), (South, 7, 6), (North, 13, 4)],
        (TileKind::Shim, Side::Master) => {
            &[(Control, 0, 1), (South, 2, 6), (West, 8, 4), (North, 12, 6), (East, 18, 4)]
        }
        (TileKind::Shim, Side::Slave) => {
            &[(Control, 0, 1), (South, 2, 8), (West, 10, 4), (North, 14, 4), (East, 18, 4)]
        }
    }
}

/// Ports of one side of a tile's switch.
pub fn ports(kind: TileKind, side: Side) -> impl Iterator<Item = SwitchPort> {
    let of_bundle = |(bundle, _, count): &Registers| {
        let bundle = *bundle;
        (0..*count).map(move |index| SwitchPort { bundle, index })
    };
    registers(kind, side).iter().flat_map(of_bundle)
}

/// Number of a port's register among those of its side; a master's register holds its slave's number. `None`: the tile has no such port.
pub fn register_of(kind: TileKind, side: Side, port: SwitchPort) -> Option<u32> {
    let of_bundle = registers(kind, side).iter().find(|(bundle, ..)| *bundle == port.bundle);
    of_bundle.filter(|(_, _, count)| port.index < *count).map(|(_, first, _)| first + port.index)
}

/// Whether the switch of a tile can connect a slave to a master, both of which it has.
pub fn connects(kind: TileKind, slave: SwitchPort, master: SwitchPort) -> bool {
    use Bundle::{Control, Dma, North, South};
    let same_index = slave.index == master.index;
    match (kind, slave.bundle, master.bundle) {
        (_, Control, Control) => false,
        (TileKind::Core, Control, Dma) => false,
        (TileKind::Memory, Control, Dma) => master.index == 5,
        // A memory tile passes vertical streams on in their own lane, also back to where they came from.
        (TileKind::Memory, South | North, South | North) => same_index,
        (TileKind::Shim, South, South) => true,
        (_, from, to) => from != to || same_index,
    }
}

/// Where a master's wire ends: a tile of the first `columns` columns, and its slave.
pub fn far_end(tile: Tile, master: SwitchPort, columns: u32) -> Option<(Tile, SwitchPort)> {
    let Tile { col, row } = tile;
    let (tile, bundle) = match master.bundle {
        Bundle::Dma | Bundle::Control => return None,
        Bundle::South => (Tile { col, row: row.checked_sub(1)? }, Bundle::North),
        Bundle::West => (Tile { col: col.checked_sub(1)?, row }, Bundle::East),
        Bundle::North => (Tile { col, row: row + 1 }, Bundle::South),
        Bundle::East => (Tile { col: col + 1, row }, Bundle::West),
    };
    (tile.col < columns && tile.row < ROWS).then_some((tile, SwitchPort { bundle, index: master.index }))
}

/// Southern slaves of a shim tile behind which are its channels out of DRAM.
pub const SHIM_OUT_OF_DRAM: [u32; 2] = [3, 7];
/// Southern masters of a shim tile that lead to its channels into DRAM.
pub const SHIM_INTO_DRAM: [u32; 2] = [2, 3];
/// Slave and master of a shim tile by which tokens leave the array.
pub const SHIM_TOKENS: [SwitchPort; 2] =
    [SwitchPort { bundle: Bundle::Control, index: 0 }, SwitchPort { bundle: Bundle::South, index: 0 }];

/// The port of a DMA channel: a slave for one that sends a stream, a master for one that receives it. `None`: the tile has no such channel.
pub fn port_of_channel(channel: &Channel) -> Option<SwitchPort> {
    let kind = channel.tile.kind();
    let (shim, side) = match channel.direction {
        Direction::Out => (SHIM_OUT_OF_DRAM, Side::Slave),
        Direction::In => (SHIM_INTO_DRAM, Side::Master),
    };
    let port = match kind {
        TileKind::Shim => SwitchPort { bundle: Bundle::South, index: *shim.get(channel.index as usize)? },
        TileKind::Memory | TileKind::Core => SwitchPort { bundle: Bundle::Dma, index: channel.index },
    };
    register_of(kind, side, port).map(|_| port)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KINDS: [TileKind; 3] = [TileKind::Shim, TileKind::Memory, TileKind::Core];

    #[test]
    fn each_port_has_a_register_of_its_own() {
        for kind in KINDS {
            for side in [Side::Master, Side::Slave] {
                let all: Vec<SwitchPort> = ports(kind, side).collect();
                let registers: Vec<u32> = all.iter().map(|port| register_of(kind, side, *port).unwrap()).collect();
                assert!(registers.is_sorted_by(|one, next| one < next), "{kind:?} {side:?}: {registers:?}");
            }
        }
        assert_eq!(register_of(TileKind::Core, Side::Master, SwitchPort { bundle: Bundle::South, index: 4 }), None);
    }

    #[test]
    fn each_wire_between_neighbours_has_both_ends() {
        for row in 0..ROWS {
            for col in 0..4 {
                let tile = Tile { col, row };
                for master in ports(tile.kind(), Side::Master) {
                    if let Some((there, slave)) = far_end(tile, master, 4) {
                        let found = register_of(there.kind(), Side::Slave, slave);
                        assert!(found.is_some(), "{tile}, master {master}: {there} has no slave {slave}");
                    }
                }
            }
        }
        let shim = Tile::shim(3);
        assert_eq!(far_end(shim, SwitchPort { bundle: Bundle::East, index: 0 }, 4), None);
        assert_eq!(far_end(shim, SwitchPort { bundle: Bundle::South, index: 2 }, 4), None);
    }

    #[test]
    fn a_memory_tile_keeps_vertical_lanes() {
        let port = |bundle, index| SwitchPort { bundle, index };
        let memory = |slave, master| connects(TileKind::Memory, slave, master);
        assert!(memory(port(Bundle::South, 3), port(Bundle::North, 3)));
        assert!(!memory(port(Bundle::South, 3), port(Bundle::North, 2)));
        assert!(memory(port(Bundle::Dma, 3), port(Bundle::North, 2)));
        assert!(!memory(port(Bundle::Dma, 3), port(Bundle::Dma, 2)));
        assert!(connects(TileKind::Core, port(Bundle::South, 3), port(Bundle::North, 2)));
        assert!(!connects(TileKind::Core, port(Bundle::West, 3), port(Bundle::West, 2)));
        assert!(connects(TileKind::Shim, SHIM_TOKENS[0], SHIM_TOKENS[1]));
    }
}
