// The u16 parameter of row `row` of a tile from `pair`, word row / 2 of a block's parameters.
fn row_param(pair: u32, row: u32) -> u32 {
    return (pair >> (16u * (row & 1u))) & 0xffffu;
}
