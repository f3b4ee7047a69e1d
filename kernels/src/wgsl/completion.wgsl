// Finds the last of several workgroups that each write a part of a result.
//#intrinsic device_fence
//#intrinsic workgroup_and_storage_barrier

// 16 bytes, so that arrays behind it are aligned as cooperative matrices require.
var<workgroup> completed: vec4<u32>;

// Whether this workgroup is the last of `splits` to leave its part; leaves the counter as it was before the first.
fn is_last(counter: u32, splits: u32, index: u32) -> bool {
    workgroup_and_storage_barrier();
    if (index == 0u) {
        device_fence();
        completed.x = atomicAdd(&completion_counters[counter], 1u) + 1u;
        if (completed.x == splits) {
            atomicStore(&completion_counters[counter], 0u);
        }
        device_fence();
    }
    workgroup_and_storage_barrier();
    return completed.x == splits;
}
