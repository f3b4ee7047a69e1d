//! Findings about a machine: what was found, what was expected, and what to change.

use serde::Serialize;

use unicorn_artifact::account::size;
use unicorn_runtime::machine::{Gpu, Machine, milliseconds};
use unicorn_runtime::npu::driver::NpuFacts;
use unicorn_runtime::npu::{NpuError, diagnosis};
use unicorn_runtime::{DeviceFacts, DeviceKind, LoadError};

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Finding {
    pub what: String,
    pub verdict: Verdict,
    pub found: String,
    pub expected: String,
    /// A command or a kernel parameter; `None`: nothing needs to change.
    pub change: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    Good,
    /// It works, and could work better.
    Advice,
    /// Something will not work.
    Problem,
    /// The machine does not report it.
    Unknown,
}

const AMD: u32 = 0x1002;
/// amdgpu counts the ring of a submission that runs longer as hung; ours take a tenth of this.
const MIN_LOCKUP_MS: u64 = 1000;
/// Part of the memory that the GPU of an APU should reach: weights are most of what runs on such a machine.
const GPU_SHARE: f64 = 0.75;
const PAGE_BYTES: u64 = 4096;

/// All findings about `machine`, whose Vulkan devices are `devices`. `npu`: what its driver reports; `None`: it was not opened.
pub fn examine(
    machine: &Machine,
    devices: &Result<Vec<DeviceFacts>, LoadError>,
    npu: Option<&Result<NpuFacts, NpuError>>,
) -> Vec<Finding> {
    let listed = devices.as_deref().unwrap_or_default();
    let mut findings = vec![loader(devices), drivers(machine)];
    findings.extend(listed.iter().map(device));
    findings.extend(machine.gpus.iter().filter_map(|gpu| unseen(gpu, listed)));
    findings.extend(closed_nodes(machine));
    findings.extend(machine.gpus.iter().flat_map(|gpu| memory(gpu, machine, listed)));
    findings.extend(machine.gpus.iter().filter_map(compute_resets));
    findings.extend(amdgpu(machine));
    findings.extend([resets(machine), self::npu(machine, npu), locked_memory(machine), address_space(machine)]);
    findings.extend([kernel(machine), huge_pages(machine)]);
    findings
}

/// Whether any device could run a model, a software device included.
pub fn can_run(devices: &Result<Vec<DeviceFacts>, LoadError>) -> bool {
    devices.as_deref().unwrap_or_default().iter().any(|facts| facts.is_recent() && facts.has_memory())
}

impl Finding {
    fn good(what: impl Into<String>, found: impl Into<String>, expected: impl Into<String>) -> Finding {
        Finding {
            what: what.into(),
            verdict: Verdict::Good,
            found: found.into(),
            expected: expected.into(),
            change: None,
        }
    }

    fn but(self, verdict: Verdict, change: impl Into<String>) -> Finding {
        Finding { verdict, change: Some(change.into()), ..self }
    }

    fn unknown(self) -> Finding {
        Finding { verdict: Verdict::Unknown, ..self }
    }
}

fn loader(devices: &Result<Vec<DeviceFacts>, LoadError>) -> Finding {
    let of = |found: String| Finding::good("Vulkan loader", found, "libvulkan.so.1, and a device behind it");
    match devices {
        Ok(devices) if devices.is_empty() => of("no device".into()).but(Verdict::Problem, INSTALL_DRIVER),
        Ok(devices) => of(format!("{} devices", devices.len())),
        Err(error @ LoadError::NoLoader { .. }) => {
            of(error.to_string()).but(Verdict::Problem, "sudo apt install libvulkan1 mesa-vulkan-drivers")
        }
        Err(error) => of(error.to_string()).but(Verdict::Problem, INSTALL_DRIVER),
    }
}

const INSTALL_DRIVER: &str = "sudo apt install mesa-vulkan-drivers, or the vendor's driver";

fn drivers(machine: &Machine) -> Finding {
    let what = "Vulkan drivers";
    if machine.vulkan_drivers.is_empty() {
        return Finding::good(what, "none in the usual folders", "a manifest such as radeon_icd.x86_64.json")
            .but(Verdict::Advice, INSTALL_DRIVER);
    }
    Finding::good(what, machine.vulkan_drivers.join(", "), "at least one manifest")
}

fn device(facts: &DeviceFacts) -> Finding {
    let (major, minor, patch) = facts.api_version;
    let heap = |heap: &unicorn_runtime::Heap| {
        let budget = heap.budget_bytes.map_or(String::new(), |budget| format!(" (budget {})", size(budget)));
        format!("{}{budget}", size(heap.bytes))
    };
    let heaps: Vec<String> = facts.heaps.iter().map(heap).collect();
    let found = format!("{}, {}, Vulkan {major}.{minor}.{patch}, heaps {}", facts.name, facts.kind, heaps.join(" + "));
    let finding = Finding::good(format!("device {}", facts.index), found, "Vulkan 1.2 and memory of its own");
    if !facts.is_recent() {
        return finding.but(Verdict::Problem, "update the driver");
    }
    if facts.kind == DeviceKind::Cpu {
        return Finding { expected: "a GPU".into(), ..finding }
            .but(Verdict::Advice, "a GPU; --device selects this one, which runs on the CPU and is for tests");
    }
    finding
}

/// A GPU that the kernel drives and Vulkan does not list.
fn unseen(gpu: &Gpu, devices: &[DeviceFacts]) -> Option<Finding> {
    let (vendor_id, device_id) = gpu.vendor_id.zip(gpu.device_id)?;
    if devices.iter().any(|facts| (facts.vendor_id, facts.device_id) == (vendor_id, device_id)) {
        return None;
    }
    let driver = gpu.driver.as_deref().unwrap_or("no driver");
    let found = format!("{} ({vendor_id:04x}:{device_id:04x}, {driver}) is no Vulkan device", gpu.card);
    let finding = Finding::good(gpu.card.clone(), found, "in the list of Vulkan devices");
    // A driver that only shows a console has no compute.
    if !["amdgpu", "i915", "xe", "nvidia", "nouveau"].contains(&driver) {
        return Some(finding);
    }
    Some(finding.but(Verdict::Problem, INSTALL_DRIVER))
}

fn closed_nodes(machine: &Machine) -> Option<Finding> {
    let nodes = machine.closed_nodes.join(", ");
    (!nodes.is_empty()).then(|| {
        Finding::good("access", format!("{nodes} may not be opened"), "render nodes are open to this user")
            .but(Verdict::Problem, "sudo usermod -aG render,video $USER, then log in again")
    })
}

/// Memory of an AMD GPU: carve-out and GTT, and whether ttm lets the GTT be used.
fn memory(gpu: &Gpu, machine: &Machine, devices: &[DeviceFacts]) -> Vec<Finding> {
    let (Some(vram), Some(gtt)) = (gpu.vram_bytes, gpu.gtt_bytes) else { return Vec::new() };
    let is_apu = devices.iter().any(|facts| {
        facts.kind == DeviceKind::Integrated
            && facts.vendor_id == AMD
            && Some(facts.device_id) == gpu.device_id
            && gpu.vendor_id == Some(AMD)
    });
    let of = format!("{} memory", gpu.card);
    let found = format!("VRAM {}, GTT {}", size(vram), size(gtt));
    let mut findings = Vec::new();
    match machine.memory_bytes.filter(|_| is_apu) {
        None => findings.push(Finding::good(of, found, "enough for the model's plan, see unicorn-run inspect")),
        Some(all) => {
            // The system does not count the carve-out as its memory.
            let wanted = (GPU_SHARE * all.saturating_add(vram) as f64) as u64;
            let expected = format!("an APU's GPU reaches {} of this machine's memory", size(wanted));
            let finding = Finding::good(of, found, expected);
            let reached = vram.saturating_add(gtt) >= wanted;
            findings.push(if reached {
                finding
            } else {
                let pages = wanted.saturating_sub(vram) / PAGE_BYTES;
                finding.but(
                    Verdict::Advice,
                    format!("kernel parameter ttm.pages_limit={pages}, or a larger carve-out in the BIOS"),
                )
            });
        }
    }
    if let Some(limit) =
        machine.ttm_pages_limit.and_then(|pages| pages.checked_mul(PAGE_BYTES)).filter(|&limit| limit < gtt)
    {
        let found = format!("ttm.pages_limit is {}, the GTT {}", size(limit), size(gtt));
        findings.push(
            Finding::good("GTT limit", found, "at least the GTT, or allocations fail before it is full")
                .but(Verdict::Problem, format!("kernel parameter ttm.pages_limit={}", gtt / PAGE_BYTES)),
        );
    }
    findings
}

fn compute_resets(gpu: &Gpu) -> Option<Finding> {
    let resets = gpu.compute_resets.as_deref()?;
    let what = format!("{} resets", gpu.card);
    Some(Finding::good(what, resets, "queue: one that hangs is reset without the others"))
}

fn amdgpu(machine: &Machine) -> Vec<Finding> {
    let Some(parameters) = &machine.amdgpu else { return Vec::new() };
    let own = "the driver's own";
    let list = parameters.lockup_timeout.as_deref();
    let limits = list.map(milliseconds).unwrap_or_default();
    let found = if limits.is_empty() { own.into() } else { format!("{} ms", list.unwrap_or(own)) };
    let timeout = Finding::good("amdgpu.lockup_timeout", found, format!("at least {MIN_LOCKUP_MS} ms"));
    let is_short = limits.iter().any(|&limit| limit < MIN_LOCKUP_MS);
    let recovery = match parameters.gpu_recovery {
        Some(0) => {
            Finding::good("amdgpu.gpu_recovery", "off", "on: a GPU that hangs is reset, and generation continues")
                .but(Verdict::Advice, "kernel parameter amdgpu.gpu_recovery=1")
        }
        Some(1..) => Finding::good("amdgpu.gpu_recovery", "on", "on"),
        _ => Finding::good("amdgpu.gpu_recovery", own, "on"),
    };
    let size = match parameters.gttsize_mib {
        Some(mib @ 0..) => Finding::good("amdgpu.gttsize", format!("{mib} MiB"), "not set: ttm.pages_limit decides")
            .but(Verdict::Advice, "remove amdgpu.gttsize from the kernel's command line and set ttm.pages_limit"),
        _ => Finding::good("amdgpu.gttsize", own, "not set: ttm.pages_limit decides"),
    };
    let timeout = match is_short {
        true => {
            timeout.but(Verdict::Advice, "kernel parameter amdgpu.lockup_timeout=10000, or a smaller --submission-ms")
        }
        false => timeout,
    };
    vec![timeout, recovery, size]
}

fn resets(machine: &Machine) -> Finding {
    let of = |found: String| Finding::good("GPU resets", found, "none in the kernel's log");
    match &machine.resets {
        None => Finding {
            change: Some("sudo dmesg | grep -i 'ring.*timeout\\|gpu reset'".into()),
            ..of("the log is not readable".into()).unknown()
        },
        Some(lines) => match lines.last() {
            None => of("none".into()),
            Some(last) => of(format!("{}, the last: {last}", lines.len()))
                .but(Verdict::Advice, "a smaller --submission-ms; if it stays, a newer kernel and firmware"),
        },
    }
}

fn npu(machine: &Machine, opened: Option<&Result<NpuFacts, NpuError>>) -> Finding {
    let npu = &machine.npu;
    let driver = match &npu.driver_version {
        None => "amdxdna is not loaded".into(),
        Some(None) => "amdxdna of the kernel".into(),
        Some(Some(version)) => format!("amdxdna {version}"),
    };
    let firmware = npu.firmware.as_deref().map_or(String::new(), |version| format!(", firmware {version}"));
    if npu.nodes.is_empty() && !npu.present {
        return Finding::good("NPU", "none", "none is needed");
    }
    if npu.nodes.is_empty() {
        let expected = "a node in /dev/accel";
        return Finding::good("NPU", format!("there is one, without a node in /dev/accel; {driver}"), expected)
            .but(Verdict::Advice, diagnosis::remedy(machine));
    }
    let nodes = npu.nodes.join(", ");
    match opened {
        None => Finding::good("NPU", format!("/dev/accel/{nodes}, {driver}{firmware}"), "a node in /dev/accel"),
        Some(Ok(facts)) => {
            let NpuFacts { driver, firmware, columns, rows, clock_mhz, .. } = facts;
            let clock = clock_mhz.map_or(String::new(), |mhz| format!(" at {mhz} MHz"));
            let array = format!("{columns} columns and {rows} rows{clock}");
            let finding = Finding::good(
                "NPU",
                format!("/dev/accel/{nodes}, {driver}, firmware {firmware}, {array}"),
                "npu1: 5 columns and 6 rows",
            );
            match facts.is_npu1() {
                true => finding,
                false => finding.but(
                    Verdict::Advice,
                    "nothing: models run on the GPU, NPU programs are for Phoenix and Hawk Point",
                ),
            }
        }
        Some(Err(error)) => Finding::good("NPU", format!("/dev/accel/{nodes}: {error}"), "an NPU that can be opened")
            .but(Verdict::Advice, "as it says; until then, models without NPU programs run"),
    }
}

fn locked_memory(machine: &Machine) -> Finding {
    let of = |found: String| {
        Finding::good(
            "locked memory",
            found,
            "unlimited where an NPU is used: its driver pins the memory that it reads",
        )
    };
    match machine.locked_bytes {
        None => of("the limit is not readable".into()).unknown(),
        Some(None) => of("unlimited".into()),
        Some(Some(limit)) if machine.npu.present || !machine.npu.nodes.is_empty() => of(size(limit))
            .but(Verdict::Advice, "ulimit -l unlimited, or `* - memlock unlimited` in /etc/security/limits.conf"),
        Some(Some(limit)) => of(size(limit)),
    }
}

fn address_space(machine: &Machine) -> Finding {
    let of = |found: String| {
        Finding::good("address space", found, "unlimited: drivers and the mapped model need address space")
    };
    match machine.address_space_bytes {
        None => of("the limit is not readable".into()).unknown(),
        Some(None) => of("unlimited".into()),
        Some(Some(limit)) => {
            of(size(limit)).but(Verdict::Advice, "ulimit -v unlimited, or no `as` in /etc/security/limits.conf")
        }
    }
}

fn kernel(machine: &Machine) -> Finding {
    let of = |found: &str| Finding::good("kernel", found, "any that drives the GPU; from 6.14 on for an NPU");
    machine.kernel.as_deref().map_or_else(|| of("unknown").unknown(), of)
}

fn huge_pages(machine: &Machine) -> Finding {
    let of = |found: &str| {
        Finding::good("transparent huge pages", found, "always or madvise: staging memory in large pages")
    };
    match machine.huge_pages.as_deref() {
        None => of("unknown").unknown(),
        Some("never") => {
            of("never").but(Verdict::Advice, "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled")
        }
        Some(choice) => of(choice),
    }
}

#[cfg(test)]
mod tests {
    use test_support::machine_files::{LAPTOP, Tree, write_tree};
    use unicorn_runtime::{DeviceFeatures, Heap};

    use super::*;

    const DISCRETE: Tree<'static> = &[
        ("proc/sys/kernel/osrelease", "6.17.0\n"),
        ("proc/meminfo", "MemTotal: 67108864 kB\n"),
        ("proc/self/limits", "Max locked memory         unlimited            unlimited            bytes\n"),
        ("usr/share/vulkan/icd.d/radeon_icd.x86_64.json", "{}"),
        ("sys/class/drm/card0/device/uevent", "DRIVER=amdgpu\n"),
        ("sys/class/drm/card0/device/vendor", "0x1002\n"),
        ("sys/class/drm/card0/device/device", "0x744c\n"),
        ("sys/class/drm/card0/device/mem_info_vram_total", "25753026560\n"),
        ("sys/class/drm/card0/device/mem_info_gtt_total", "33554432000\n"),
        ("sys/module/amdgpu/parameters/lockup_timeout", "500,60000\n"),
        ("sys/module/amdgpu/parameters/gpu_recovery", "0\n"),
        ("sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n"),
    ];

    fn machine(tree: Tree<'_>) -> Machine {
        Machine::read(write_tree(tree).path())
    }
    fn facts(name: &str, kind: DeviceKind, vendor_id: u32, device_id: u32) -> DeviceFacts {
        DeviceFacts {
            index: 0,
            uuid: [0; 16],
            name: name.into(),
            driver: "radv".into(),
            vendor_id,
            device_id,
            kind,
            api_version: (1, 4, 0),
            subgroup_size: 64,
            min_subgroup_size: 32,
            max_subgroup_size: 64,
            subgroup_arithmetic: true,
            shared_memory_bytes: 65536,
            workgroup_invocations: 1024,
            warps_per_multiprocessor: None,
            multiprocessors: None,
            storage_range_bytes: 1 << 32,
            max_allocation_bytes: 1 << 32,
            heaps: vec![Heap { bytes: 10 << 30, budget_bytes: Some(9 << 30), used_bytes: 0, device_local: true }],
            memory_types: vec![],
            features: DeviceFeatures::default(),
        }
    }

    fn of<'f>(findings: &'f [Finding], what: &str) -> &'f Finding {
        findings.iter().find(|finding| finding.what == what).unwrap_or_else(|| panic!("{what}: {findings:#?}"))
    }

    #[test]
    fn a_laptop_gets_advice_on_its_memory_and_its_npu() {
        let devices = Ok(vec![facts("AMD Radeon 780M", DeviceKind::Integrated, 0x1002, 0x15bf)]);
        let findings = examine(&machine(LAPTOP), &devices, None);
        let memory = of(&findings, "card1 memory");
        assert_eq!(memory.verdict, Verdict::Advice);
        // Three quarters of 30.5 GiB, less the carve-out.
        assert_eq!(
            memory.change.as_deref().unwrap().split(',').next(),
            Some("kernel parameter ttm.pages_limit=5865472")
        );
        assert_eq!(of(&findings, "NPU").change.as_deref(), Some("a kernel from 6.14 on, which has amdxdna"));
        assert_eq!(of(&findings, "locked memory").verdict, Verdict::Advice);
        assert!(of(&findings, "GPU resets").found.starts_with("1, the last: amdgpu"));
        assert_eq!(of(&findings, "amdgpu.lockup_timeout").found, "the driver's own");
        assert_eq!(of(&findings, "transparent huge pages").verdict, Verdict::Good);
        assert!(findings.iter().all(|finding| finding.verdict != Verdict::Problem), "{findings:#?}");
        assert!(can_run(&devices));
    }

    #[test]
    fn a_discrete_card_keeps_its_memory_and_bad_parameters_are_reported() {
        let devices = Ok(vec![facts("AMD Radeon RX 7900 XTX", DeviceKind::Discrete, 0x1002, 0x744c)]);
        let findings = examine(&machine(DISCRETE), &devices, None);
        assert_eq!(of(&findings, "card0 memory").verdict, Verdict::Good);
        assert_eq!(of(&findings, "amdgpu.lockup_timeout").verdict, Verdict::Advice);
        assert_eq!(
            of(&findings, "amdgpu.gpu_recovery").change.as_deref(),
            Some("kernel parameter amdgpu.gpu_recovery=1")
        );
        assert_eq!(of(&findings, "NPU").verdict, Verdict::Good);
        assert_eq!(of(&findings, "GPU resets").verdict, Verdict::Unknown);
        assert_eq!(of(&findings, "transparent huge pages").verdict, Verdict::Advice);
    }

    #[test]
    fn a_machine_without_a_gpu_has_findings_for_what_is_missing() {
        let nothing = Err(LoadError::NoLoader { detail: "libvulkan.so.1 not found".into() });
        let findings = examine(&machine(&[]), &nothing, None);
        assert_eq!(of(&findings, "Vulkan loader").verdict, Verdict::Problem);
        assert!(!can_run(&nothing) && !can_run(&Ok(vec![])));
        // A software device can run models.
        assert!(can_run(&Ok(vec![facts("llvmpipe", DeviceKind::Cpu, 0x10005, 0)])));
    }

    #[test]
    fn a_gpu_without_its_vulkan_driver_is_a_problem() {
        let findings = examine(&machine(LAPTOP), &Ok(vec![facts("llvmpipe", DeviceKind::Cpu, 0x10005, 0)]), None);
        assert_eq!(of(&findings, "card1").verdict, Verdict::Problem);
    }

    #[test]
    fn an_npu_is_good_only_if_it_opens() {
        let tree = [LAPTOP, &[("dev/accel/accel0", ""), ("sys/module/amdxdna/refcnt", "0\n")]].concat();
        let found = |opened| {
            let findings = examine(&machine(&tree), &Ok(vec![]), Some(&opened));
            of(&findings, "NPU").clone()
        };
        let facts = NpuFacts {
            driver: "amdxdna 0.1".into(),
            firmware: "1.5.2.380".into(),
            columns: 5,
            rows: 6,
            core_rows: 4,
            clock_mhz: Some(1600),
        };
        let good = found(Ok(facts.clone()));
        assert_eq!(good.verdict, Verdict::Good);
        assert_eq!(good.found, "/dev/accel/accel0, amdxdna 0.1, firmware 1.5.2.380, 5 columns and 6 rows at 1600 MHz");
        assert_eq!(found(Ok(NpuFacts { columns: 8, ..facts.clone() })).verdict, Verdict::Advice);
        let old = NpuFacts { firmware: "1.5.2.300".into(), ..facts.clone() };
        let old = found(Err(diagnosis::check_firmware(&old).expect_err("it is older than what works")));
        let part = "NPU's firmware is too old: found 1.5.2.300, expected 1.5.2.380 or later";
        assert!(old.verdict == Verdict::Advice && old.found.contains(part), "{old:?}");
        let source = std::io::Error::from(std::io::ErrorKind::PermissionDenied);
        let closed = found(Err(NpuError::Denied { path: "/dev/accel/accel0".into(), source }));
        assert!(closed.verdict == Verdict::Advice && closed.found.contains("usermod -aG render"), "{closed:?}");
        // Loaded, without a node: the driver has refused its firmware.
        let without =
            [LAPTOP, &[("sys/module/amdxdna/refcnt", "0\n"), ("proc/sys/kernel/osrelease", "6.17.0\n")]].concat();
        let findings = examine(&machine(&without), &Ok(vec![]), None);
        assert!(of(&findings, "NPU").change.as_deref().unwrap().contains("linux-firmware"));
    }

    #[test]
    fn a_gtt_beyond_what_ttm_allows_is_a_problem() {
        let tree = [LAPTOP, &[("sys/module/ttm/parameters/pages_limit", "1000000\n")]].concat();
        let findings = examine(&machine(&tree), &Ok(vec![]), None);
        assert_eq!(of(&findings, "GTT limit").change.as_deref(), Some("kernel parameter ttm.pages_limit=3932160"));
    }
}
