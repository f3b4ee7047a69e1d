// Places in the paged KV cache, in words of 16 bytes; pages are drawn in kernels/src/cache.rs.

// First entry of the block table of a row's sequence.
fn table_of(row: u32) -> u32 {
    return (KV_GROUP * step.header.table_slots + step.rows[row].sequence) * step.header.table_stride;
}

// A head of the page that holds `token`.
fn head_of_page(table: u32, token: u32, kv_head: u32) -> u32 {
    return (step.tables[table + token / PAGE_TOKENS] * KV_HEADS + kv_head) * HEAD_WORDS;
}

fn key_at(head: u32, slot: u32, chunk: u32) -> u32 {
    return head + chunk * PAGE_TOKENS + slot;
}

fn value_at(head: u32, slot: u32, chunk: u32) -> u32 {
    return head + slot * PAGE_CHUNKS + chunk;
}

//#if KV_INT8
//#include int8

// The word that holds a token's scale, as its lane slot % 4.
fn scale_at(head: u32, slot: u32) -> u32 {
    return head + PAGE_CHUNKS * PAGE_TOKENS + slot / 4u;
}
//#endif

// `let NAME = SCALE values`: four dimensions, those of quad QUAD, of the word WORD of a key or value, without the word's scale.
//#macro unpack_cached(name, scale, word, quad)
//#if KV_INT8
let ${name} = ${scale}int8_codes(${word}.${"xyzw"[quad]});
//#else
//#let low = "xyzw"[2 * quad]
//#let high = "xyzw"[2 * quad + 1]
let ${name} = ${scale}vec4<f32>(unpack2x16float(${word}.${low}), unpack2x16float(${word}.${high}));
//#endif
//#end
