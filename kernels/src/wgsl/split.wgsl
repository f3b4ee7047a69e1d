// Which cached tokens a split of a group of rows has; drawn in kernels/src/split.rs.
struct Span {
    begin: u32,
    end: u32,
    tiles_per_split: u32,
    // Splits that have a part; the first always is in use.
    splits: u32,
}

// Of the rows from `first_row` on that one workgroup takes; positions grow with the rows of a sequence.
fn span_of(first_row: u32) -> Span {
    let last_row = min(first_row + ROWS, ${ROWS_END}) - 1u;
//#if IMAGES
    let end = last_seen(last_row) + 1u;
//#else if NEWEST_APART
    let end = step.rows[last_row].position;
//#else
    let end = step.rows[last_row].position + 1u;
//#endif
//#if WINDOWED
    let begin = max(step.rows[first_row].position + 1u, WINDOW) - WINDOW;
//#else if FIRST_TOKEN > 0
    let begin = min(${FIRST_TOKEN}u, end);
//#else
    let begin = 0u;
//#endif
    let tiles = select(0u, (end + TILE - 1u) / TILE - begin / TILE, begin < end);
    let tiles_per_split = max((tiles + SPLITS - 1u) / SPLITS, 1u);
    return Span(begin, end, tiles_per_split, max((tiles + tiles_per_split - 1u) / tiles_per_split, 1u));
}
