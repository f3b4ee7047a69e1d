// Where an image's patches are: SIDE × SIDE of them are a row of the step, and rows of the step are squares from left to right and from
// top to bottom, `step.header.image_across` of them side by side.

// Patches from left to right, and from top to bottom, before patch `row`.
fn patch_place(row: u32) -> vec2<u32> {
    let square = row / (SIDE * SIDE);
    let inside = row % (SIDE * SIDE);
    let across = max(step.header.image_across, 1u);
    return vec2<u32>(square % across, square / across) * SIDE + vec2<u32>(inside % SIDE, inside / SIDE);
}

// All patches from left to right, and from top to bottom.
fn patch_counts() -> vec2<u32> {
    let across = max(step.header.image_across, 1u);
    return vec2<u32>(across, step.header.n_rows / across) * SIDE;
}
