//! SPIR-V with changed words and right hashes: a driver never reads what breaks a rule.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tests::mutated_module::{load_and_run, with_module};
use tests::mutated_plan::{Refused, load_and_run_artifact};
use unicorn_artifact::ArtifactView;
use unicorn_artifact::spirv::{Limits, check};
use unicorn_runtime::{LoadError, validation_messages};

/// Opcodes that every kernel has, from section 3.52 of the `SPIR-V Specification`.
mod op {
    pub const ENTRY_POINT: u16 = 15;
    pub const EXECUTION_MODE: u16 = 16;
    pub const CAPABILITY: u16 = 17;
    pub const TYPE_FLOAT: u16 = 22;
    pub const VARIABLE: u16 = 59;
    pub const LOAD: u16 = 61;
    pub const STORE: u16 = 62;
    pub const ACCESS_CHAIN: u16 = 65;
    pub const DECORATE: u16 = 71;
    pub const I_ADD: u16 = 128;
    pub const F_ADD: u16 = 129;
    pub const SELECTION_MERGE: u16 = 247;
    pub const LABEL: u16 = 248;
    pub const BRANCH: u16 = 249;
}

/// Index of the first instruction with this opcode.
fn first(words: &[u32], opcode: u16) -> usize {
    let mut at = 5;
    while words[at] as u16 != opcode {
        at += (words[at] >> 16) as usize;
    }
    at
}

fn last_store(words: &[u32]) -> usize {
    let (mut at, mut last) = (5, 0);
    while at < words.len() {
        if words[at] as u16 == op::STORE {
            last = at;
        }
        at += (words[at] >> 16) as usize;
    }
    last
}

#[test]
fn each_broken_rule_is_reported_with_its_name() {
    type Change = fn(&mut Vec<u32>);
    let cases: [(&str, Change); 21] = [
        ("SPIR-V 1.3", |words| words[1] = 0x0001_0600),
        ("a bound of ids", |words| words[3] = u32::MAX),
        ("below", |words| words[3] = 9),
        ("ends in the module, found 0 words", |words| words[5] &= 0xffff),
        ("ends in the module, found 65535 words", |words| words[5] |= 0xffff_0000),
        ("an instruction that kernels use, found number 400", |words| {
            let at = first(words, op::I_ADD);
            words[at] = words[at] & 0xffff_0000 | 400;
        }),
        ("a capability of the module's record, found number 6", |words| {
            let at = first(words, op::CAPABILITY);
            words[at + 1] = 6;
        }),
        ("one compute kernel named main", |words| {
            let at = first(words, op::ENTRY_POINT);
            words[at + 3] = u32::from_le_bytes(*b"mine");
        }),
        ("as many invocations as in its record", |words| {
            let at = first(words, op::EXECUTION_MODE);
            words[at + 3] += 1;
        }),
        ("a binding of its pipeline", |words| {
            let binding = |at: &usize| words[*at] as u16 == op::DECORATE && words[at + 2] == 33;
            let at = (5..words.len()).find(binding).expect("a buffer");
            words[at + 3] = 16;
        }),
        ("a decoration that kernels use", |words| {
            let at = first(words, op::DECORATE);
            words[at + 2] = 5000;
        }),
        ("floats of a width of the module's record", |words| {
            let at = first(words, op::TYPE_FLOAT);
            words[at + 2] = 16;
        }),
        ("a pointer to the variable's storage class", |words| {
            let at = first(words, op::VARIABLE);
            words[at + 3] ^= 1;
        }),
        ("a value", |words| {
            let at = first(words, op::LOAD);
            words[at + 3] = words[at + 1];
        }),
        ("a new id", |words| {
            let at = first(words, op::LOAD);
            words[at + 2] = words[at + 3];
        }),
        ("an id that is defined before", |words| {
            let at = first(words, op::LOAD);
            words[at + 3] = words[3] - 1;
        }),
        ("operands that match the result", |words| {
            let (at, chain) = (last_store(words), first(words, op::ACCESS_CHAIN));
            words[at + 1] = words[chain + 3];
        }),
        ("a result of another kind", |words| {
            let at = first(words, op::I_ADD);
            words[at] = words[at] & 0xffff_0000 | u32::from(op::F_ADD);
        }),
        ("a label of the same function", |words| {
            let at = first(words, op::BRANCH);
            words[at + 1] = words[at + 1].wrapping_add(1 << 20);
        }),
        ("no branch to a function's first block", |words| {
            let (at, label) = (first(words, op::BRANCH), first(words, op::LABEL));
            words[at + 1] = words[label + 1];
        }),
        ("a label of the same function", |words| {
            let at = first(words, op::SELECTION_MERGE);
            words[at + 1] = words[at + 1].wrapping_sub(1 << 20);
        }),
    ];
    for (expected, change) in cases {
        let artifact = with_module(0, change);
        let view = ArtifactView::parse(&artifact).expect("its hashes are right");
        let target = &view.kernels.targets[0];
        let pipeline = target.pipelines.iter().find(|pipeline| pipeline.module == 0).expect("a kernel");
        let limits = Limits {
            needs: &target.modules.records[0].needs,
            bindings: pipeline.bindings,
            writable: u32::MAX,
            shared_memory_bytes: target.matches.shared_memory_bytes,
        };
        let error = check(&target.modules.unpack_all().expect("frames")[0], &limits).expect_err(expected).to_string();
        assert!(error.contains("SPIR-V module, word ") && error.contains(expected), "{expected}: {error}");
    }
}

#[test]
fn a_changed_module_is_refused_by_its_kernels_name() {
    let artifact = with_module(0, |words| words[3] = u32::MAX);
    let Err(Refused::Load(error)) = load_and_run_artifact(&artifact) else { panic!("a bound of 4 billion ids") };
    let text = error.to_string();
    assert!(text.starts_with("kernel ") && text.contains("target generic") && text.contains("bound of ids"), "{text}");
}

/// One of three changed words nearly always breaks a rule. If none does, the result is another kernel, which runs: it may compute
/// anything, but the driver must not crash. The fuzz target `module` tries more.
#[test]
fn three_changed_words_are_refused_or_are_another_kernel() {
    load_and_run(&[]).unwrap_or_else(|error| panic!("the sound artifact: {error:?}"));
    let mut random = StdRng::seed_from_u64(22);
    let (mut refused, mut accepted) = (0, 0);
    for _ in 0..CASES {
        let mut mutation = [0; 13];
        random.fill(&mut mutation);
        match load_and_run(&mutation) {
            Err(Refused::Load(LoadError::Pipeline { source, .. })) if matches!(*source, LoadError::Modules { .. }) => {
                refused += 1;
            }
            Err(Refused::Load(LoadError::Modules { .. })) => refused += 1,
            _ => accepted += 1,
        }
    }
    println!("{refused} refused, {accepted} accepted");
    assert!(refused >= CASES * 9 / 10, "{refused} of {CASES} refused");
    assert_eq!(validation_messages(), 0, "the validation layer reported messages");
}

const CASES: usize = 200;
