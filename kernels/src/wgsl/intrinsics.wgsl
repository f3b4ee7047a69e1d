// Operations that naga's WGSL lacks. A kernel declares those that it calls by `//#intrinsic NAME`; the pass
// `lower_intrinsics` of unicorn-spirv replaces each call by the instruction named here and removes the function. A module in which one
// of these functions is left is refused: where a body below cannot express the operation, it is never run.
//
// `${MATRIX}` is the kernel's type of cooperative matrices, such as coop_mat16x16.

// The two f16 of a word, the first in its low half: WGSL's bitcast<vec2<f16>>(word), which naga 30 does not parse.
// OpBitcast
fn bitcast_half2(word: u32) -> vec2<f16> {
    return vec2<f16>(unpack2x16float(word));
}

// The word of two f16: WGSL's bitcast<u32>(pair).
// OpBitcast
fn bitcast_word(pair: vec2<f16>) -> u32 {
    return pack2x16float(vec2<f32>(pair));
}

// A fence of this invocation, for storage buffers and the whole device: orders its accesses before against those behind, and makes
// writes available to other workgroups and theirs visible. It does not wait for other invocations.
// OpMemoryBarrier, AcquireRelease | UniformMemory, scope Device (at last QueueFamily, see `apply_vulkan_memory_model`)
fn device_fence() {
}

// workgroupBarrier() and storageBarrier() in one, at the scope of the workgroup: all its invocations arrive, and each may read what
// the others wrote to workgroup memory and to storage buffers before. (naga's own storageBarrier has the scope of the device.)
// OpControlBarrier, scope Workgroup, AcquireRelease | UniformMemory | WorkgroupMemory
fn workgroup_and_storage_barrier() {
    workgroupBarrier();
    storageBarrier();
}

// The left matrix of f16 whose rows lie in an array of vec4<u32> in workgroup memory, eight elements a vector: row i begins
// `i * stride` vectors behind `first`. The argument names the place and must be an element of the array, since naga takes no
// pointers into workgroup memory; coopLoad would make a matrix of u32 of it.
// OpCooperativeMatrixLoadKHR, RowMajorKHR
fn coop_load_half_a(first: vec4<u32>, stride: u32) -> ${MATRIX}<f16, A> {
    return ${MATRIX}<f16, A>();
}

// The same of which each column lies so.
// OpCooperativeMatrixLoadKHR, ColumnMajorKHR
fn coop_load_half_a_columns(first: vec4<u32>, stride: u32) -> ${MATRIX}<f16, A> {
    return ${MATRIX}<f16, A>();
}

// The right matrix, of which each column lies so.
// OpCooperativeMatrixLoadKHR, ColumnMajorKHR
fn coop_load_half_b(first: vec4<u32>, stride: u32) -> ${MATRIX}<f16, B> {
    return ${MATRIX}<f16, B>();
}

// The same from an array of u32, two elements each.
// OpCooperativeMatrixLoadKHR, ColumnMajorKHR
fn coop_load_half_b_u32(first: u32, stride: u32) -> ${MATRIX}<f16, B> {
    return ${MATRIX}<f16, B>();
}

// The right matrix made of what each lane has of it in registers: lane by lane, word after word, two elements each, in the
// order in which the device keeps a lane's elements. Which these are is not specified by Vulkan; see kernels/src/fragments.
// For each element OpStore to an OpAccessChain into a matrix variable, then OpLoad
fn coop_half_b_from_lanes(words: array<u32, LANE_WORDS>) -> ${MATRIX}<f16, B> {
    return ${MATRIX}<f16, B>();
}

// The product of two matrices element by element.
// OpFMul
fn coop_multiply_elements(left: ${MATRIX}<f32, C>, right: ${MATRIX}<f32, C>) -> ${MATRIX}<f32, C> {
    return ${MATRIX}<f32, C>();
}
