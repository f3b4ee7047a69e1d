// A workgroup's tile: its expert, and where the pairs begin that it takes. Without a tile, or where the expert is in another part, it ends.
//#macro expert_of_workgroup()
    if (group.x >= expert_rows[0]) {
        return;
    }
    let tile_at = 4u + 4u * group.x;
    // Experts before the first of this part wrap to numbers past the last.
    let expert = expert_rows[tile_at] - ${FIRST_EXPERT}u;
    if (expert >= ${EXPERTS_HERE}u) {
        return;
    }
    let first_pair = ${PAIRS_AT}u + expert_rows[tile_at + 1u];
//#end
