// Counts the elements of a cooperative matrix that lanes do not hold where kernels have them. One subgroup.
${DECLARATIONS}
//#intrinsic coop_load_half_a
//#intrinsic coop_half_b_from_lanes

var<workgroup> identity: array<vec4<u32>, SIDE * SIDE / 8>;
var<workgroup> product: array<f32, SIDE * SIDE>;

// Two numbers that follow each other, as f16: all of a fragment are f16 exactly.
fn numbers_from(first: u32) -> u32 {
    return pack2x16float(vec2<f32>(f32(first), f32(first + 1u)));
}

@compute @workgroup_size(${WORKGROUP_SIZE})
fn main(@builtin(local_invocation_index) lane: u32) {
    for (var i = lane; i < SIDE * SIDE / 8u; i += SUBGROUP) {
        let row = i / (SIDE / 8u);
        let column = i % (SIDE / 8u) * 8u;
        let pairs = vec4<u32>(column) + vec4<u32>(0u, 2u, 4u, 6u);
        let one = select(vec4<u32>(0u), vec4<u32>(0x3c00u), pairs == vec4<u32>(row));
        identity[i] = select(one, vec4<u32>(0x3c000000u), pairs + vec4<u32>(1u) == vec4<u32>(row));
    }
    let lane_row = lane / 4u;
    let place = lane % 4u;
    workgroupBarrier();
    let numbers = coop_half_b_from_lanes(array<u32, LANE_WORDS>(
//#for n in 0..LANE_WORDS join ,
        numbers_from((lane_row + ${n / ROW_PAIRS * ROWS_APART}u) * SIDE + ${8 * (n % ROW_PAIRS)}u + 2u * place)
//#end
    ));
    let one = coop_load_half_a(identity[0], SIDE / 8u);
    var same = ${MATRIX}<f32, C>();
    same = coopMultiplyAdd(one, numbers, same);
    coopStoreT(same, &product[0], SIDE);
    workgroupBarrier();
    if (lane == 0u) {
        var elsewhere = 0u;
        for (var i = 0u; i < SIDE * SIDE; i++) {
            // What is a row to the kernels is a column on the right of a product.
            let number = i % SIDE * SIDE + i / SIDE;
            elsewhere += select(0u, 1u, product[i] != f32(number));
        }
        folded[0] = elsewhere;
    }
}
