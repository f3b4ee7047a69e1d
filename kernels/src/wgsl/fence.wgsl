// What one lane says to other workgroups, and hears of them, between storage barriers: for all lanes of its own. There
// `storageBarrier` is of the workgroup alone (shaders-gen/src/fences.rs).
fn fence() {
    textureBarrier();
}
