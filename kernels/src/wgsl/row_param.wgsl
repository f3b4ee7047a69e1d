// The parameter of row `row` of a tile, from the word of its block's parameters that has it.
fn row_param(word: u32, row: u32) -> u32 {
//#if WIDE
    return word;
//#else
    return (word >> (16u * (row & 1u))) & 0xffffu;
//#endif
}
