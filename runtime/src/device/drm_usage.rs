//! What one process uses of a GPU, from its DRM file descriptors: the `drm-*` keys of `/proc/PID/fdinfo`.

use std::collections::BTreeMap;
use std::path::Path;

use crate::device::sysfs::{names, text};

/// Sums over a process's DRM clients; `None` where no client reports a value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DrmUsage {
    /// Resident bytes of VRAM.
    pub vram_bytes: Option<u64>,
    /// Resident bytes of GTT.
    pub gtt_bytes: Option<u64>,
    /// Time that engines have worked for the process since its clients were opened.
    pub engine_nanoseconds: Option<u64>,
}

impl DrmUsage {
    /// Usage of process `pid`; `root` is `/` except in tests. All `None` for a process that has no GPU open, or that this user may
    /// not inspect.
    pub fn read(root: &Path, pid: u32) -> DrmUsage {
        let folder = root.join(format!("proc/{pid}/fdinfo"));
        // Duplicated descriptors belong to one client.
        let mut clients: BTreeMap<(String, String), DrmUsage> = BTreeMap::new();
        for file in names(&folder) {
            let info = text(&folder.join(&file)).unwrap_or_default();
            let value = |key: &str| info.lines().find_map(|line| line.strip_prefix(key)).map(str::trim);
            let Some(id) = value("drm-client-id:") else { continue };
            let device = value("drm-pdev:").unwrap_or_default();
            clients.insert((device.to_owned(), id.to_owned()), client(&info));
        }
        clients.values().fold(DrmUsage::default(), |all, one| DrmUsage {
            vram_bytes: sum(all.vram_bytes, one.vram_bytes),
            gtt_bytes: sum(all.gtt_bytes, one.gtt_bytes),
            engine_nanoseconds: sum(all.engine_nanoseconds, one.engine_nanoseconds),
        })
    }
}

fn client(info: &str) -> DrmUsage {
    let mut client = DrmUsage::default();
    for (key, value) in info.lines().filter_map(|line| line.split_once(':')) {
        // Older kernels have `memory`, newer ones also `resident` with the same value.
        match key {
            "drm-memory-vram" | "drm-resident-vram" => client.vram_bytes = client.vram_bytes.max(bytes(value)),
            "drm-memory-gtt" | "drm-resident-gtt" => client.gtt_bytes = client.gtt_bytes.max(bytes(value)),
            _ if key.starts_with("drm-engine-") && !key.starts_with("drm-engine-capacity-") => {
                let time = value.trim().strip_suffix("ns").and_then(|time| time.trim().parse().ok());
                client.engine_nanoseconds = sum(client.engine_nanoseconds, time);
            }
            _ => {}
        }
    }
    client
}

fn sum(all: Option<u64>, one: Option<u64>) -> Option<u64> {
    all.zip(one).map(|(all, one)| all.saturating_add(one)).or(all).or(one)
}

/// Parses `123 KiB`; without a unit, bytes.
fn bytes(value: &str) -> Option<u64> {
    let mut words = value.split_whitespace();
    let number: u64 = words.next()?.parse().ok()?;
    let unit = match words.next() {
        None => 1,
        Some("KiB") => 1 << 10,
        Some("MiB") => 1 << 20,
        Some("GiB") => 1 << 30,
        Some(_) => return None,
    };
    number.checked_mul(unit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::gpu_activity::tests::write;

    const INFO: &str = "pos:\t0\ndrm-driver:\tamdgpu\ndrm-client-id:\t12\ndrm-pdev:\t0000:c5:00.0\n\
        drm-memory-vram:\t1024 KiB\ndrm-resident-vram:\t1024 KiB\ndrm-memory-gtt:\t3 MiB\n\
        drm-engine-gfx:\t1000 ns\ndrm-engine-compute:\t500 ns\ndrm-engine-capacity-compute:\t4\n";

    #[test]
    fn each_client_is_counted_once() {
        let root = tempfile::tempdir().unwrap();
        let other = INFO.replace("client-id:\t12", "client-id:\t13");
        write(root.path(), &[("proc/5/fdinfo/3", INFO), ("proc/5/fdinfo/4", INFO), ("proc/5/fdinfo/5", &other)]);
        write(root.path(), &[("proc/5/fdinfo/0", "pos: 0\nflags: 02\n")]);
        let expected = DrmUsage { vram_bytes: Some(2 << 20), gtt_bytes: Some(6 << 20), engine_nanoseconds: Some(3000) };
        assert_eq!(DrmUsage::read(root.path(), 5), expected);
        assert_eq!(DrmUsage::read(root.path(), 6), DrmUsage::default());
    }

    #[test]
    fn missing_and_malformed_values_are_none() {
        let other = "drm-driver: other\ndrm-client-id: 1\ndrm-engine-render: 5 ns\n";
        assert_eq!(client(other), DrmUsage { engine_nanoseconds: Some(5), ..DrmUsage::default() });
        let garbage = "drm-client-id: x\ndrm-memory-vram: lots\ndrm-memory-gtt: 1 furlong\ndrm-engine-gfx: -3 ns\n\
            drm-engine-: \ndrm-engine-compute: 4 s\n::::\n";
        assert_eq!(client(garbage), DrmUsage::default());
        assert_eq!([bytes("99999999999999999999 KiB"), bytes("18446744073709551615 GiB"), bytes("")], [None; 3]);
        let endless = format!("drm-engine-gfx: {0} ns\ndrm-engine-compute: {0} ns\n", u64::MAX);
        assert_eq!(client(&endless).engine_nanoseconds, Some(u64::MAX));
    }
}
