// The choice of a row's experts by a workgroup of WORKGROUP lanes, from what `router_logit(row, expert)` of the kernel returns; drawn in
// kernels/src/route/mod.rs. An expert's place is the number of those before it: every lane counts for its own experts, and no sorting waits.

// What experts are chosen by, and their logits, four at a time; behind the last expert stands what is never chosen.
var<workgroup> ranks: array<vec4<f32>, ROUTED_QUADS>;
//#if LOGITS_APART
var<workgroup> logits: array<vec4<f32>, ROUTED_QUADS>;
//#endif
//#if GROUPED
var<workgroup> group_sums: array<f32, ROUTED_GROUPS>;
//#endif
var<workgroup> chosen_experts: array<u32, ROUTED_CHOSEN>;
var<workgroup> chosen_shares: array<f32, ROUTED_CHOSEN>;

//#if SIGMOID || SHARED_GATE
fn score_of(logit: f32) -> f32 {
    return 1.0 / (1.0 + exp(-logit));
}
//#endif

// 1 for each of the quad's experts that comes before this one.
fn ranked_before(quad: u32, rank: f32, expert: u32) -> vec4<u32> {
    let others = ranks[quad];
    let is_first = vec4<u32>(4u * quad) + vec4<u32>(0u, 1u, 2u, 3u) < vec4<u32>(expert);
    return select(vec4<u32>(0u), vec4<u32>(1u), (others > vec4(rank)) | ((others == vec4(rank)) & is_first));
}

//#if GROUPED
// Lowers the ranks of experts whose group is not kept. A group's place is the number of those before it, as an expert's is.
fn keep_groups(lane: u32) {
    for (var group = lane; group < ROUTED_GROUPS; group += WORKGROUP) {
        var best = LOWEST;
        var second = LOWEST;
        for (var expert = group * GROUP_EXPERTS; expert < (group + 1u) * GROUP_EXPERTS; expert++) {
            let rank = ranks[expert / 4u][expert % 4u];
            second = max(second, min(best, rank));
            best = max(best, rank);
        }
//#if BEST_OF_TWO
        group_sums[group] = best + second;
//#else
        group_sums[group] = best;
//#endif
    }
    workgroupBarrier();
    for (var expert = lane; expert < ROUTED_EXPERTS; expert += WORKGROUP) {
        let group = expert / GROUP_EXPERTS;
        let sum = group_sums[group];
        var before = 0u;
        for (var other = 0u; other < ROUTED_GROUPS; other++) {
            let theirs = group_sums[other];
            before += select(0u, 1u, theirs > sum || (theirs == sum && other < group));
        }
        if (before >= GROUPS_KEPT) {
            ranks[expert / 4u][expert % 4u] = LOWEST;
        }
    }
    workgroupBarrier();
}
//#endif

// Called by all lanes together.
fn choose_experts(row: u32, lane: u32) {
//#if SHARED_GATE
    // At the same time as the others.
    let shared_logit = router_logit(row, ROUTED_EXPERTS);
//#endif
    for (var expert = lane; expert < 4u * ROUTED_QUADS; expert += WORKGROUP) {
        let logit = router_logit(row, min(expert, ROUTED_EXPERTS - 1u));
//#if LOGITS_APART
        logits[expert / 4u][expert % 4u] = select(LOWEST, logit, expert < ROUTED_EXPERTS);
//#endif
//#if CHOICE_BIAS
        let rank = score_of(logit) + choice_bias[min(expert, ROUTED_EXPERTS - 1u)];
//#else
        let rank = logit;
//#endif
        ranks[expert / 4u][expert % 4u] = select(LOWEST, rank, expert < ROUTED_EXPERTS);
    }
    // Logits that are not numbers are never chosen, so that every route names an expert that exists.
    for (var place = lane; place < ROUTED_CHOSEN; place += WORKGROUP) {
        chosen_experts[place] = place;
        chosen_shares[place] = 0.0;
    }
//#if SHARED_EXPERTS
    for (var place = ROUTED_CHOSEN + lane; place < ROW_ROUTES; place += WORKGROUP) {
        routes[row * MADE_ROUTES_STRIDE + place] = ROUTED_EXPERTS + place - ROUTED_CHOSEN;
//#if SHARED_GATE
        let weight = score_of(shared_logit);
//#else
        let weight = 1.0;
//#endif
        routes[row * MADE_ROUTES_STRIDE + ROW_ROUTES + place] = bitcast<u32>(weight);
    }
//#endif
    workgroupBarrier();
//#if GROUPED
    keep_groups(lane);
//#endif
//#if !SIGMOID
    var highest = ${LOGITS}[0];
    for (var quad = 0u; quad < ROUTED_QUADS; quad += ${ROUTED_TOGETHER}u) {
//#for i in 0..ROUTED_TOGETHER
        highest = max(highest, ${LOGITS}[quad + ${i}u]);
//#end
    }
    let most = max(max(highest.x, highest.y), max(highest.z, highest.w));
//#endif
    for (var expert = lane; expert < ROUTED_EXPERTS; expert += WORKGROUP) {
        let rank = ranks[expert / 4u][expert % 4u];
        var before = vec4<u32>(0u);
        for (var quad = 0u; quad < ROUTED_QUADS; quad += ${ROUTED_TOGETHER}u) {
//#for i in 0..ROUTED_TOGETHER
            before += ranked_before(quad + ${i}u, rank, expert);
//#end
        }
        let place = before.x + before.y + before.z + before.w;
        if (place < ROUTED_CHOSEN) {
            chosen_experts[place] = expert;
//#if LOGITS_APART
            let logit = logits[expert / 4u][expert % 4u];
//#else
            let logit = rank;
//#endif
//#if SIGMOID
            chosen_shares[place] = score_of(logit);
//#else
            chosen_shares[place] = exp(logit - most);
//#endif
        }
    }
    workgroupBarrier();
//#if NORMALIZED
    var total = 0.0;
    for (var place = 0u; place < ROUTED_CHOSEN; place++) {
        total += chosen_shares[place];
    }
//#else if SIGMOID
    let total = 1.0;
//#else
    var totals = vec4<f32>(0.0);
    for (var quad = 0u; quad < ROUTED_QUADS; quad += ${ROUTED_TOGETHER}u) {
//#for i in 0..ROUTED_TOGETHER
        totals += exp(${LOGITS}[quad + ${i}u] - vec4(most));
//#end
    }
    let total = totals.x + totals.y + totals.z + totals.w;
//#endif
    for (var place = lane; place < ROUTED_CHOSEN; place += WORKGROUP) {
        routes[row * MADE_ROUTES_STRIDE + place] = chosen_experts[place];
//#if SCALED
        let weight = chosen_shares[place] / total * ROUTE_FACTOR * expert_scale[chosen_experts[place]];
//#else
        let weight = chosen_shares[place] / total * ROUTE_FACTOR;
//#endif
        routes[row * MADE_ROUTES_STRIDE + ROW_ROUTES + place] = bitcast<u32>(weight);
    }
}
