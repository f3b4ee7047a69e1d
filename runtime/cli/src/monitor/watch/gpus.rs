//! What each GPU does now: amdgpu's files in sysfs, or NVIDIA's own tool. A figure that is not offered is `None`.

use std::ops::RangeInclusive;
use std::path::Path;
use std::process::Command;

use serde::Serialize;

use unicorn_runtime::sysfs::{is_numbered, names, number, text};

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct GpuSample {
    pub name: String,
    pub busy_percent: Option<f64>,
    pub vram_used_bytes: Option<u64>,
    pub vram_bytes: Option<u64>,
    pub gtt_used_bytes: Option<u64>,
    pub gtt_bytes: Option<u64>,
    pub core_mhz: Option<f64>,
    pub memory_mhz: Option<f64>,
    pub power_w: Option<f64>,
    pub temperature_c: Option<f64>,
}

/// Every GPU below `root`.
pub fn sample(root: &Path) -> Vec<GpuSample> {
    let drm = root.join("sys/class/drm");
    let cards = names(&drm).into_iter().filter(|name| is_numbered(name, "card"));
    let mut gpus: Vec<GpuSample> = cards.filter_map(|card| amdgpu(&drm, card)).collect();
    // NVML is a C library; its own tool asks it for us.
    if root.join("proc/driver/nvidia/version").is_file() {
        let output = Command::new("nvidia-smi").args(NVIDIA_QUERY).output();
        gpus.extend(output.iter().flat_map(|output| nvidia(&String::from_utf8_lossy(&output.stdout))));
    }
    gpus
}

const PERCENT: RangeInclusive<f64> = 0.0..=100.0;

const NVIDIA_QUERY: [&str; 2] = [
    "--query-gpu=name,utilization.gpu,memory.used,memory.total,clocks.sm,clocks.mem,power.draw,temperature.gpu",
    "--format=csv,noheader,nounits",
];

fn amdgpu(drm: &Path, card: String) -> Option<GpuSample> {
    let device = drm.join(&card).join("device");
    let vram_bytes = number(&device.join("mem_info_vram_total"))?;
    let sensors = device.join("hwmon");
    let sensor = |file: &str| -> Option<f64> {
        let value = names(&sensors).iter().find_map(|folder| number(&sensors.join(folder).join(file)));
        value.filter(|value: &f64| value.is_finite())
    };
    let clock = |file: &str| text(&device.join(file)).and_then(|levels| current_mhz(&levels));
    let positive = |value: &f64| *value >= 0.0;
    Some(GpuSample {
        name: card,
        busy_percent: number(&device.join("gpu_busy_percent")).filter(|percent| PERCENT.contains(percent)),
        vram_used_bytes: number(&device.join("mem_info_vram_used")),
        vram_bytes: Some(vram_bytes),
        gtt_used_bytes: number(&device.join("mem_info_gtt_used")),
        gtt_bytes: number(&device.join("mem_info_gtt_total")),
        core_mhz: sensor("freq1_input").filter(positive).map(|hertz| hertz / 1e6).or_else(|| clock("pp_dpm_sclk")),
        memory_mhz: clock("pp_dpm_mclk"),
        power_w: sensor("power1_average")
            .or_else(|| sensor("power1_input"))
            .filter(positive)
            .map(|microwatts| microwatts / 1e6),
        temperature_c: sensor("temp1_input").map(|millidegrees| millidegrees / 1e3),
    })
}

/// The level with a star, as in `1: 800Mhz *`.
fn current_mhz(levels: &str) -> Option<f64> {
    let level = levels.lines().find_map(|line| line.trim_end().strip_suffix('*'))?;
    let (_, clock) = level.split_once(':')?;
    // Whole numbers, in every kernel so far.
    let mhz: u32 = clock.trim().to_ascii_lowercase().strip_suffix("mhz")?.trim().parse().ok()?;
    Some(mhz.into())
}

fn nvidia(csv: &str) -> Vec<GpuSample> {
    const MIB: f64 = (1 << 20) as f64;
    let line = |line: &str| {
        let mut cells = line.split(',').map(str::trim);
        let name = cells.next().filter(|name| !name.is_empty())?.to_owned();
        // A figure that the GPU does not have is `[N/A]`.
        let figure = |cell: &str| cell.parse().ok().filter(|figure: &f64| figure.is_finite());
        let figures: Vec<Option<f64>> = cells.map(figure).collect();
        let [busy, used, all, core, memory, power, temperature] = figures.try_into().ok()?;
        let positive = |figure: &f64| *figure >= 0.0;
        let bytes = |mib: Option<f64>| mib.filter(positive).map(|mib| (mib * MIB) as u64);
        Some(GpuSample {
            name,
            busy_percent: busy.filter(|percent| PERCENT.contains(percent)),
            vram_used_bytes: bytes(used),
            vram_bytes: bytes(all),
            core_mhz: core.filter(positive),
            memory_mhz: memory.filter(positive),
            power_w: power.filter(positive),
            temperature_c: temperature,
            ..GpuSample::default()
        })
    };
    csv.lines().filter_map(line).collect()
}

#[cfg(test)]
pub mod tests {
    use std::fs;

    use super::*;

    pub fn write(root: &Path, files: &[(&str, &str)]) {
        for (path, contents) in files {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, contents).unwrap();
        }
    }

    const FILES: [(&str, &str); 10] = [
        ("gpu_busy_percent", "87\n"),
        ("mem_info_vram_used", "402653184\n"),
        ("mem_info_vram_total", "536870912\n"),
        ("mem_info_gtt_used", "5368709120\n"),
        ("mem_info_gtt_total", "16106127360\n"),
        ("pp_dpm_sclk", "0: 800Mhz\n1: 1100Mhz *\n2: 2700Mhz\n"),
        ("pp_dpm_mclk", "0: 1000Mhz\n1: 2800Mhz *\n"),
        ("hwmon/hwmon4/power1_input", "21500000\n"),
        ("hwmon/hwmon4/temp1_input", "63000\n"),
        ("hwmon/hwmon4/freq1_input", "2650000000\n"),
    ];

    fn tree(root: &Path, contents: impl Fn(&'static str) -> &'static str) {
        for (file, sound) in FILES {
            write(root, &[(&format!("sys/class/drm/card1/device/{file}"), contents(sound))]);
        }
    }

    #[test]
    fn amdgpus_figures_are_read_in_their_units() {
        let root = tempfile::tempdir().unwrap();
        tree(root.path(), |sound| sound);
        let found = sample(root.path());
        let expected = GpuSample {
            name: "card1".into(),
            busy_percent: Some(87.0),
            vram_used_bytes: Some(384 << 20),
            vram_bytes: Some(512 << 20),
            gtt_used_bytes: Some(5 << 30),
            gtt_bytes: Some(15 << 30),
            core_mhz: Some(2650.0),
            memory_mhz: Some(2800.0),
            power_w: Some(21.5),
            temperature_c: Some(63.0),
        };
        assert_eq!(found, [expected]);
        fs::remove_dir_all(root.path().join("sys/class/drm/card1/device/hwmon")).unwrap();
        let found = sample(root.path());
        assert_eq!((found[0].core_mhz, found[0].power_w), (Some(1100.0), None));
    }

    #[test]
    fn garbage_and_other_cards_have_no_figures() {
        for garbage in ["", "*", ":*", "x: Mhz *", "-", "\u{0}"] {
            let root = tempfile::tempdir().unwrap();
            tree(root.path(), |_| garbage);
            assert!(sample(root.path()).is_empty(), "{garbage:?}");
        }
        assert!(current_mhz("0: fast *").is_none());
    }

    #[test]
    fn numbers_that_cannot_be_are_no_figures() {
        let total = |sound: &'static str| sound == "536870912\n";
        for hostile in
            ["nan", "inf", "-inf", "-1", "1e999", "-9e300", "99999999999999999999999", "0: -1Mhz *", "0: nanMhz *"]
        {
            let root = tempfile::tempdir().unwrap();
            tree(root.path(), |sound| if total(sound) { sound } else { hostile });
            let [gpu] = sample(root.path()).try_into().unwrap();
            let known = GpuSample { name: gpu.name.clone(), vram_bytes: Some(512 << 20), ..GpuSample::default() };
            // Cold is no mistake, and a large sensor is a large figure.
            let figures = GpuSample { temperature_c: None, core_mhz: None, power_w: None, ..gpu.clone() };
            assert_eq!(figures, known, "{hostile}");
            let rest = [gpu.temperature_c, gpu.core_mhz, gpu.power_w];
            assert!(rest.iter().flatten().all(|figure| figure.is_finite()), "{hostile}: {rest:?}");
            assert!(rest[1..].iter().flatten().all(|figure| *figure >= 0.0), "{hostile}: {rest:?}");
        }
        let [gpu] = nvidia("NVIDIA X, 101, -1, inf, nan, -5, -2, nan\n").try_into().unwrap();
        assert_eq!(gpu, GpuSample { name: "NVIDIA X".into(), ..GpuSample::default() });
    }

    #[test]
    fn a_card_without_some_of_its_files_tells_the_rest() {
        for (missing, _) in FILES {
            let root = tempfile::tempdir().unwrap();
            tree(root.path(), |sound| sound);
            fs::remove_file(root.path().join("sys/class/drm/card1/device").join(missing)).unwrap();
            let found = sample(root.path());
            // VRAM's size is how amdgpu is known.
            assert_eq!(found.len(), usize::from(missing != "mem_info_vram_total"), "{missing}");
            assert!(found.iter().all(|gpu| gpu.vram_bytes == Some(512 << 20)), "{missing}");
        }
    }

    #[test]
    fn nvidias_table_is_read() {
        let csv =
            "NVIDIA X, 35, 1024, 8192, 1980, 2619, 119.51, 31\nNVIDIA Y, [N/A], 1, 2, 3, 4, [N/A], 5\nbroken, 1\n\n";
        let [x, y] = nvidia(csv).try_into().unwrap();
        assert_eq!((x.busy_percent, x.vram_used_bytes, x.power_w), (Some(35.0), Some(1 << 30), Some(119.51)));
        assert_eq!((y.busy_percent, y.power_w, y.temperature_c), (None, None, Some(5.0)));
    }
}
