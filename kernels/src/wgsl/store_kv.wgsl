// Puts a token's K and V into the paged cache.

// A vector as the cache holds it: the chunk of this lane, of lanes below CHUNKS.
struct Packed {
    words: vec4<u32>,
    scale: f32,
}

//#if STORE_KEYS
// `head` is a head of a page, as `head_of_page` gives it.
fn store_key(key: Packed, head: u32, slot: u32, lane: u32) {
    if (lane < CHUNKS) {
        keys[key_at(head, slot, lane)] = key.words;
    }
//#if KV_INT8
    if (lane == 0u) {
        keys[scale_at(head, slot)][slot % 4u] = bitcast<u32>(key.scale);
    }
//#endif
}
//#endif

//#if STORE_LATENT
fn store_latent(vector: Packed, head: u32, slot: u32, lane: u32) {
    if (lane < PAGE_CHUNKS) {
        keys[key_at(head, slot, lane)] = vector.words;
    } else if (lane < CHUNKS) {
        values[key_at(head, slot, lane - PAGE_CHUNKS)] = vector.words;
    }
//#if KV_INT8
    if (lane == 0u) {
        keys[scale_at(head, slot)][slot % 4u] = bitcast<u32>(vector.scale);
    }
//#endif
}
//#endif

//#if STORE_VALUES
fn store_value(value: Packed, head: u32, slot: u32, lane: u32) {
    if (lane < CHUNKS) {
        values[value_at(head, slot, lane)] = value.words;
    }
//#if KV_INT8
    if (lane == 0u) {
        values[scale_at(head, slot)][slot % 4u] = bitcast<u32>(value.scale);
    }
//#endif
}
//#endif
