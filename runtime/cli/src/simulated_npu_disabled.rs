//! Without the feature `npu-simulator`, there is no simulated NPU.

use unicorn_runtime::LoadOptions;

pub fn choose(_options: &mut LoadOptions) {}
