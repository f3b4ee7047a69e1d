//! The simulated NPU, for tests: chosen by `UNICORN_NPU=simulated` alone.

use unicorn_npu_simulator::{Fault, Simulator};
use unicorn_runtime::LoadOptions;
use unicorn_runtime::npu::NpuOpener;

use crate::terminal::output::note;

/// Lets the model run on a simulated NPU if the environment names it. `UNICORN_NPU_FAULT=hang@3` makes its fourth run hang; `error`, `reset`, `wrong` and
/// `stale` likewise.
///
/// # Panics
/// When `UNICORN_NPU_FAULT` is not a valid fault: this is for tests.
pub fn choose(options: &mut LoadOptions) {
    if std::env::var("UNICORN_NPU").as_deref() != Ok("simulated") {
        return;
    }
    note("simulated NPU: for tests; its times say nothing");
    let simulator = Simulator::default();
    if let Ok(fault) = std::env::var("UNICORN_NPU_FAULT") {
        let (fault, run) = fault.split_once('@').expect("a fault is FAULT@RUN");
        let fault: Fault = fault.parse().unwrap_or_else(|error| panic!("UNICORN_NPU_FAULT: {error}"));
        simulator.inject(run.parse().expect("UNICORN_NPU_FAULT has the number of a run"), fault);
    }
    options.npu_opener = NpuOpener::new(move || simulator.open());
}
