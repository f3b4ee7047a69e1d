// Places in pages of recurrent state, in words; a page is drawn in kernels/src/recurrent_state.rs.

// Where a half of the state of a row's sequence begins.
fn state_of(row: u32) -> u32 {
    let table = (KV_GROUP * step.header.table_slots + step.rows[row].sequence) * step.header.table_stride;
    return step.tables[table] * HALF_WORDS;
}
