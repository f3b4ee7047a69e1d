//! Whether `selftest` has checked the kernels with the drivers of this machine.

use super::findings::{Finding, Verdict};
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
