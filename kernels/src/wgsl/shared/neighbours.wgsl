// f16 in words, as matrix units take them.
fn pair_of(x: vec2<f32>) -> u32 {
    return pack2x16float(vec2<f32>(vec2<f16>(x)));
}

// Two tokens' eight dimensions, the even ones in `low`, the odd ones in `high`: the tokens are neighbours now.
struct Neighbours {
    low: vec4<u32>,
    high: vec4<u32>,
}

fn neighbours(a: vec4<u32>, b: vec4<u32>) -> Neighbours {
    let low = (a & vec4<u32>(0xffffu)) | (b << vec4<u32>(16u));
    let high = (a >> vec4<u32>(16u)) | (b & vec4<u32>(0xffff0000u));
    return Neighbours(low, high);
}
