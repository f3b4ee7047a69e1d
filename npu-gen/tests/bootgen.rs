//! Device images against AMD's own writer of them, Debian's package `xilinx-bootgen`, byte for byte.
//!
//! `BOOTGEN` names the program; without it, this check is skipped.

mod support;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use support::{small, small_gemv};
use test_support::skip;
use unicorn_kernels::npu::tile::Epilogue;
use unicorn_npu::control::{Control, CoreProgram, control};
use unicorn_npu::design::Design;
use unicorn_npu::device::Tile;
use unicorn_npu::lower::lower;
use unicorn_npu::{gemm, unicorn_kernels};

/// The image that bootgen makes of a control part's files.
fn image_of(program: &Path, control: &Control, folder: PathBuf) -> Vec<u8> {
    std::fs::create_dir_all(&folder).unwrap();
    let mut description = String::from("all: {\n id_code = 0x14ca8093\n extended_id_code = 0x01\n image {\n");
    description += "  name = aie_image, id = 0x1c000000\n  { type = cdo\n";
    for (name, bytes) in control.files() {
        let file = folder.join(name).with_extension("cdo");
        std::fs::write(&file, bytes).unwrap();
        description += &format!("   file = {}\n", file.display());
    }
    description += "  }\n }\n}\n";
    let (bif, pdi) = (folder.join("image.bif"), folder.join("image.pdi"));
    std::fs::write(&bif, description).unwrap();
    let mut command = Command::new(program);
    command.args(["-arch", "versal", "-w", "on", "-image"]).arg(&bif).arg("-o").arg(&pdi);
    let output = command.output().expect("the program starts");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stdout));
    std::fs::read(pdi).unwrap()
}

#[test]
fn images_are_those_of_bootgen() {
    let Some(program) = std::env::var_os("BOOTGEN").map(PathBuf::from) else {
        return skip("bootgen", "BOOTGEN names no program");
    };
    let code = |words: u32| CoreProgram { code: (0..words).collect(), data: vec![(0x400, vec![7; 3])] };
    let of =
        |design: &Design, programs: &BTreeMap<Tile, CoreProgram>| control(design, &lower(design), programs).unwrap();
    let gemm = gemm::design(&small(4, 32, Epilogue::Scale));
    // Programs of lengths around those from which a block's length has a word of its own, and 16 KiB.
    let programs = [252, 253, 254, 4096].into_iter().enumerate();
    let programs = programs.map(|(index, words)| (Tile::core(0, index as u32), code(words))).collect();
    let none = BTreeMap::new();
    let controls = [
        of(&gemm, &none),
        of(&gemm, &programs),
        of(&gemm::design(&small(1, 64, Epilogue::Scale)), &none),
        of(&gemm::design(&small_gemv(3, 32, Epilogue::Scale)), &none),
    ];
    for (index, control) in controls.iter().enumerate() {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("bootgen-{index}"));
        assert!(image_of(&program, control, folder) == control.image(), "control part {index}");
    }
}
