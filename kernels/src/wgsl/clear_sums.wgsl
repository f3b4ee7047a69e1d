// Zeroes the sums that the dispatch behind this one adds to; for one workgroup, of WORKGROUP lanes. Drawn in kernels/src/sums.rs.
fn clear_sums(lane: u32) {
    for (var quad = lane; quad < CLEARED_QUADS; quad += WORKGROUP) {
        cleared_sums[quad] = vec4<i64>();
    }
}
