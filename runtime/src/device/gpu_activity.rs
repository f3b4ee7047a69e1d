//! What each AMD GPU does now: load, memory, clocks, power, temperature, from amdgpu's files in sysfs.

use std::path::Path;

use serde::Serialize;

use crate::device::sysfs::{is_numbered, names, number, text};

/// Activity of one GPU; `None`: the driver does not report the figure.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct GpuActivity {
    /// Name of the card, such as `card0`.
    pub name: String,
    /// Load of the GPU, 0 to 100.
    pub busy_percent: Option<f64>,
    /// Bytes that all processes hold together.
    pub vram_used_bytes: Option<u64>,
    /// Size of VRAM.
    pub vram_bytes: Option<u64>,
    /// Bytes that all processes hold together.
    pub gtt_used_bytes: Option<u64>,
    /// Size of GTT.
    pub gtt_bytes: Option<u64>,
    /// Clock of the GPU's core.
    pub core_mhz: Option<f64>,
    /// Clock of its memory.
    pub memory_mhz: Option<f64>,
    /// Power in watts.
    pub power_w: Option<f64>,
    /// Temperature in degrees Celsius.
    pub temperature_c: Option<f64>,
}

impl GpuActivity {
    /// Every card with amdgpu's files; `root` is `/` except in tests.
    pub fn read_all(root: &Path) -> Vec<GpuActivity> {
        let drm = root.join("sys/class/drm");
        let cards = names(&drm).into_iter().filter(|name| is_numbered(name, "card"));
        cards.filter_map(|card| amdgpu(&drm, card)).collect()
    }
}

fn amdgpu(drm: &Path, card: String) -> Option<GpuActivity> {
    let device = drm.join(&card).join("device");
    let vram_bytes = number(&device.join("mem_info_vram_total"))?;
    let sensors = device.join("hwmon");
    let sensor = |file: &str| -> Option<f64> {
        let value = names(&sensors).iter().find_map(|folder| number(&sensors.join(folder).join(file)));
        value.filter(|value: &f64| value.is_finite())
    };
    let clock = |file: &str| text(&device.join(file)).and_then(|levels| current_mhz(&levels));
    let positive = |value: &f64| *value >= 0.0;
    Some(GpuActivity {
        name: card,
        busy_percent: number(&device.join("gpu_busy_percent")).filter(|percent| (0.0..=100.0).contains(percent)),
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

/// The clock of the level with a star, as in `1: 800Mhz *`.
fn current_mhz(levels: &str) -> Option<f64> {
    let level = levels.lines().find_map(|line| line.trim_end().strip_suffix('*'))?;
    let (_, clock) = level.split_once(':')?;
    // All kernels write whole numbers.
    let mhz: u32 = clock.trim().to_ascii_lowercase().strip_suffix("mhz")?.trim().parse().ok()?;
    Some(mhz.into())
}

#[cfg(test)]
pub(super) mod tests {
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
        let found = GpuActivity::read_all(root.path());
        let expected = GpuActivity {
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
        let found = GpuActivity::read_all(root.path());
        assert_eq!((found[0].core_mhz, found[0].power_w), (Some(1100.0), None));
    }

    #[test]
    fn malformed_files_and_other_cards_have_no_figures() {
        for garbage in ["", "*", ":*", "x: Mhz *", "-", "\u{0}"] {
            let root = tempfile::tempdir().unwrap();
            tree(root.path(), |_| garbage);
            assert!(GpuActivity::read_all(root.path()).is_empty(), "{garbage:?}");
        }
        assert!(current_mhz("0: fast *").is_none());
    }

    #[test]
    fn impossible_numbers_are_no_figures() {
        let total = |sound: &'static str| sound == "536870912\n";
        for hostile in
            ["nan", "inf", "-inf", "-1", "1e999", "-9e300", "99999999999999999999999", "0: -1Mhz *", "0: nanMhz *"]
        {
            let root = tempfile::tempdir().unwrap();
            tree(root.path(), |sound| if total(sound) { sound } else { hostile });
            let [gpu] = GpuActivity::read_all(root.path()).try_into().unwrap();
            let known = GpuActivity { name: gpu.name.clone(), vram_bytes: Some(512 << 20), ..GpuActivity::default() };
            // Negative temperatures and large sensor values are valid.
            let figures = GpuActivity { temperature_c: None, core_mhz: None, power_w: None, ..gpu.clone() };
            assert_eq!(figures, known, "{hostile}");
            let rest = [gpu.temperature_c, gpu.core_mhz, gpu.power_w];
            assert!(rest.iter().flatten().all(|figure| figure.is_finite()), "{hostile}: {rest:?}");
            assert!(rest[1..].iter().flatten().all(|figure| *figure >= 0.0), "{hostile}: {rest:?}");
        }
    }

    #[test]
    fn a_card_without_some_of_its_files_has_the_other_figures() {
        for (missing, _) in FILES {
            let root = tempfile::tempdir().unwrap();
            tree(root.path(), |sound| sound);
            fs::remove_file(root.path().join("sys/class/drm/card1/device").join(missing)).unwrap();
            let found = GpuActivity::read_all(root.path());
            // amdgpu is recognised by the size of VRAM.
            assert_eq!(found.len(), usize::from(missing != "mem_info_vram_total"), "{missing}");
            assert!(found.iter().all(|gpu| gpu.vram_bytes == Some(512 << 20)), "{missing}");
        }
    }
}
