//! Samples of each GPU: from amdgpu's files in sysfs, or from nvidia-smi. A value that is not reported is `None`.

use std::path::Path;
use std::process::Command;

use unicorn_runtime::machine::GpuActivity;

/// Every GPU below `root`.
pub fn sample(root: &Path) -> Vec<GpuActivity> {
    let mut gpus: Vec<GpuActivity> = GpuActivity::read_all(root);
    // NVML is a C library; nvidia-smi prints what it reports.
    if root.join("proc/driver/nvidia/version").is_file() {
        let output = Command::new("nvidia-smi").args(NVIDIA_QUERY).output();
        gpus.extend(output.iter().flat_map(|output| nvidia(&String::from_utf8_lossy(&output.stdout))));
    }
    gpus
}

const NVIDIA_QUERY: [&str; 2] = [
    "--query-gpu=name,utilization.gpu,memory.used,memory.total,clocks.sm,clocks.mem,power.draw,temperature.gpu",
    "--format=csv,noheader,nounits",
];

fn nvidia(csv: &str) -> Vec<GpuActivity> {
    const MIB: f64 = (1 << 20) as f64;
    let line = |line: &str| {
        let mut cells = line.split(',').map(str::trim);
        let name = cells.next().filter(|name| !name.is_empty())?.to_owned();
        // A value that the GPU does not report is `[N/A]`.
        let value = |cell: &str| cell.parse().ok().filter(|value: &f64| value.is_finite());
        let values: Vec<Option<f64>> = cells.map(value).collect();
        let [busy, used, all, core, memory, power, temperature] = values.try_into().ok()?;
        let positive = |value: &f64| *value >= 0.0;
        let bytes = |mib: Option<f64>| mib.filter(positive).map(|mib| (mib * MIB) as u64);
        Some(GpuActivity {
            name,
            busy_percent: busy.filter(|percent| (0.0..=100.0).contains(percent)),
            vram_used_bytes: bytes(used),
            vram_bytes: bytes(all),
            core_mhz: core.filter(positive),
            memory_mhz: memory.filter(positive),
            power_w: power.filter(positive),
            temperature_c: temperature,
            ..GpuActivity::default()
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

    #[test]
    fn impossible_numbers_are_no_values() {
        let [gpu] = nvidia("NVIDIA X, 101, -1, inf, nan, -5, -2, nan\n").try_into().unwrap();
        assert_eq!(gpu, GpuActivity { name: "NVIDIA X".into(), ..GpuActivity::default() });
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
