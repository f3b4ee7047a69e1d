//! Whether `selftest` has checked the kernels with the drivers of this machine, and which of an artifact's it has switched off.

use std::path::Path;

use super::findings::{Finding, Verdict};
use crate::files::corrections_file::{self, CorrectionsFile};
use crate::files::known_drivers::{self, KnownDriver, Tested};
use unicorn_runtime::{DeviceFacts, DeviceKind};

/// A finding for each GPU.
pub fn findings(devices: &[DeviceFacts]) -> Vec<Finding> {
    let gpus = devices.iter().filter(|facts| facts.kind != DeviceKind::Cpu && facts.has_memory());
    gpus.map(|facts| finding(facts, known_drivers::find(facts))).collect()
}

fn finding(facts: &DeviceFacts, known: Option<KnownDriver>) -> Finding {
    let (verdict, found) = match known.and_then(|known| known.tested) {
        Some(Tested::Right) => (Verdict::Good, "selftest found them right"),
        Some(Tested::Wrong) => (Verdict::Problem, "selftest found wrong ones"),
        None => (Verdict::Advice, "not tested"),
    };
    let change = match verdict {
        Verdict::Good => None,
        Verdict::Problem => Some("a newer or older driver, and then unicorn-run selftest ARTIFACT; report its page"),
        Verdict::Advice | Verdict::Unknown => Some("unicorn-run selftest ARTIFACT, which takes about a minute"),
    };
    Finding {
        what: "kernels".into(),
        verdict,
        found: format!("{} with {}: {found}", facts.name, facts.driver),
        expected: "kernels tested with the installed driver".into(),
        change: change.map(str::to_owned),
    }
}

/// A finding for each kind of step of an artifact, or of the draft in it, in which `selftest` has switched off a kernel.
pub fn switched_off(artifact: &Path, devices: &[DeviceFacts]) -> Vec<Finding> {
    let of_model = corrections_file::read(artifact).into_iter().map(|(file, _)| ("kernels", file));
    let of_draft = corrections_file::read(&corrections_file::of_draft(artifact)).into_iter();
    let files = of_model.chain(of_draft.map(|(file, _)| ("kernels of the draft", file)));
    files.flat_map(|(what, file)| findings_of(what, &file, devices)).collect()
}

fn findings_of(what: &str, file: &CorrectionsFile, devices: &[DeviceFacts]) -> Vec<Finding> {
    let is_here = devices.iter().any(|facts| (&facts.name, &facts.driver) == (&file.device, &file.driver));
    let (device, driver, target) = (&file.device, &file.driver, &file.target);
    let finding = |line: String| Finding {
        what: what.into(),
        verdict: if is_here { Verdict::Problem } else { Verdict::Unknown },
        found: format!("{device} with {driver}, target {target}: {line}"),
        expected: match is_here {
            true => "kernels that are right on this device".into(),
            false => "a result of selftest on a device and driver of this machine".into(),
        },
        change: Some(
            "a newer driver, and then unicorn-run selftest ARTIFACT, which uses kernels again that are right".into(),
        ),
    };
    file.lines().into_iter().map(finding).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::corrections_file::{CorrectedStep, Replacement};

    #[test]
    fn what_is_switched_off_on_another_device_is_named_with_it() {
        let step = CorrectedStep {
            rows: 64,
            batch: false,
            from_tokens: 0,
            kernels: vec!["gemm 64×64".into()],
            instead: Replacement::Target("generic".into()),
        };
        let file = CorrectionsFile {
            key: "ab".repeat(32),
            device: "Some GPU".into(),
            driver: "driver 1".into(),
            target: "rdna3".into(),
            steps: vec![step],
            images: None,
        };
        let [elsewhere] = &findings_of("kernels", &file, &[])[..] else { panic!("one step") };
        assert_eq!(elsewhere.verdict, Verdict::Unknown);
        let expected = "Some GPU with driver 1, target rdna3: prefill of 64 tokens: gemm 64×64 is switched off on this \
            device, kernels of target generic run";
        assert_eq!(elsewhere.found, expected);
    }
}
