//! The guard: every new Vulkan call is listed here, with whether it can fail and how tests make it fail.

use std::collections::BTreeSet;
use std::path::Path;

use unicorn_runtime::{layered_calls, layered_fields};

/// Functions without a result.
const CANNOT_FAIL: [&str; 35] = [
    "cmd_bind_descriptor_sets",
    "cmd_bind_pipeline",
    "cmd_copy_buffer",
    "cmd_dispatch",
    "cmd_dispatch_base",
    "cmd_fill_buffer",
    "cmd_pipeline_barrier",
    "cmd_push_constants",
    "cmd_reset_query_pool",
    "cmd_write_timestamp",
    "destroy_buffer",
    "destroy_command_pool",
    "destroy_debug_utils_messenger",
    "destroy_descriptor_pool",
    "destroy_descriptor_set_layout",
    "destroy_device",
    "destroy_fence",
    "destroy_instance",
    "destroy_pipeline",
    "destroy_pipeline_cache",
    "destroy_pipeline_layout",
    "destroy_query_pool",
    "destroy_semaphore",
    "destroy_shader_module",
    "free_memory",
    "get_buffer_memory_requirements",
    "get_device_queue",
    "get_physical_device_features2",
    "get_physical_device_memory_properties",
    "get_physical_device_memory_properties2",
    "get_physical_device_properties",
    "get_physical_device_properties2",
    "get_physical_device_queue_family_properties",
    "unmap_memory",
    "update_descriptor_sets",
];

/// Calls that no load and no step makes: those of the validation layer, and of statistics that a command shows.
const ELSEWHERE: [&str; 5] = [
    "create_debug_utils_messenger",
    "enumerate_instance_layer_properties",
    "get_pipeline_executable_internal_representations",
    "get_pipeline_executable_properties",
    "get_pipeline_executable_statistics",
];

/// Methods of ash's and of our own that call nothing.
const NO_CALLS: [&str; 5] = ["clone", "device", "fp", "handle", "lock"];

/// Every call of Vulkan in the sources of `vk`, whichever device it runs on.
#[test]
fn every_call_of_the_sources_can_be_failed_or_cannot_fail() {
    let sources = sources();
    let called = called(&sources);
    let before: BTreeSet<String> =
        parts(&sources, "faults::before(\"").map(|part| normal(part.split('"').next().unwrap())).collect();
    let layered: BTreeSet<&str> = layered_fields().into_iter().collect();
    for call in &called {
        let known = layered.contains(call.as_str())
            || before.contains(&normal(&format!("vk{}", call.replace('_', ""))))
            || [&CANNOT_FAIL[..], &ELSEWHERE, &NO_CALLS].concat().iter().any(|known| is_same(call, known));
        assert!(
            known,
            "{call} is not in the layer of vk/faults/layer.rs, nor behind faults::before, nor listed in tests/faults/every_call.rs"
        );
    }
    for listed in layered.iter().copied().chain([&CANNOT_FAIL[..], &ELSEWHERE, &NO_CALLS].concat()) {
        assert!(called.iter().any(|call| is_same(call, listed)), "{listed} is listed, and nothing calls it");
    }
    assert!(called.len() > 60 && before.len() >= 3, "{} calls, {} behind faults::before", called.len(), before.len());
}

#[test]
fn names_of_calls_are_vulkans() {
    for (call, field) in layered_calls().into_iter().zip(layered_fields()) {
        assert_eq!(normal(call), normal(&format!("vk{}", field.replace('_', ""))));
    }
}

fn is_same(call: &str, listed: &str) -> bool {
    normal(call) == normal(listed)
}

/// A name in lower case, without the suffix of an extension, which ash's methods leave out.
fn normal(name: &str) -> String {
    let name = name.to_lowercase();
    let name = ["_khr", "_ext", "khr", "ext"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(&name);
    name.to_owned()
}

/// All that is called on ash's handles and function tables.
fn called(sources: &str) -> BTreeSet<String> {
    let mut called = BTreeSet::new();
    for handle in ["raw.", "functions.", "entry.", "fp()."] {
        called.extend(parts(sources, handle).filter_map(method));
    }
    called.extend(parts(sources, "device.").filter_map(method).filter(|name| name.starts_with("cmd_")));
    called
}

/// The identifier that `text` begins with, if it is called there.
fn method(text: &str) -> Option<String> {
    let end = text.find(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_')?;
    let (name, rest) = text.split_at(end);
    (rest.starts_with('(') || rest.starts_with(")(")).then(|| name.to_owned())
}

fn parts<'s>(text: &'s str, begin: &'s str) -> impl Iterator<Item = &'s str> {
    text.split(begin).skip(1)
}

/// The files of `vk` without comments and white space.
fn sources() -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/vk");
    let files = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
    let texts = files.filter(|path| path.is_file()).map(|path| std::fs::read_to_string(path).unwrap());
    let code = |text: String| {
        let lines = text.lines().filter(|line| !line.trim_start().starts_with("//"));
        lines.flat_map(str::split_whitespace).collect::<String>()
    };
    texts.map(code).collect()
}
