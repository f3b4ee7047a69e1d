// Sum and maximum over a workgroup of WORKGROUP lanes; every lane gets the result. Called in uniform control flow.
//#if SUBGROUPS
const REDUCE_PARTS: u32 = WORKGROUP / SUBGROUP;
//#else
const REDUCE_PARTS: u32 = WORKGROUP;
//#endif
var<workgroup> reduce_parts: array<f32, REDUCE_PARTS>;

fn workgroup_sum(value: f32, lane: u32) -> f32 {
//#if SUBGROUPS
    let part = subgroupAdd(value);
    if (lane % SUBGROUP == 0u) {
        reduce_parts[lane / SUBGROUP] = part;
    }
//#else
    reduce_parts[lane] = value;
//#endif
    workgroupBarrier();
    var total = 0.0;
    for (var i = 0u; i < REDUCE_PARTS; i++) {
        total += reduce_parts[i];
    }
    workgroupBarrier();
    return total;
}

fn workgroup_max(value: f32, lane: u32) -> f32 {
//#if SUBGROUPS
    let part = subgroupMax(value);
    if (lane % SUBGROUP == 0u) {
        reduce_parts[lane / SUBGROUP] = part;
    }
//#else
    reduce_parts[lane] = value;
//#endif
    workgroupBarrier();
    var largest = reduce_parts[0];
    for (var i = 1u; i < REDUCE_PARTS; i++) {
        largest = max(largest, reduce_parts[i]);
    }
    workgroupBarrier();
    return largest;
}
