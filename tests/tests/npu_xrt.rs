//! The NPU by XRT's C API (`--npu-driver xrt`), on a library of ours that checks the calls; the array is simulated here.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use std::{fs, thread};

use tempfile::TempDir;
use tests::compiled::{Compiled, options, with};
use tests::control_image::control_image;
use unicorn_artifact::{ArtifactView, NpuSection};
use unicorn_compiler::{NpuOptions, NpuWork};
use unicorn_kernels::npu::quantize::{Activations, Weights};
use unicorn_kernels::npu::tile::GemmShape;
use unicorn_kernels::npu::twin;
use unicorn_npu_simulator::Array;
use unicorn_runtime::npu::{COMMAND_LIMIT, NpuDevice, NpuError, NpuOpener};
use unicorn_spirv::target;

fn artifact() -> Vec<u8> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/tiny/llama3-rope");
    let options = with(options(vec![target::by_name("generic").unwrap()], Vec::new()), |options| {
        let work = Some(vec![NpuWork::Qkv, NpuWork::Ffn]);
        options.npu = Some(NpuOptions::default().with(|npu| (npu.rows, npu.work) = (64, work)));
    });
    Compiled::of_folder(&folder, &options).artifact()
}

/// The library, compiled for a folder of its own.
struct FakeXrt {
    folder: TempDir,
    library: PathBuf,
}

impl FakeXrt {
    fn built() -> FakeXrt {
        let folder = tempfile::tempdir().unwrap();
        let library = folder.path().join("libxrt_coreutil.so.2");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/fake_xrt.c");
        let define = format!("-DFOLDER=\"{}\"", folder.path().display());
        let mut compiler = Command::new("cc");
        compiler.args(["-shared", "-fPIC", "-Wall", "-Werror", &define, "-o"]).arg(&library).arg(source);
        let output = compiler.output().expect("a C compiler, which also links Rust's programs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        FakeXrt { folder, library }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Calls so far, by name.
    fn count(&self, call: &str) -> usize {
        fs::read_to_string(self.file("calls")).unwrap().lines().filter(|line| *line == call).count()
    }

    fn load(&self, section: &NpuSection, slices: &[&[u8]], limit: Duration) -> Result<NpuDevice, NpuError> {
        NpuDevice::load(NpuOpener::xrt(Some(self.library.clone())).open()?, section, slices, limit)
    }

    /// Simulates the array while `work` runs: each request is a stream on buffers.
    fn simulate(&self, section: &NpuSection, work: impl FnOnce()) {
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    match fs::remove_file(self.file("request")) {
                        Ok(()) => self.answer(section),
                        Err(_) => thread::sleep(Duration::from_millis(1)),
                    }
                }
            });
            // A failed check must not leave the thread running, for which the scope waits.
            let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
            is_over.store(true, Ordering::Relaxed);
            done.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        });
    }

    fn answer(&self, section: &NpuSection) {
        let read = |name: &str| fs::read(self.file(name)).unwrap();
        let stream = read("stream");
        let program = section.programs.iter().find(|program| program.instructions == stream).expect("its stream");
        let mut buffers = [0, 1, 2].map(|index| read(&format!("buffer{index}")));
        Array::of(program).unwrap().run(&stream, &mut buffers).unwrap();
        fs::write(self.file("made"), &buffers[2]).unwrap();
        fs::rename(self.file("made"), self.file("done")).unwrap();
    }
}

/// Through XCLBIN, kernels, buffers and runs: the product from its definition, bit for bit.
#[test]
fn products_run_through_xrts_calls() {
    let bytes = artifact();
    let view = ArtifactView::parse(&bytes).unwrap();
    let slices: Vec<&[u8]> = view.npu_weights().iter().map(|slice| slice.bytes).collect();
    let mut section = view.npu.clone().unwrap();
    let xrt = FakeXrt::built();
    // XRT is hardware: cores need machine code.
    let error = xrt.load(&section, &slices, COMMAND_LIMIT).err().expect("no machine code").to_string();
    assert!(error.contains("a control image without programs for the array's cores"), "{error}");

    section.programs.iter_mut().for_each(|program| program.control = control_image());
    let mut device = xrt.load(&section, &slices, COMMAND_LIMIT).unwrap();
    assert!(device.facts().driver.contains("XRT") && device.facts().is_npu1());
    for (index, program) in section.programs.iter().enumerate() {
        let file = fs::read(xrt.file(&format!("{index}.xclbin"))).unwrap();
        assert!(file.windows(program.control.len()).any(|bytes| bytes == program.control), "{}", program.name);
    }
    xrt.simulate(&section, || {
        for (index, product) in section.products.iter().enumerate() {
            let shape = GemmShape::of_program(&section.programs[product.program as usize]).unwrap();
            let depth = product.depth as usize;
            let values = (0..40 * depth as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 8) as f32 / (1 << 23) as f32);
            let activations = Activations::quantize(&shape, &values.collect::<Vec<_>>(), depth);
            let packed = activations.pack(&shape);
            let found = device.run(index, |bytes| bytes.copy_from_slice(&packed)).unwrap().to_vec();
            let weights = &slices[product.slice as usize][product.offset_bytes as usize..];
            let weights = Weights::unpack(&shape, &weights[..product.len_bytes as usize]);
            let expected = twin::product(&shape, &activations, &weights);
            let expected: Vec<u8> = expected.iter().flat_map(|value| value.to_le_bytes()).collect();
            assert!(found == expected, "{}", product.name);
        }
        let before = xrt.count("xrtRunStart");
        assert_eq!(before, section.products.len());
        device.run_chain(0, 3).unwrap();
        assert_eq!(xrt.count("xrtRunStart"), before + 3);
    });

    // Runs that fail or hang are errors, and the next one begins with kernels that are opened again.
    for (state, part) in
        [("5", "ended in state error"), ("6", "ended in state abort"), ("hang", "did not finish within 2000 ms")]
    {
        let kernels = xrt.count("xrtPLKernelOpen");
        fs::write(xrt.file("next"), state).unwrap();
        let error = device.run(0, |bytes| bytes.fill(0)).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
        xrt.simulate(&section, || _ = device.run(0, |bytes| bytes.fill(0)).unwrap());
        assert_eq!(xrt.count("xrtPLKernelOpen"), kernels + section.programs.len(), "{state}");
    }
    drop(device);
    // Everything that was opened is closed.
    for (opened, closed) in
        [("xrtDeviceOpen", "xrtDeviceClose"), ("xrtPLKernelOpen", "xrtKernelClose"), ("xrtRunOpen", "xrtRunClose")]
    {
        assert_eq!(xrt.count(opened), xrt.count(closed), "{opened}");
    }
    assert_eq!(xrt.count("xrtBOAlloc") + xrt.count("xrtBOSubAlloc"), xrt.count("xrtBOFree"));
}
