// One lane an element of a patch's row.
${DECLARATIONS}
//#include patch_place

// Position on the learned grid of patch `index` of `count`.
fn grid_place(index: u32, count: u32) -> f32 {
    return f32(index) * f32(POSITIONS - 1u) / f32(max(count, 2u) - 1u);
}

@compute @workgroup_size(${WORKGROUP})
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = group.y;
    let column = group.x * WORKGROUP + lane;
    if (row >= ${ROWS} || column >= WIDTH) {
        return;
    }
    let place = patch_place(row);
    let count = patch_counts();
    let right = grid_place(place.x, count.x);
    let down = grid_place(place.y, count.y);
    let first = vec2<u32>(u32(right), u32(down));
    let second = min(first + 1u, vec2<u32>(POSITIONS - 1u));
    let share = vec2<f32>(right - f32(first.x), down - f32(first.y));
    let above = mix(learned(first.x, first.y, column), learned(second.x, first.y, column), share.x);
    let below = mix(learned(first.x, second.y, column), learned(second.x, second.y, column), share.x);
    output[row * STRIDE + column] = input[row * STRIDE + column] + mix(above, below, share.y);
}

fn learned(right: u32, down: u32, column: u32) -> f32 {
    return bias[(down * POSITIONS + right) * WIDTH + column];
}
