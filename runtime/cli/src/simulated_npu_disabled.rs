//! Without the feature `npu-simulator`, `UNICORN_NPU` has no effect.

use unicorn_runtime::LoadOptions;

use crate::terminal::output::note;

pub fn choose(_options: &mut LoadOptions) {
    if std::env::var_os("UNICORN_NPU").is_some() {
        note("UNICORN_NPU has no effect: built without the feature npu-simulator, which is for tests");
    }
}
