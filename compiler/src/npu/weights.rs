//! Weights as NPU programs read them: quantised from the checkpoint's rows, a bounded number of tiles at a time.

use rayon::prelude::*;
use unicorn_kernels::npu::quantize::{pack_tile, source_column};

use super::NpuMatrix;
use super::products::source_of;
use crate::error::Result;
use crate::fuse::FusedGraph;
use crate::import::Checkpoint;
use crate::{Source, synthesize};

/// Tiles in memory for each thread, so that the next one is ready when a thread has finished.
const TILES_PER_THREAD: usize = 2;

/// Passes the bytes of one product's weights to `sink` in order. They are finite, because [`crate::pack`] has checked all of them.
pub fn pack(
    packed: &NpuMatrix,
    graph: &FusedGraph,
    source: Source,
    checkpoint: &Checkpoint,
    sink: &mut dyn FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    let (matrix, shape, depth) = (&graph.matrices[packed.matrix.0], &packed.shape, packed.depth);
    let tiles: Vec<usize> = (0..shape.weight_streams())
        .flat_map(|stream| (0..shape.col_tiles()).map(move |tile| shape.first_col(tile, stream)))
        .collect();
    for some in tiles.chunks(TILES_PER_THREAD * rayon::current_num_threads()) {
        let packed_tile = |first_col: &usize| {
            let mut values = vec![0.0; shape.core.cols * depth];
            for (row, col) in values.chunks_exact_mut(depth).zip(*first_col..) {
                let Some(column) = source_column(shape.core.epilogue, col, packed.cols) else { continue };
                let (part, index) = source_of(matrix, column);
                match source {
                    Source::Model(_) => checkpoint.tensors[&part.tensor].read_rows(index..index + 1, row),
                    Source::Synthetic(_) => synthesize::row(&part.tensor, index, row),
                }
            }
            pack_tile(shape, &values, depth)
        };
        let bytes: Vec<Vec<u8>> = some.par_iter().map(packed_tile).collect();
        if matches!(source, Source::Model(_)) {
            matrix.parts.iter().for_each(|part| checkpoint.tensors[&part.tensor].release());
        }
        bytes.iter().try_for_each(|tile| sink(tile))?;
    }
    Ok(())
}
