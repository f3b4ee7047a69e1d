//! SPIR-V with some words changed, in artifacts whose hashes are right, loaded and run on a device.

use unicorn_artifact::{Module, ModuleSet};

use crate::mutated_plan::{Refused, changed, load_and_run_artifact};

/// Bytes of a mutation: which word, how it changes, and by how much.
const MUTATION_BYTES: usize = 4;

/// The smallest artifact of this version, with one module, which the first of `bytes` names, changed by each [`MUTATION_BYTES`] behind
/// it, is loaded on llvmpipe, or the device that `UNICORN_DEVICE` names, and runs a prefill and a decode step.
///
/// # Errors
/// When the runtime refuses it. It must not panic, and the driver must not crash.
pub fn load_and_run(bytes: &[u8]) -> Result<(), Refused> {
    let Some((&module, mutations)) = bytes.split_first() else { return load_and_run_artifact(&changed(|_, _, _| ())) };
    load_and_run_artifact(&with_module(module.into(), |words| {
        mutations.chunks_exact(MUTATION_BYTES).for_each(|mutation| mutate(words, mutation));
    }))
}

/// The smallest artifact with one module changed; the index wraps around.
pub fn with_module(module: usize, change: impl FnOnce(&mut Vec<u32>)) -> Vec<u8> {
    changed(|_, _, kernels| {
        let set = &mut kernels.targets[0].modules;
        let mut words = set.unpack_all().expect("the compiler packed them");
        let module = module % words.len();
        change(&mut words[module]);
        let records = set.records.iter().zip(words);
        let modules: Vec<Module> =
            records.map(|(record, words)| Module { words, needs: record.needs.clone() }).collect();
        *set = ModuleSet::pack([&modules[..]]).expect("memory for zstd");
    })
}

/// Changes a word a little, to another word of the module, which may well be an id of another kind, or to any value.
fn mutate(words: &mut [u32], mutation: &[u8]) {
    let at = usize::from(u16::from_le_bytes([mutation[0], mutation[1]])) % words.len();
    let by = u32::from(mutation[3]);
    words[at] = match mutation[2] % 5 {
        0 => words[at].wrapping_add(by),
        1 => words[at].wrapping_sub(by),
        2 => words[(at + by as usize) % words.len()],
        3 => words[at] ^ 1 << (by % 32),
        _ => by.wrapping_mul(0x0101_0101),
    };
}
