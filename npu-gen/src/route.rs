//! Routes streams through the stream switches: every flow gets circuits of its own from its channel to all of its destinations.
//!
//! Negotiated congestion (PathFinder, McMurchie and Ebeling 1995): every flow is routed at the lowest cost, also through ports that others
//! use; the cost of a shared port grows from round to round, until no port is shared. Equal costs are decided by the order of ports, so that
//! a design always gets the same routes.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use crate::design::Design;
use crate::device::{Tile, TileKind};
use crate::lower::{ChannelId, Flow, Lowered};
use crate::switch::{SHIM_TOKENS, Side, SwitchPort, connects, far_end, port_of_channel, ports};

/// Connections of one stream switch: the slave of each master in use.
pub type Switch = BTreeMap<SwitchPort, SwitchPort>;

/// Connections of all tiles that have any.
pub type Routes = BTreeMap<Tile, Switch>;

/// Why there are no routes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RouteError {
    /// A channel that the tile does not have.
    #[error("stream of FIFO {fifo} has an end at a channel that the {tile} does not have")]
    Channel {
        /// Name of the FIFO.
        fifo: String,
        /// Tile of the channel.
        tile: Tile,
    },
    /// No circuit exists at all.
    #[error("stream of FIFO {fifo} has no way from the {from} to the {to}")]
    NoWay {
        /// Name of the FIFO.
        fifo: String,
        /// First tile.
        from: Tile,
        /// Last tile.
        to: Tile,
    },
    /// Circuits exist, and not enough for all.
    #[error("stream of FIFO {fifo} needs port {port} of the {tile}, which another stream uses")]
    Congested {
        /// Name of a FIFO that shares a port.
        fifo: String,
        /// Tile of the port.
        tile: Tile,
        /// The port, a master.
        port: SwitchPort,
    },
}

/// Rounds after which routing gives up if a port is still shared.
const ROUNDS: u32 = 60;
/// Cost of a port that no other flow uses.
const BASE_COST: u32 = 8;

/// A master port of a tile.
type Master = (Tile, SwitchPort);
/// A slave port of a tile.
type Slave = (Tile, SwitchPort);
/// The circuits of one flow: the slave of each of their masters.
type Tree = BTreeMap<Master, Slave>;

/// Routes the flows of a lowered design through its columns, and the tokens of its shim tiles out of the array.
///
/// # Errors
/// The FIFO that finds no way.
pub fn route(design: &Design, lowered: &Lowered) -> Result<Routes, RouteError> {
    let mut router = Router { design, lowered, history: BTreeMap::new(), users: BTreeMap::new() };
    let mut trees: Vec<Tree> = vec![Tree::new(); lowered.flows.len()];
    for round in 0.. {
        for (flow, tree) in lowered.flows.iter().zip(&mut trees) {
            for master in tree.keys() {
                *router.users.get_mut(master).expect("a routed port has a user") -= 1;
            }
            *tree = router.tree(flow)?;
            for master in tree.keys() {
                *router.users.entry(*master).or_default() += 1;
            }
        }
        let shared: Vec<Master> =
            router.users.iter().filter(|(_, users)| **users > 1).map(|(master, _)| *master).collect();
        let Some(first) = shared.first() else { break };
        if round == ROUNDS {
            let index = trees.iter().rposition(|tree| tree.contains_key(first)).expect("a shared port has users");
            let fifo = router.name(&lowered.flows[index]);
            return Err(RouteError::Congested { fifo, tile: first.0, port: first.1 });
        }
        for master in shared {
            *router.history.entry(master).or_default() += BASE_COST / 2;
        }
    }
    let mut routes = Routes::new();
    for ((tile, master), (_, slave)) in trees.into_iter().flatten() {
        routes.entry(tile).or_default().insert(master, slave);
    }
    let [slave, master] = SHIM_TOKENS;
    for (tile, switch) in &mut routes {
        if tile.kind() == TileKind::Shim {
            switch.insert(master, slave);
        }
    }
    Ok(routes)
}

struct Router<'d> {
    design: &'d Design,
    lowered: &'d Lowered,
    /// What was added to a port's cost in earlier rounds.
    history: BTreeMap<Master, u32>,
    /// Number of flows that use a port.
    users: BTreeMap<Master, u32>,
}

impl Router<'_> {
    fn name(&self, flow: &Flow) -> String {
        self.design.fifo(flow.fifo).name.clone()
    }

    /// The circuits of a flow, destination by destination in its order, each from the nearest port that they already pass.
    fn tree(&self, flow: &Flow) -> Result<Tree, RouteError> {
        let end = |id: ChannelId| {
            let channel = &self.lowered.channels[id.0];
            let tile = channel.tile;
            let port = port_of_channel(channel).filter(|_| tile.col < self.design.columns);
            let port = port.ok_or_else(|| RouteError::Channel { fifo: self.name(flow), tile })?;
            Ok((tile, port))
        };
        let from = end(flow.from)?;
        let (mut tree, mut reached) = (Tree::new(), vec![from]);
        for to in &flow.to {
            let to = end(*to)?;
            let Some(path) = self.path(&reached, to, &tree) else {
                return Err(RouteError::NoWay { fifo: self.name(flow), from: from.0, to: to.0 });
            };
            for (master, slave) in path {
                reached.extend(far_end(master.0, master.1, self.design.columns));
                tree.insert(master, slave);
            }
        }
        Ok(tree)
    }

    /// The path of the lowest cost from one of `starts` to the master `to`, with each master's slave. Masters of `own` are taken.
    fn path(&self, starts: &[Slave], to: Master, own: &Tree) -> Option<Vec<(Master, Slave)>> {
        let mut costs: BTreeMap<Slave, u32> = starts.iter().map(|slave| (*slave, 0)).collect();
        let mut queue: BinaryHeap<Reverse<(u32, Slave)>> = starts.iter().map(|slave| Reverse((0, *slave))).collect();
        // The master and slave by which each slave was reached.
        let mut before: BTreeMap<Slave, (Master, Slave)> = BTreeMap::new();
        while let Some(Reverse((cost, slave))) = queue.pop() {
            if cost > costs[&slave] {
                continue;
            }
            let (tile, port) = slave;
            if tile == to.0 && connects(tile.kind(), port, to.1) && !own.contains_key(&to) {
                let mut path = vec![(to, slave)];
                let mut at = slave;
                while let Some((master, slave)) = before.get(&at) {
                    path.push((*master, *slave));
                    at = *slave;
                }
                return Some(path);
            }
            for master in ports(tile.kind(), Side::Master) {
                let step = (tile, master);
                if own.contains_key(&step) || !connects(tile.kind(), port, master) {
                    continue;
                }
                let Some(next) = far_end(tile, master, self.design.columns) else { continue };
                let cost = cost + self.cost(&step);
                if costs.get(&next).is_none_or(|known| cost < *known) {
                    costs.insert(next, cost);
                    before.insert(next, (step, slave));
                    queue.push(Reverse((cost, next)));
                }
            }
        }
        None
    }

    fn cost(&self, master: &Master) -> u32 {
        let of = |costs: &BTreeMap<Master, u32>| costs.get(master).copied().unwrap_or_default();
        (BASE_COST + of(&self.history)) * (1 + of(&self.users))
    }
}
