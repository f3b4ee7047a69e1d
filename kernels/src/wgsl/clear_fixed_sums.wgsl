// Zeroes the sums that the dispatch behind this one adds to; for one workgroup, of WORKGROUP lanes. Drawn in kernels/src/fixed_sums.rs.
fn clear_fixed_sums(lane: u32) {
    for (var quad = lane; quad < CLEARED_QUADS; quad += WORKGROUP) {
        cleared_fixed_sums[quad] = vec4<i64>();
    }
}
