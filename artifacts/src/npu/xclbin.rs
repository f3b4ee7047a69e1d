//! XCLBIN: the container by which AMD's own runtime (XRT) loads a program. The kernel's driver needs none of it.
//!
//! ```text
//! 0x000   "xclbin2" · -1: no signature · 28 + 256 bytes without a key
//! 0x128   id · length · times · version · identity (16 bytes at 0x1a0) · number of sections at 0x1c0
//! 0x1c8   of each section 40 bytes: kind u32 · name, 16 bytes · offset u64 · length u64
//!         the sections, each from a multiple of 8 bytes
//!
//!  6      memories          HOST, for the buffers of a command, and SRAM, for its instructions
//! 32      partition         columns, where they may start, and the device image
//!  2      metadata          XML: the kernel's name and arguments
//!  8      kernels           one, started by the firmware's DPU kernel 0x901
//!  7      connectivity      memory of each argument
//! 27, 26  groups            the same for XRT's memory groups
//! ```
//!
//! Structs are those of XRT's `xclbin.h`; contents are those that `xclbinutil` of Debian's XRT 2.25 makes of the descriptions of
//! mlir-aie's tools for `npu1`. Times are 0: the file is a function of its input.

use std::fmt::Write;

/// Device image of a program, with what a host must know to run it.
#[derive(Clone, Copy, Debug)]
pub struct Program<'p> {
    /// Columns of the array that it takes.
    pub columns: u32,
    /// Names of the host's buffers, in the order of a command.
    pub arguments: &'p [&'p str],
    /// The device image.
    pub image: &'p [u8],
    /// Identity of the file and of the image, such as a hash of its content.
    pub identity: [u8; 16],
}

/// Columns of the array, of which the first has no DMA to DRAM.
const ARRAY_COLUMNS: u32 = 5;
/// Name of the kernel, by which XRT opens it.
pub const KERNEL: &str = "MLIR_AIE";
const INSTANCE: &str = "MLIRAIE";
/// The kernel of the firmware that runs instruction streams.
const DPU_KERNEL: u32 = 0x901;
const PRE_CDO_GROUP: u32 = 0xc1;
const PDI_ID: u64 = 1;
const OPERATIONS_PER_CYCLE: u32 = 2048;
/// What mlir-aie's tools write; nothing compares them.
const FINGERPRINTS: [u64; 2] = [23423, 12345];

/// Number of the memory of a command's buffers.
pub const HOST: u32 = 0;
/// Number of the memory of its instructions.
pub const SRAM: u32 = 1;
const MEMORIES: [(&str, u64); 2] = [("HOST", 0x1_0000), ("SRAM", 0xc000)];
const MEMORY_BASE: u64 = 0x400_0000;
const MEM_DRAM: u32 = 2;

const MAGIC: [u8; 8] = *b"xclbin2\0";
const LENGTH_AT: usize = 0x130;
const VERSION_AT: usize = 0x148;
/// Patch, major and minor version of the format: 2.25.0.
const VERSION: [u8; 4] = [0, 0, 2, 25];
const IDENTITY_AT: usize = 0x1a0;
const SECTIONS_AT: usize = 0x1c0;
const HEADER_BYTES: usize = 0x1c8;
const SECTION_BYTES: usize = 40;

/// The file of a program.
pub fn xclbin(program: &Program) -> Vec<u8> {
    let connections = connections(program.arguments);
    let sections = [
        (6, memories()),
        (32, partition(program)),
        (2, metadata(program.arguments).into_bytes()),
        (8, kernels()),
        (7, counted(&connections)),
        // Each connection once as a memory's and once as a group's: the groups are the memories.
        (27, counted(&[&connections[..], &connections].concat())),
        (26, memories()),
    ];
    let mut file = vec![0; HEADER_BYTES + SECTION_BYTES * sections.len()];
    file[..8].copy_from_slice(&MAGIC);
    file[8..0x128].fill(0xff);
    file[VERSION_AT..][..4].copy_from_slice(&VERSION);
    file[IDENTITY_AT..][..16].copy_from_slice(&program.identity);
    file[SECTIONS_AT..][..4].copy_from_slice(&(sections.len() as u32).to_le_bytes());
    for (index, (kind, content)) in sections.iter().enumerate() {
        let offset = file.len() as u64;
        let head = &mut file[HEADER_BYTES + SECTION_BYTES * index..][..SECTION_BYTES];
        head[..4].copy_from_slice(&u32::to_le_bytes(*kind));
        head[24..32].copy_from_slice(&offset.to_le_bytes());
        head[32..].copy_from_slice(&(content.len() as u64).to_le_bytes());
        file.extend(content);
        file.resize(file.len().next_multiple_of(8), 0);
    }
    let length = file.len() as u64;
    file[LENGTH_AT..][..8].copy_from_slice(&length.to_le_bytes());
    file
}

/// Little-endian bytes of words.
fn bytes(words: &[u32]) -> impl Iterator<Item = u8> {
    words.iter().flat_map(|word| word.to_le_bytes())
}

/// A text in a field of `len` bytes.
fn field(text: &str, len: usize) -> Vec<u8> {
    assert!(text.len() < len, "{text} ends with a 0 in {len} bytes");
    let mut field = text.as_bytes().to_vec();
    field.resize(len, 0);
    field
}

/// `mem_topology`: count, then type and use, size in KiB, base address and name of each.
fn memories() -> Vec<u8> {
    let mut section: Vec<u8> = bytes(&[MEMORIES.len() as u32, 0]).collect();
    for (name, kib) in MEMORIES {
        section.extend(bytes(&[1 << 8 | MEM_DRAM, 0]));
        section.extend(kib.to_le_bytes().into_iter().chain(MEMORY_BASE.to_le_bytes()));
        section.extend(field(name, 16));
    }
    section
}

/// `ip_layout` with one `ip_data`: a kernel of the PS, started as a DPU, without a base address.
fn kernels() -> Vec<u8> {
    const IP_PS_KERNEL: u32 = 7;
    const SUBTYPE_DPU: u32 = 1;
    let words = [1, 0, IP_PS_KERNEL, DPU_KERNEL << 16 | SUBTYPE_DPU, u32::MAX, u32::MAX];
    bytes(&words).chain(field(&format!("{KERNEL}:{INSTANCE}"), 64)).collect()
}

/// Number of the first argument that is a buffer: after the opcode, the instructions and their number.
pub const FIRST_BUFFER: usize = 3;

/// `connection`: argument, kernel, memory.
fn connections(arguments: &[&str]) -> Vec<[u32; 3]> {
    let buffers = (FIRST_BUFFER..).zip(arguments).map(|(index, _)| [index as u32, 0, HOST]);
    std::iter::once([1, 0, SRAM]).chain(buffers).collect()
}

fn counted(connections: &[[u32; 3]]) -> Vec<u8> {
    bytes(&[connections.len() as u32]).chain(connections.iter().flat_map(|one| bytes(one))).collect()
}

fn metadata(arguments: &[&str]) -> String {
    let mut xml = format!(
        r#"<?xml version="1.0" encoding="utf-8"?>
<project>
  <platform>
    <device>
      <core>
        <kernel name="{KERNEL}" language="c" type="dpu">
          <extended-data subtype="1" functional="0" dpu_kernel_id="{DPU_KERNEL:#x}"/>
"#
    );
    let scalars = [("opcode", 0, 8, 0, "uint64_t"), ("instr", 1, 8, 8, "char *"), ("ninstr", 0, 4, 16, "uint32_t")];
    let buffers = arguments.iter().enumerate().map(|(index, name)| (*name, 1, 8, 20 + 8 * index, "void*"));
    for (id, (name, qualifier, size, offset, kind)) in scalars.into_iter().chain(buffers).enumerate() {
        writeln!(
            xml,
            r#"          <arg name="{name}" addressQualifier="{qualifier}" id="{id}" size="{size:#x}" offset="{offset:#04x}" hostOffset="0x0" hostSize="{size:#x}" type="{kind}"/>"#
        )
        .expect("a String takes any text");
    }
    xml + &format!(
        r#"          <instance name="{INSTANCE}"/>
        </kernel>
      </core>
    </device>
  </platform>
</project>
"#
    )
}

/// `aie_partition`: a head of 184 bytes, then what it refers to by offsets in the section: texts, columns, the image, and last the structs
/// that refer to these.
fn partition(program: &Program) -> Vec<u8> {
    const HEAD_BYTES: usize = 184;
    const INFO_AT: usize = 32;
    const PDIS_AT: usize = 120;
    const STRUCT_BYTES: usize = 96;
    const PRIMARY: u32 = 1;
    /// Puts `content` at the end and returns where.
    fn put(section: &mut Vec<u8>, content: &[u8]) -> u32 {
        let at = section.len() as u32;
        section.extend(content);
        section.resize(section.len().next_multiple_of(8), 0);
        at
    }
    let words = |words: &[u32]| -> Vec<u8> { bytes(words).collect() };
    let padded = |content: Vec<u8>| {
        let mut content = content;
        content.resize(STRUCT_BYTES, 0);
        content
    };
    let last_column = ARRAY_COLUMNS.checked_sub(program.columns).expect("a design has at most 4 columns");
    let starts: Vec<u8> = (1..=last_column as u16).flat_map(u16::to_le_bytes).collect();

    let mut section = vec![0; HEAD_BYTES];
    let name = put(&mut section, &[0]);
    let commit = put(&mut section, &[0]);
    let starts_at = put(&mut section, &starts);
    let image = put(&mut section, program.image);
    let group_name = put(&mut section, b"DPU\0");
    let kernel = put(&mut section, &u64::from(DPU_KERNEL).to_le_bytes());
    let groups_before = put(&mut section, &PRE_CDO_GROUP.to_le_bytes());
    let id = [PDI_ID as u32, (PDI_ID >> 32) as u32];
    let group = [&[group_name, PRIMARY][..], &id, &[1, kernel, 1, groups_before]].concat();
    let group = put(&mut section, &padded(words(&group)));
    let pdi = [program.identity.to_vec(), words(&[program.image.len() as u32, image, 1, group])].concat();
    let pdi = put(&mut section, &padded(pdi));

    let mut fill = |at: usize, content: Vec<u8>| section[at..at + content.len()].copy_from_slice(&content);
    fill(4, words(&[name, OPERATIONS_PER_CYCLE]));
    fill(16, FINGERPRINTS.into_iter().flat_map(u64::to_le_bytes).collect());
    fill(INFO_AT, words(&[program.columns, 0, last_column, starts_at]));
    fill(PDIS_AT, words(&[1, pdi, commit]));
    section
}
