//! XCLBIN files read and written by AMD's own tool, of Debian's package of XRT.
//!
//! `XCLBINUTIL` names the program; without it, this check is skipped.

mod support;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use support::{small, small_gemv};
use test_support::skip;
use unicorn_artifact::npu::xclbin::{Program, xclbin};
use unicorn_kernels::npu::tile::Epilogue;
use unicorn_npu::control::control;
use unicorn_npu::design::Design;
use unicorn_npu::lower::lower;
use unicorn_npu::{gemm, unicorn_artifact, unicorn_kernels};

const IDENTITY: [u8; 16] = *b"\x01\x23\x45\x67\x89\xab\xcd\xef\x10\x32\x54\x76\x98\xba\xdc\xfe";
const IDENTITY_TEXT: &str = "01234567-89ab-cdef-1032-547698badcfe";

/// The tool's descriptions of a program: memories, partition and kernel.
fn descriptions(design: &Design) -> [(&'static str, String); 3] {
    let memory = |name: &str, kib: &str| {
        format!(
            r#"{{"m_type":"MEM_DRAM","m_used":"1","m_sizeKB":"{kib}","m_tag":"{name}","m_base_address":"0x4000000"}}"#
        )
    };
    let memories = [memory("HOST", "0x10000"), memory("SRAM", "0xc000")].join(",");
    let (columns, starts) = match design.columns {
        1 => (1, "1, 2, 3, 4"),
        2 => (2, "1, 2, 3"),
        3 => (3, "1, 2"),
        _ => (4, "1"),
    };
    let partition = format!(
        r#"{{"aie_partition":{{"name":"QoS","operations_per_cycle":"2048","inference_fingerprint":"23423",
        "pre_post_fingerprint":"12345","partition":{{"column_width":{columns},"start_columns":[{starts}]}},
        "PDIs":[{{"uuid":"{IDENTITY_TEXT}","file_name":"./image.pdi","cdo_groups":[{{"name":"DPU","type":"PRIMARY",
        "pdi_id":"0x01","dpu_kernel_ids":["0x901"],"pre_cdo_groups":["0xC1"]}}]}}]}}}}"#
    );
    let scalar = |name: &str, kind: &str, offset: &str| {
        format!(r#"{{"name":"{name}","address-qualifier":"SCALAR","type":"{kind}","offset":"{offset}"}}"#)
    };
    let buffer = |name: &str, kind: &str, memory: &str, offset: usize| {
        format!(
            r#"{{"name":"{name}","memory-connection":"{memory}","address-qualifier":"GLOBAL","type":"{kind}","offset":"{offset:#04x}"}}"#
        )
    };
    let mut arguments = vec![
        scalar("opcode", "uint64_t", "0x00"),
        buffer("instr", "char *", "SRAM", 8),
        scalar("ninstr", "uint32_t", "0x10"),
    ];
    let buffers = design.arguments.iter().enumerate();
    arguments.extend(buffers.map(|(index, one)| buffer(one.name, "void*", "HOST", 0x14 + 8 * index)));
    let kernel = format!(
        r#"{{"ps-kernels":{{"kernels":[{{"name":"MLIR_AIE","type":"dpu","extended-data":{{"subtype":"DPU","functional":"0",
        "dpu_kernel_id":"0x901"}},"arguments":[{}],"instances":[{{"name":"MLIRAIE"}}]}}]}}}}"#,
        arguments.join(",")
    );
    let memories = format!(r#"{{"mem_topology":{{"m_count":"2","m_mem_data":[{memories}]}}}}"#);
    [("memories.json", memories), ("partition.json", partition), ("kernel.json", kernel)]
}

/// The sections of a file by their kind.
fn sections(file: &[u8]) -> BTreeMap<u32, Vec<u8>> {
    let word = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().unwrap());
    let section = |index: usize| {
        let at = 0x1c8 + 40 * index;
        let (offset, len) = (word(at + 24) as usize, word(at + 32) as usize);
        (word(at), file[offset..offset + len].to_vec())
    };
    (0..word(0x1c0) as usize).map(section).collect()
}

#[test]
fn the_tool_reads_and_writes_the_same_sections() {
    let Some(program) = std::env::var_os("XCLBINUTIL").map(PathBuf::from) else {
        return skip("xclbinutil", "XCLBINUTIL names no program");
    };
    let mut designs: Vec<Design> = (1..=4).map(|columns| gemm::design(&small(columns, 32, Epilogue::Scale))).collect();
    designs.push(gemm::design(&small_gemv(4, 32, Epilogue::Scale)));
    for (index, design) in designs.iter().enumerate() {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("xclbinutil-{index}"));
        if folder.exists() {
            std::fs::remove_dir_all(&folder).unwrap();
        }
        std::fs::create_dir_all(&folder).unwrap();
        let image = control(design, &lower(design), &BTreeMap::new()).unwrap().image();
        let arguments: Vec<&str> = design.arguments.iter().map(|argument| argument.name).collect();
        let made = Program { columns: design.columns, arguments: &arguments, image: &image, identity: IDENTITY };
        let made = xclbin(&made);
        assert_eq!(u64::from_le_bytes(made[0x130..0x138].try_into().unwrap()), made.len() as u64);
        let write = |name: &str, content: &[u8]| std::fs::write(folder.join(name), content).unwrap();
        write("image.pdi", &image);
        write("made.xclbin", &made);
        descriptions(design).iter().for_each(|(name, text)| write(name, text.as_bytes()));
        let run = |arguments: &[&str]| {
            let mut command = Command::new(&program);
            let output = command.current_dir(&folder).args(arguments).output().expect("the program starts");
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(output.status.success() && !text.contains("ERROR"), "{command:?}: {text}");
            text
        };
        let add = "--add-replace-section";
        run(&[add, "MEM_TOPOLOGY:JSON:memories.json", "--add-kernel", "kernel.json", add]
            .into_iter()
            .chain(["AIE_PARTITION:JSON:partition.json", "--output", "theirs.xclbin"])
            .collect::<Vec<_>>());
        assert!(sections(&made) == sections(&std::fs::read(folder.join("theirs.xclbin")).unwrap()), "design {index}");

        let info = run(&["--info", "--input", "made.xclbin"]);
        assert!(info.contains(IDENTITY_TEXT) && info.contains("Version:                2.25.0"), "{info}");
        for kind in ["MEM_TOPOLOGY", "AIE_PARTITION", "EMBEDDED_METADATA", "IP_LAYOUT", "GROUP_CONNECTIVITY"] {
            assert!(info.contains(kind), "{kind} is missing in: {info}");
        }
        run(&["--dump-section", "AIE_PARTITION:JSON:dumped.json", "--input", "made.xclbin"]);
        assert!(std::fs::read(folder.join(format!("{IDENTITY_TEXT}.pdi"))).unwrap() == image, "design {index}");
    }
}
