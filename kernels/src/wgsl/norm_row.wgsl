// Residual sum and RMS norm of one row in registers: the lane has quads of four elements, WORKGROUP apart, numbered i.

// `x_i` keeps those of `quad_i` that are columns of the row: rows are padded with whatever was there before.
//#macro keep_columns(i, value)
//#if NORM_WIDTH % 4 == 0
        x_${i} = ${value};
//#else
        x_${i} = select(vec4<f32>(0.0), ${value}, vec4<u32>(4u * quad_${i}) + vec4<u32>(0u, 1u, 2u, 3u) < vec4<u32>(${NORM_WIDTH}u));
//#endif
//#end

//#macro load_quad(i, name, place)
    var ${name}_${i} = vec4<f32>(0.0);
    if (inside_${i}) {
        ${name}_${i} = ${place}quad_${i}];
    }
//#end

// `let name`: the inverse of the root of the mean square.
//#macro inverse_rms(name)
    let ${name} = inverseSqrt(workgroup_sum(
//#for i in 0..SLOTS join +
        dot(x_${i}, x_${i})
//#end
    , lane) / ${NORM_WIDTH}f + EPS);
//#end

// Leaves the normed row in x_i, zeros past its end, of the row that begins at quad `at`. `first`: this workgroup stores the sum.
//#macro norm_row()
    // All loads are issued before the first result is used.
//#for i in 0..SLOTS
    let quad_${i} = lane + ${i * WORKGROUP}u;
    let inside_${i} = quad_${i} < ${div_ceil(NORM_WIDTH, 4)}u;
    var x_${i} = vec4<f32>(0.0);
    if (inside_${i}) {
//#if INPUT_FIXED_SUMS
//#expand keep_columns(i, "vec4<f32>(input[at + quad_${i}]) * ${INVERSE_SUM_UNIT}")
//#else
//#expand keep_columns(i, "input[at + quad_${i}]")
//#endif
    }
//#if ADD
//#expand load_quad(i, "residual", "residual[at + ")
//#endif
//#if POST_NORM
//#expand load_quad(i, "post_weight", "post_norm_weight[")
//#endif
//#if NORM_SUM
//#expand load_quad(i, "weight", "norm_weight[")
//#endif
//#end
//#if SCALE_SUM
    let sum_factor = ${SUM_FACTOR};
//#endif
//#if POST_NORM
//#expand inverse_rms("delta_scale")
//#endif
//#if ADD
//#for i in 0..SLOTS
    if (inside_${i}) {
//#if SCALE_SUM
//#expand keep_columns(i, "sum_factor * (residual_${i} + x_${i} * delta_scale * post_weight_${i})")
//#else if POST_NORM
//#expand keep_columns(i, "residual_${i} + x_${i} * delta_scale * post_weight_${i}")
//#else
//#expand keep_columns(i, "residual_${i} + x_${i}")
//#endif
//#if STORES_SUM
        if (first) {
            sum[at + quad_${i}] = x_${i};
        }
//#endif
    }
//#end
//#endif
//#if NORM_SUM
//#expand inverse_rms("scale")
//#for i in 0..SLOTS
    if (inside_${i}) {
        x_${i} *= scale * weight_${i};
    }
//#end
//#endif
//#end
