// Dispatches that follow one another without a barrier; drawn in kernels/src/counter_sync.rs.
//#intrinsic device_fence
//#intrinsic workgroup_and_storage_barrier

${COUNTER_WAIT}
var<immediate> counter: CounterWait;

// Called by all lanes before anything is read that an earlier dispatch of the step wrote.
fn await_dispatch(lane: u32) {
    if (lane == 0u) {
        var counted = atomicLoad(&sync_counters[0]);
        for (var polls = 0u; counted < counter.waits_for && polls < MAX_POLLS; polls++) {
            counted = atomicLoad(&sync_counters[0]);
        }
        if (counted < counter.waits_for) {
            atomicStore(&sync_counters[SLOT_WORDS + 1u], 1u);
        }
        // Makes visible what was written before the count.
        device_fence();
    }
    workgroup_and_storage_barrier();
}

// Called by all lanes when the workgroup has written all that it writes.
fn count_workgroup(lane: u32) {
    workgroup_and_storage_barrier();
    if (lane == 0u) {
        device_fence();
        if (atomicAdd(&sync_counters[SLOT_WORDS], 1u) + 1u == counter.workgroups) {
            // Every workgroup of this dispatch has seen the count of the one before.
            atomicStore(&sync_counters[0], 0u);
            if (counter.ends == 1u) {
                atomicStore(&sync_counters[SLOT_WORDS], 0u);
            }
        }
    }
}
