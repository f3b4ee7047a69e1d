// One workgroup a row, the row in registers: a lane's elements lie WORKGROUP apart, numbered i.
${DECLARATIONS}
//#include reduce

@compute @workgroup_size(${WORKGROUP})
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = group.x;
    if (row >= ${ROWS}) {
        return;
    }
    let at = row * STRIDE;
//#for i in 0..SLOTS
    let column_${i} = lane + ${i}u * WORKGROUP;
    var x_${i} = 0.0;
    if (column_${i} < WIDTH) {
        x_${i} = input[at + column_${i}];
    }
//#end
    let mean = workgroup_sum(
//#for i in 0..SLOTS join +
        x_${i}
//#end
    , lane) / f32(WIDTH);
//#for i in 0..SLOTS
    let distance_${i} = select(0.0, x_${i} - mean, column_${i} < WIDTH);
//#end
    let scale = inverseSqrt(workgroup_sum(
//#for i in 0..SLOTS join +
        distance_${i} * distance_${i}
//#end
    , lane) / f32(WIDTH) + EPS);
//#for i in 0..SLOTS
    if (column_${i} < WIDTH) {
        output[at + column_${i}] = distance_${i} * scale * bias[column_${i}] + bias[WIDTH + column_${i}];
    }
//#end
}
