//! Routes of all kinds of designs, followed by a walk that does not use the router's tables; and what has no routes.

mod support;

use support::walk::walk;
use support::{small, small_gemv};
use unicorn_kernels::npu::attention::{AttentionShape, AttentionTile};
use unicorn_kernels::npu::tile::Epilogue;
use unicorn_npu::design::{Design, Element, Fifo};
use unicorn_npu::device::{Tile, TileKind};
use unicorn_npu::lower::{Lowered, lower};
use unicorn_npu::route::{RouteError, Routes, Switch, route};
use unicorn_npu::switch::{Bundle, Side, ports};
use unicorn_npu::{attention, gemm};

/// GEMMs, GEMVs and attention on 1 to 4 columns.
fn designs() -> Vec<(String, Design)> {
    let tile = AttentionTile { rows: 8, keys: 16, depth: 32 };
    (1..=4)
        .flat_map(|columns| {
            [
                (format!("GEMM on {columns}"), gemm::design(&small(columns, 32, Epilogue::Scale))),
                (format!("GEMV on {columns}"), gemm::design(&small_gemv(columns, 32, Epilogue::Scale))),
                (
                    format!("attention on {columns}"),
                    attention::design(&AttentionShape::padded(4, 32, 64, columns, tile)),
                ),
            ]
        })
        .collect()
}

#[test]
fn each_stream_arrives_at_its_destinations_and_nowhere_else() {
    for (name, design) in designs() {
        let lowered = lower(&design);
        let routes = route(&design, &lowered).unwrap_or_else(|error| panic!("{name}: {error}"));
        walk(&design, &lowered, &routes).unwrap_or_else(|fault| panic!("{name}: {fault}"));
        assert_eq!(route(&design, &lowered), Ok(routes), "{name}: two runs differ");
    }
}

/// Every connection removed, taken from another slave, or led to another free master.
fn mutants(routes: &Routes) -> Vec<(String, Routes)> {
    let mut mutants = Vec::new();
    for (tile, switch) in routes {
        let mut add = |what: String, change: &dyn Fn(&mut Routes)| {
            let mut mutant = routes.clone();
            change(&mut mutant);
            mutants.push((format!("{tile}: {what}"), mutant));
        };
        for (master, slave) in switch {
            let of = |routes: &mut Routes, change: &dyn Fn(&mut Switch)| change(routes.get_mut(tile).unwrap());
            add(format!("{master} removed"), &|routes| of(routes, &|switch| _ = switch.remove(master)));
            for other in ports(tile.kind(), Side::Slave).filter(|other| other != slave) {
                let what = format!("{master} from {other} instead of {slave}");
                add(what, &|routes| of(routes, &|switch| _ = switch.insert(*master, other)));
            }
            for other in ports(tile.kind(), Side::Master).filter(|other| !switch.contains_key(other)) {
                let change = |switch: &mut Switch| {
                    switch.remove(master);
                    switch.insert(other, *slave);
                };
                add(format!("{slave} to {other} instead of {master}"), &|routes| of(routes, &change));
            }
        }
    }
    mutants
}

#[test]
fn the_walk_notices_every_wrong_connection() {
    for columns in [1, 3] {
        let design = gemm::design(&small(columns, 32, Epilogue::Scale));
        let lowered = lower(&design);
        let routes = route(&design, &lowered).unwrap();
        let mutants = mutants(&routes);
        assert!(mutants.len() > 500, "{} mutants", mutants.len());
        let survivors: Vec<&String> = mutants
            .iter()
            .filter(|(_, mutant)| walk(&design, &lowered, mutant).is_ok())
            .map(|(what, _)| what)
            .collect();
        assert!(survivors.is_empty(), "{columns} columns: {survivors:#?}");
    }
}

/// A design of nothing but FIFOs.
fn fifos(columns: u32, ends: &[(Tile, Tile)]) -> (Design, Lowered) {
    let mut design = gemm::design(&small(1, 32, Epilogue::Scale));
    let fifo = |(index, (from, to)): (usize, &(Tile, Tile))| Fifo {
        name: format!("fifo_{index}"),
        producer: *from,
        consumers: vec![*to],
        depth: 2,
        element: Element::I8,
        len: 64,
    };
    design.columns = columns;
    design.fifos = ends.iter().enumerate().map(fifo).collect();
    design.links.clear();
    let lowered = lower(&design);
    (design, lowered)
}

#[test]
fn streams_make_room_for_each_other() {
    // Between the cores of two columns a row has four wires, and memory tiles have none: six streams take two rows.
    let (design, lowered) = fifos(2, &[(Tile::memory(0), Tile::memory(1)); 6]);
    let routes = route(&design, &lowered).unwrap();
    walk(&design, &lowered, &routes).unwrap();
    let is_eastward = |tile: &Tile| routes[tile].keys().any(|master| master.bundle == Bundle::East);
    assert!(routes.keys().filter(|tile| is_eastward(tile)).count() >= 2, "{routes:?}");
}

#[test]
fn a_stream_without_a_way_is_named() {
    // A shim tile has two channels.
    let (design, lowered) = fifos(1, &[(Tile::shim(0), Tile::core(0, 0)); 3]);
    let error = route(&design, &lowered).unwrap_err();
    assert_eq!(error, RouteError::Channel { fifo: "fifo_2".into(), tile: Tile::shim(0) });
    // Another column than those of the design.
    let (design, lowered) = fifos(1, &[(Tile::core(0, 0), Tile::core(1, 0))]);
    let error = route(&design, &lowered).unwrap_err();
    assert_eq!(error, RouteError::Channel { fifo: "fifo_0".into(), tile: Tile::core(1, 0) });
    // Four wires lead down into a memory tile, five streams want to.
    let ends: Vec<(Tile, Tile)> = (0..5).map(|index| (Tile::core(0, index / 2), Tile::memory(0))).collect();
    let (design, lowered) = fifos(1, &ends);
    let error = route(&design, &lowered).unwrap_err();
    let RouteError::Congested { fifo, tile, port } = &error else { panic!("{error}") };
    assert!(fifo.starts_with("fifo_") && tile.kind() == TileKind::Core && port.bundle == Bundle::South, "{error}");
    let text = error.to_string();
    assert!(text.contains(fifo) && text.contains("needs port South") && text.contains("another stream uses"), "{text}");
}
