//! Real GPUs as drivers report them: `tests/devices/*.json` as [`DeviceFacts`].

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde::{Deserialize, Deserializer, de};
use unicorn_runtime::{DeviceFacts, DeviceFeatures, DeviceKind, Heap, MemoryType};

/// A GPU with a driver, and where its facts come from.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Device {
    /// Name of the file, without its extension.
    #[serde(skip)]
    pub file: String,
    /// The GPU and its driver, for people.
    pub gpu: String,
    name: String,
    driver: String,
    /// The source of every value that `other_sources` does not name.
    pub source: String,
    #[serde(default)]
    pub other_sources: BTreeMap<String, String>,
    /// Fields and features that no source gives, and why.
    #[serde(default)]
    pub unknown: BTreeMap<String, String>,
    #[serde(deserialize_with = "hex")]
    vendor_id: u32,
    #[serde(deserialize_with = "hex")]
    device_id: u32,
    kind: String,
    api_version: String,
    subgroup_size: u32,
    min_subgroup_size: u32,
    max_subgroup_size: u32,
    subgroup_arithmetic: bool,
    shared_memory_bytes: u32,
    workgroup_invocations: u32,
    warps_per_multiprocessor: Option<u32>,
    multiprocessors: Option<u32>,
    storage_range_bytes: u64,
    max_allocation_bytes: u64,
    heaps: Vec<HeapSize>,
    memory_types: Vec<MemoryProperties>,
    features: Vec<String>,
    /// `None`: unknown.
    cooperative_matrix: Option<Vec<String>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct HeapSize {
    bytes: u64,
    device_local: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct MemoryProperties {
    heap: usize,
    properties: String,
}

impl Device {
    /// Every file of `tests/devices`, by name.
    ///
    /// # Panics
    /// If a file is malformed, marks a value as unknown that it has, or lacks a value without that mark.
    pub fn all() -> Vec<Device> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("devices");
        let mut devices = Vec::new();
        for entry in fs::read_dir(folder).expect("tests/devices") {
            let path = entry.expect("an entry of tests/devices").path();
            if path.extension().is_none_or(|extension| extension != "json") {
                continue;
            }
            let text = fs::read_to_string(&path).expect("a readable file");
            let mut device: Device = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{path:?}: {error}"));
            device.file = path.file_stem().expect("a name").to_string_lossy().into_owned();
            device.check(&serde_json::from_str(&text).expect("JSON"));
            devices.push(device);
        }
        devices.sort_by(|one, other| one.file.cmp(&other.file));
        devices
    }

    /// Checks that sources name only fields that exist, and that unknown fields are absent.
    fn check(&self, fields: &serde_json::Map<String, serde_json::Value>) {
        for field in self.other_sources.keys() {
            assert!(fields.contains_key(field), "{}: a source of {field}, which is not there", self.file);
        }
        for what in self.unknown.keys() {
            let is_there = fields.contains_key(what) || self.features.contains(what);
            assert!(!is_there, "{}: {what} is there and unknown", self.file);
        }
        let is_marked = self.unknown.contains_key("cooperative_matrix");
        assert_eq!(self.cooperative_matrix.is_none(), is_marked, "{}: shapes of matrices", self.file);
    }

    /// The facts as the runtime reads them from the driver; what is unknown takes the least that Vulkan guarantees.
    ///
    /// # Panics
    /// If the file names a feature that the runtime does not have.
    pub fn facts(&self) -> DeviceFacts {
        let heap = |heap: &HeapSize| Heap {
            bytes: heap.bytes,
            budget_bytes: None,
            used_bytes: 0,
            device_local: heap.device_local,
        };
        let mut version = self.api_version.split('.').map(|part| part.parse().expect("a number in api_version"));
        let mut part = || version.next().expect("api_version has three parts");
        DeviceFacts {
            index: 0,
            uuid: [0; 16],
            name: self.name.clone(),
            driver: self.driver.clone(),
            vendor_id: self.vendor_id,
            device_id: self.device_id,
            kind: match self.kind.as_str() {
                "discrete" => DeviceKind::Discrete,
                "integrated" => DeviceKind::Integrated,
                other => panic!("{}: kind {other}", self.file),
            },
            api_version: (part(), part(), part()),
            subgroup_size: self.subgroup_size,
            min_subgroup_size: self.min_subgroup_size,
            max_subgroup_size: self.max_subgroup_size,
            subgroup_arithmetic: self.subgroup_arithmetic,
            shared_memory_bytes: self.shared_memory_bytes,
            workgroup_invocations: self.workgroup_invocations,
            warps_per_multiprocessor: self.warps_per_multiprocessor,
            multiprocessors: self.multiprocessors,
            storage_range_bytes: self.storage_range_bytes,
            max_allocation_bytes: self.max_allocation_bytes,
            heaps: self.heaps.iter().map(heap).collect(),
            memory_types: self.memory_types.iter().map(MemoryProperties::memory_type).collect(),
            features: self.device_features(),
        }
    }

    fn device_features(&self) -> DeviceFeatures {
        let has = |name| self.features.iter().any(|feature| feature == name);
        let features = DeviceFeatures {
            float16: has("float16"),
            int8: has("int8"),
            int16: has("int16"),
            int64: has("int64"),
            int64_atomics: has("int64 atomics"),
            storage_8bit: has("8-bit storage"),
            storage_16bit: has("16-bit storage"),
            integer_dot_product: has("integer dot product"),
            integer_dot_product_accelerated: has("accelerated integer dot product"),
            mixed_dot_product_accelerated: has("accelerated mixed-sign dot product"),
            memory_model: has("memory model"),
            memory_model_device_scope: has("memory model device scope"),
            memory_model_chains: has("memory model chains"),
            subgroup_extended_types: has("subgroup extended types"),
            subgroup_size_control: has("subgroup size control"),
            full_subgroups: has("full subgroups"),
            timeline_semaphore: has("timeline semaphore"),
            robust_buffer_access: has("robust buffer access"),
            memory_budget: has("memory budget"),
            host_import: has("host memory import"),
            dma_buf: has("dma-buf"),
            pipeline_statistics: has("pipeline statistics"),
            cooperative_matrix: self.cooperative_matrix.clone().unwrap_or_default(),
        };
        let names = features.names();
        let strange = self.features.iter().find(|name| !names.contains(&name.as_str()));
        assert_eq!(strange, None, "{}: a feature that the runtime does not have", self.file);
        features
    }
}

impl MemoryProperties {
    /// The memory type as the runtime reads it: with a property that is not listed here, it has none.
    fn memory_type(&self) -> MemoryType {
        const KNOWN: [&str; 4] = ["device-local", "host-visible", "host-coherent", "host-cached"];
        let properties: Vec<&str> = self.properties.split_whitespace().collect();
        let is_known = properties.iter().all(|property| KNOWN.contains(property));
        let has = |property| is_known && properties.contains(&property);
        let [device_local, host_visible, host_coherent, host_cached] = KNOWN.map(has);
        MemoryType { heap: self.heap, device_local, host_visible, host_coherent, host_cached }
    }
}

/// A number such as `0x1002`.
fn hex<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    let text = String::deserialize(deserializer)?;
    let digits = text.strip_prefix("0x").ok_or_else(|| de::Error::custom(format!("expected 0x…, found {text}")))?;
    u32::from_str_radix(digits, 16).map_err(de::Error::custom)
}
