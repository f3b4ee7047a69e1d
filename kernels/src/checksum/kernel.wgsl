// One workgroup a subtree, one lane a chunk. Rows of the state are quads, so that a line mixes four columns.
${DECLARATIONS}

struct Value {
    low: vec4<u32>,
    high: vec4<u32>,
}

struct Message {
    a: vec4<u32>,
    b: vec4<u32>,
    c: vec4<u32>,
    d: vec4<u32>,
}

struct State {
    a: vec4<u32>,
    b: vec4<u32>,
    c: vec4<u32>,
    d: vec4<u32>,
}

// Not of structs: those of workgroup memory must not carry the layout that naga gives them.
var<workgroup> lows: array<vec4<u32>, LANES>;
var<workgroup> highs: array<vec4<u32>, LANES>;

fn kept(lane: u32) -> Value {
    return Value(lows[lane], highs[lane]);
}

fn keep(lane: u32, value: Value) {
    lows[lane] = value.low;
    highs[lane] = value.high;
}

@compute @workgroup_size(${LANES})
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let first_chunk = hashed_range.x;
    let len_bytes = hashed_range.y;
    let is_root = hashed_range.z == 1u;
    let chunks_left = (len_bytes + CHUNK_BYTES - 1u) / CHUNK_BYTES - group.x * LANES;
    var count = min(LANES, chunks_left);
    let chunk = group.x * LANES + lane;
    if (lane < count) {
        let flags = select(0u, ROOT, is_root && count == 1u);
        keep(lane, hash_chunk(chunk * CHUNK_BYTES, len_bytes, first_chunk + chunk, flags));
    }
    workgroupBarrier();
    // Neighbours join; an unpaired one moves up one level.
    while (count > 1u) {
        let pairs = count / 2u;
        var joined: Value;
        if (lane < pairs) {
            let left = kept(2u * lane);
            let right = kept(2u * lane + 1u);
            let flags = PARENT | select(0u, ROOT, is_root && count == 2u);
            let message = Message(left.low, left.high, right.low, right.high);
            joined = compress(Value(vec4<u32>(${IV_0}u, ${IV_1}u, ${IV_2}u, ${IV_3}u), vec4<u32>(${IV_4}u, ${IV_5}u, ${IV_6}u, ${IV_7}u)), message, 0u, BLOCK_BYTES, flags);
        } else if (lane == pairs && count % 2u == 1u) {
            joined = kept(count - 1u);
        }
        workgroupBarrier();
        count = (count + 1u) / 2u;
        if (lane < count) {
            keep(lane, joined);
        }
        workgroupBarrier();
    }
    if (lane == 0u) {
        hashes[2u * group.x] = lows[0];
        hashes[2u * group.x + 1u] = highs[0];
    }
}

fn hash_chunk(begin: u32, range_end: u32, number: u32, root: u32) -> Value {
    let end = min(begin + CHUNK_BYTES, range_end);
    var value = Value(vec4<u32>(${IV_0}u, ${IV_1}u, ${IV_2}u, ${IV_3}u), vec4<u32>(${IV_4}u, ${IV_5}u, ${IV_6}u, ${IV_7}u));
    var flags = CHUNK_START;
    for (var at = begin; at < end; at += BLOCK_BYTES) {
        let block_bytes = min(BLOCK_BYTES, end - at);
        let quad = at / 16u;
        var message = Message(weights[quad], weights[quad + 1u], weights[quad + 2u], weights[quad + 3u]);
        if (block_bytes < BLOCK_BYTES) {
            message = Message(
                padded(message.a, block_bytes, 0u),
                padded(message.b, block_bytes, 16u),
                padded(message.c, block_bytes, 32u),
                padded(message.d, block_bytes, 48u),
            );
        }
        if (at + BLOCK_BYTES >= end) {
            flags |= CHUNK_END | root;
        }
        value = compress(value, message, number, block_bytes, flags);
        flags = 0u;
    }
    return value;
}

// Zeros for what lies behind the first `len_bytes` of the block, whose byte `at` the quad begins with.
fn padded(quad: vec4<u32>, len_bytes: u32, at: u32) -> vec4<u32> {
    let begin = vec4<u32>(at) + vec4<u32>(0u, 4u, 8u, 12u);
    let bytes = min(max(vec4<u32>(len_bytes), begin) - begin, vec4<u32>(4u));
    let some = (vec4<u32>(1u) << (8u * (bytes % vec4<u32>(4u)))) - vec4<u32>(1u);
    return quad & select(some, vec4<u32>(0xffffffffu), bytes == vec4<u32>(4u));
}

fn compress(value: Value, block: Message, counter: u32, len_bytes: u32, flags: u32) -> Value {
    var m = block;
    var v = State(value.low, value.high, vec4<u32>(${IV_0}u, ${IV_1}u, ${IV_2}u, ${IV_3}u), vec4<u32>(counter, 0u, len_bytes, flags));
    for (var round = 0u; round < 7u; round++) {
        v = mix(v, vec4<u32>(m.a.xz, m.b.xz), vec4<u32>(m.a.yw, m.b.yw));
        v = State(v.a, v.b.yzwx, v.c.zwxy, v.d.wxyz);
        v = mix(v, vec4<u32>(m.c.xz, m.d.xz), vec4<u32>(m.c.yw, m.d.yw));
        v = State(v.a, v.b.wxyz, v.c.zwxy, v.d.yzwx);
        m = Message(
            vec4<u32>(m.a.z, m.b.z, m.a.w, m.c.z),
            vec4<u32>(m.b.w, m.a.x, m.b.x, m.d.y),
            vec4<u32>(m.a.y, m.c.w, m.d.x, m.b.y),
            vec4<u32>(m.c.y, m.d.z, m.d.w, m.c.x),
        );
    }
    return Value(v.a ^ v.c, v.b ^ v.d);
}

fn mix(state: State, x: vec4<u32>, y: vec4<u32>) -> State {
    var v = state;
    v.a = v.a + v.b + x;
    v.d = rotated(v.d ^ v.a, 16u);
    v.c = v.c + v.d;
    v.b = rotated(v.b ^ v.c, 12u);
    v.a = v.a + v.b + y;
    v.d = rotated(v.d ^ v.a, 8u);
    v.c = v.c + v.d;
    v.b = rotated(v.b ^ v.c, 7u);
    return v;
}

fn rotated(words: vec4<u32>, right: u32) -> vec4<u32> {
    return (words >> vec4<u32>(right)) | (words << vec4<u32>(32u - right));
}
