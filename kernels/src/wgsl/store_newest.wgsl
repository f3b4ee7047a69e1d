// Puts the newest token's K and V of a head into their page.
//#include store_kv

fn store_newest(key: Packed, value: Packed, table: u32, position: u32, kv_head: u32, lane: u32) {
    let head = head_of_page(table, position, kv_head);
    store_key(key, head, position % PAGE_TOKENS, lane);
    store_value(value, head, position % PAGE_TOKENS, lane);
}
