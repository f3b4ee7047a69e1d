//! `doctor`: checks this machine's drivers, limits and memory, and prints what to change.

use std::path::Path;

use serde::Serialize;
use unicorn_artifact::TargetKernels;

mod findings;
mod kernels;

use self::findings::{Finding, Verdict, can_run, examine};
use crate::args::DoctorArgs;
use crate::commands::devices::{TargetFit, targets_of};
use crate::error::CliError;
use crate::terminal::output::{print, print_json};
use unicorn_runtime::machine::Machine;
use unicorn_runtime::npu::probe;
use unicorn_runtime::{DeviceFacts, devices};

pub fn run(args: &DoctorArgs) -> Result<(), CliError> {
    let targets = args.artifact.as_deref().map(targets_of).transpose()?;
    let devices = devices();
    let machine = Machine::read(args.root.as_deref().unwrap_or(Path::new("/")));
    // Below another root, only files are read.
    let npu = (args.root.is_none() && !machine.npu.nodes.is_empty()).then(probe);
    let listed = devices.as_deref().unwrap_or_default();
    let switched_off = args.artifact.iter().flat_map(|artifact| kernels::switched_off(artifact, listed));
    let of_kernels = kernels::findings(listed).into_iter().chain(switched_off);
    let report = Report {
        can_run: can_run(&devices),
        findings: examine(&machine, &devices, npu.as_ref()).into_iter().chain(of_kernels).collect(),
        targets: targets.map(|targets| listed.iter().map(|facts| DeviceTargets::new(&targets, facts)).collect()),
    };
    match args.json {
        true => print_json(&report)?,
        false => print(&report.page())?,
    }
    match report.can_run {
        true => Ok(()),
        false => Err(CliError::new("no model can run here: Vulkan lists no device with memory and version 1.2")),
    }
}

/// What `--json` prints.
#[derive(Serialize)]
struct Report {
    can_run: bool,
    findings: Vec<Finding>,
    /// Present only when an artifact was named.
    #[serde(skip_serializing_if = "Option::is_none")]
    targets: Option<Vec<DeviceTargets>>,
}

/// Which of an artifact's targets fit a device.
#[derive(Serialize)]
struct DeviceTargets {
    device: String,
    targets: Vec<TargetFit>,
}

impl DeviceTargets {
    fn new(targets: &[TargetKernels], facts: &DeviceFacts) -> DeviceTargets {
        let targets = targets.iter().map(|target| TargetFit::new(target, facts)).collect();
        DeviceTargets { device: facts.name.clone(), targets }
    }
}

impl Report {
    fn page(&self) -> String {
        let mut page = String::new();
        for Finding { what, verdict, found, expected, change } in &self.findings {
            let mark = match verdict {
                Verdict::Good => "good",
                Verdict::Advice => "advice",
                Verdict::Problem => "PROBLEM",
                Verdict::Unknown => "unknown",
            };
            page += &format!("{mark:<8} {what:<24} {found}\n");
            if *verdict != Verdict::Good {
                page += &format!("{:<33} expected: {expected}\n", "");
            }
            if let Some(change) = change {
                page += &format!("{:<33} change:   {change}\n", "");
            }
        }
        for DeviceTargets { device, targets } in self.targets.iter().flatten() {
            page += &format!("targets for {device}\n");
            for target in targets {
                page += &(target.line() + "\n");
            }
        }
        let changes = self.findings.iter().filter(|finding| finding.change.is_some()).count();
        page + &format!("{} findings, {changes} with something to change\n", self.findings.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_names_the_change_before_the_expected_value() {
        let finding = |verdict, change: Option<&str>| Finding {
            what: "thing".into(),
            verdict,
            found: "this".into(),
            expected: "that".into(),
            change: change.map(str::to_owned),
        };
        let findings = vec![finding(Verdict::Good, None), finding(Verdict::Advice, Some("do it"))];
        let page = Report { can_run: true, findings, targets: None }.page();
        let lines: Vec<&str> = page.lines().map(str::trim).collect();
        assert_eq!(lines[0], "good     thing                    this");
        assert_eq!(&lines[2..], ["expected: that", "change:   do it", "2 findings, 1 with something to change"]);
    }
}
