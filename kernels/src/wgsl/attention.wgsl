// One workgroup a KV head and ROWS rows: QUERIES = ROWS * HEADS query vectors, carried through tiles of TILE cached tokens.
${DECLARATIONS}
//#if SOFTCAP
//#include tanh
//#endif

// Of a masked score: exp(MASKED - m) is 0 for every m that occurs.
const MASKED: f32 = -1e30;

var<workgroup> queries: array<vec2<f32>, QUERIES * PAIRS>;
// Scores, then their exponentials.
var<workgroup> scores: array<f32, QUERIES * TILE>;
var<workgroup> greatest: array<f32, QUERIES>;
var<workgroup> rescale: array<f32, QUERIES>;
var<workgroup> total: array<f32, QUERIES>;
//#if SHARED_PAIRS
var<workgroup> shares: array<vec2<f32>, TILE>;
//#endif

fn position_of(query: u32, first_row: u32) -> u32 {
    return step.rows[min(first_row + query / HEADS, step.header.n_rows - 1u)].position;
}

fn visible_score(query: u32, score: f32, token: u32, first_row: u32) -> f32 {
    let position = position_of(query, first_row);
//#if WINDOWED
    let visible = token <= position && token + WINDOW > position;
//#else
    let visible = token <= position;
//#endif
//#if SOFTCAP
    return select(MASKED, CAP * bounded_tanh(score / CAP), visible);
//#else
    return select(MASKED, score, visible);
//#endif
}

fn page_of(first_row: u32, token: u32) -> u32 {
    let table = (KV_GROUP * step.header.table_slots + step.rows[first_row].sequence) * step.header.table_stride;
    return step.tables[table + token / PAGE_TOKENS];
}

fn store(lane: u32, query: u32, part: u32, mixed: vec2<f32>, first_row: u32) {
    let row = first_row + query / HEADS;
    var sum = mixed;
//#if SHARED_PAIRS
    shares[lane] = mixed;
    workgroupBarrier();
    if (lane < PAIRS) {
        for (var share = 1u; share < TOKEN_SHARES; share++) {
            sum += shares[lane + share * PAIRS];
        }
    }
    workgroupBarrier();
//#endif
    let pair = lane + part * TILE;
    if (pair < PAIRS && row < step.header.n_rows) {
        let at = row * OUTPUT_STRIDE + head_of(query) * HEAD_DIM + 2u * pair;
        let scaled = sum / total[query];
        output[at] = scaled.x;
        output[at + 1u] = scaled.y;
    }
}

var<private> kv_head: u32;
var<private> first_head: u32;

fn head_of(query: u32) -> u32 {
    return first_head + query % HEADS;
}

@compute @workgroup_size(${WORKGROUP_SIZE})
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let first_row = group.y * ROWS;
    if (first_row >= step.header.n_rows) {
        return;
    }
    first_head = group.x * HEADS;
    kv_head = first_head / GQA;
    for (var i = lane; i < QUERIES * PAIRS; i += TILE) {
        let query = i / PAIRS;
        // Rows past the last repeat it; nothing of them is stored.
        let row = min(first_row + query / HEADS, step.header.n_rows - 1u);
        let at = row * INPUT_STRIDE + head_of(query) * HEAD_DIM + 2u * (i % PAIRS);
        queries[i] = vec2<f32>(input[at], input[at + 1u]);
    }
    if (lane < QUERIES) {
        greatest[lane] = MASKED;
        total[lane] = 0.0;
    }
${MIX_STATE}
    // Positions grow with the rows of a sequence.
    let end = position_of(QUERIES - 1u, first_row) + 1u;
//#if WINDOWED
    let begin = max(step.rows[first_row].position + 1u, WINDOW) - WINDOW;
//#else
    let begin = 0u;
//#endif
    workgroupBarrier();
    for (var tile = begin / TILE * TILE; tile < end; tile += TILE) {
        let token = tile + lane;
        if (token >= begin && token < end) {
            let at = (page_of(first_row, token) * KV_HEADS + kv_head) * PAIRS * PAGE_TOKENS + token % PAGE_TOKENS;
${SCORE}
        } else {
            for (var q = 0u; q < QUERIES; q++) {
                scores[q * TILE + lane] = MASKED;
            }
        }
        workgroupBarrier();
        if (lane < QUERIES) {
            var most = greatest[lane];
            for (var t = 0u; t < TILE; t++) {
                most = max(most, scores[lane * TILE + t]);
            }
            rescale[lane] = exp(greatest[lane] - most);
            greatest[lane] = most;
        }
        workgroupBarrier();
        for (var q = 0u; q < QUERIES; q++) {
            let score = scores[q * TILE + lane];
            // A row that sees nothing of this tile yet has MASKED as its maximum, and weighs nothing.
            scores[q * TILE + lane] = select(exp(score - greatest[q]), 0.0, score == MASKED);
        }
        workgroupBarrier();
        if (lane < QUERIES) {
            var part = 0.0;
            for (var t = 0u; t < TILE; t++) {
                part += scores[lane * TILE + t];
            }
            total[lane] = total[lane] * rescale[lane] + part;
        }
${MIX_RESCALE}
//#if SHARED_PAIRS
        let share = lane / PAIRS;
        let pair = lane % PAIRS;
//#else
        const share = 0u;
        let pair = min(lane, PAIRS - 1u);
//#endif
        // Tokens outside begin..end may lie in pages that are no longer this sequence's.
        let first = max(tile, begin) - tile;
        let last = min(tile + TILE, end) - tile;
        for (var t = first + share; t < last; t += TOKEN_SHARES) {
            let token = tile + t;
            let at = ((page_of(first_row, token) * KV_HEADS + kv_head) * PAGE_TOKENS + token % PAGE_TOKENS) * PAIRS + pair;
${MIX}
        }
        workgroupBarrier();
    }
${STORE}
}
