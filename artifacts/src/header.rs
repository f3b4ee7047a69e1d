//! The first bytes of the file: header and section table, both of fixed-width little-endian integers.
//!
//! ```text
//! header   0 magic "UNICORN\0" · 8 major u16 · 10 minor u16 · 12 sections u32 · 16 file length u64
//!         24 reserved u64 = 0  · 32 BLAKE3 of bytes 0..32 and of the section table
//! entry    0 kind u32 · 4 index u32 · 8 offset u64 · 16 length u64 · 24 reserved u64 = 0 · 32 BLAKE3 of the section
//! ```

use crate::error::ParseError;

/// First bytes of every artifact.
pub const MAGIC: [u8; 8] = *b"UNICORN\0";
/// Readers refuse another major version by name.
pub const VERSION_MAJOR: u16 = 8;
/// Readers ignore what a newer minor version adds: unknown section kinds.
pub const VERSION_MINOR: u16 = 8;
/// Length of the header.
pub const HEADER_BYTES: usize = 64;
/// Length of an entry of the section table.
pub const ENTRY_BYTES: usize = 64;
/// Sections begin on multiples of this, which no GPU's import or offset alignment exceeds.
pub const SECTION_ALIGN: u64 = 64 << 10;
/// Largest weight section: a 4 GiB buffer is refused or misread by some drivers.
pub const MAX_SLICE_BYTES: u64 = 1 << 30;
/// More than any artifact has; bounds the work that a malformed header causes.
pub const MAX_SECTIONS: u32 = 1 << 16;
/// Largest size of header and section table, in bytes.
pub const MAX_HEAD_BYTES: usize = HEADER_BYTES + MAX_SECTIONS as usize * ENTRY_BYTES;

/// Content of a section. Kinds that a reader does not support are skipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
pub enum SectionKind {
    /// Description of the model: [`crate::Meta`].
    Metadata = 1,
    /// Place of every byte: [`crate::Plan`].
    Plan = 2,
    /// Kernels and programs: [`crate::Kernels`].
    Kernels = 3,
    /// Tokenizer: [`crate::TokenizerSection`].
    Tokenizer = 4,
    /// A slice of packed weights.
    Weights = 5,
    /// Programs of an NPU: [`crate::NpuSection`]. Since 8.1, and only for models with an NPU.
    Npu = 6,
    /// A slice of weights as NPU programs read them. Since 8.1.
    NpuWeights = 7,
    /// Steps in which an NPU takes part: [`crate::NpuSteps`], one a target. Since 8.2, and only beside an NPU section.
    NpuSteps = 8,
    /// Programs that write hidden rows, a list of them for each target. Since 8.3, and only if there are any.
    HiddenPrograms = 9,
    /// The model's license: [`crate::LicenseSection`]. Since 8.4, and only where the model names one.
    License = 10,
    /// The draft's model: an artifact of its own. Since 8.5, and only where one was packed into it.
    Draft = 11,
    /// What stands for images, and how their pixels are read: [`crate::ImageSection`]. Since 8.6, and only for models with a vision tower.
    Image = 12,
    /// Programs that make rows of images, and those whose rows may be of images, a list of them for each target. Since 8.6, and only
    /// beside an image section.
    ImagePrograms = 13,
    /// What there is for images of any size: [`crate::ImageGrid`]. Since 8.7, and only beside an image section whose size of an image is 0.
    ImageGrid = 14,
    /// Programs whose rows are newest tokens of several sequences and a part of a prompt, a list of them for each target. Since 8.7, and only if
    /// there are any.
    MixedPrograms = 15,
    /// The order of work in steps in which an NPU takes part: [`crate::npu::NpuSchedule`], one a program, a list of them for each target. Since 8.8, and
    /// only beside npu steps.
    NpuSchedules = 16,
    /// Programs that predict the token behind the next one, a list of them for each target. Since 8.8, and only for models with a head for it.
    PredictedPrograms = 18,
    /// As `MixedPrograms`, with parts of two prompts. Since 8.8, and only if there are any.
    BesideTwoPrograms = 19,
}

impl SectionKind {
    /// The kind with this number, if there is one.
    pub fn from_u32(value: u32) -> Option<SectionKind> {
        use SectionKind::*;
        let numbered = [Metadata, Plan, Kernels, Tokenizer, Weights, Npu, NpuWeights, NpuSteps, HiddenPrograms];
        let later = [License, Draft, Image, ImagePrograms, ImageGrid];
        let later = later.into_iter().chain([MixedPrograms, NpuSchedules, PredictedPrograms, BesideTwoPrograms]);
        numbered.into_iter().chain(later).find(|&kind| kind as u32 == value)
    }

    /// Name for errors and tables.
    pub fn name(self) -> &'static str {
        match self {
            SectionKind::Metadata => "metadata",
            SectionKind::Plan => "plan",
            SectionKind::Kernels => "kernels",
            SectionKind::Tokenizer => "tokenizer",
            SectionKind::Weights => "weights",
            SectionKind::Npu => "npu",
            SectionKind::NpuWeights => "npu weights",
            SectionKind::NpuSteps => "npu steps",
            SectionKind::HiddenPrograms => "hidden programs",
            SectionKind::License => "license",
            SectionKind::Draft => "draft",
            SectionKind::Image => "image",
            SectionKind::ImagePrograms => "image programs",
            SectionKind::ImageGrid => "image grid",
            SectionKind::MixedPrograms => "mixed programs",
            SectionKind::NpuSchedules => "npu schedules",
            SectionKind::PredictedPrograms => "predicted programs",
            SectionKind::BesideTwoPrograms => "programs beside two prompts",
        }
    }
}

/// One row of the section table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Section {
    /// [`SectionKind`] as a number; unknown ones are kept.
    pub kind: u32,
    /// Slice number of a weight section or of one of NPU weights; 0 for the others.
    pub index: u32,
    /// Offset in the file, a multiple of [`SECTION_ALIGN`].
    pub offset_bytes: u64,
    /// Length, without the zeros behind it.
    pub len_bytes: u64,
    /// BLAKE3 hash of its bytes; of a draft, of its header and section table, which cover the rest of it.
    pub hash: [u8; 32],
}

/// Length of header and table of `n_sections`.
pub fn head_bytes(n_sections: usize) -> usize {
    HEADER_BYTES + n_sections * ENTRY_BYTES
}

/// Header and table as bytes, ready for offset 0.
pub fn encode_header(sections: &[Section], file_len_bytes: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(head_bytes(sections.len()));
    bytes.extend(MAGIC);
    bytes.extend(VERSION_MAJOR.to_le_bytes());
    bytes.extend(VERSION_MINOR.to_le_bytes());
    bytes.extend(u32::try_from(sections.len()).expect("few sections").to_le_bytes());
    bytes.extend(file_len_bytes.to_le_bytes());
    bytes.extend(0u64.to_le_bytes());
    bytes.extend([0; 32]);
    for section in sections {
        bytes.extend(section.kind.to_le_bytes());
        bytes.extend(section.index.to_le_bytes());
        bytes.extend(section.offset_bytes.to_le_bytes());
        bytes.extend(section.len_bytes.to_le_bytes());
        bytes.extend(0u64.to_le_bytes());
        bytes.extend(section.hash);
    }
    let hash = table_hash(&bytes);
    bytes[32..64].copy_from_slice(&hash);
    bytes
}

/// The inverse of [`encode_header`], for any bytes: checks magic, version, lengths, the table's hash, and that every
/// section lies inside the file, aligned, in order and without overlap.
///
/// # Errors
/// [`ParseError`] names the first of these that is wrong.
pub fn decode_header(bytes: &[u8]) -> Result<Vec<Section>, ParseError> {
    decode_header_of(bytes, bytes.len() as u64)
}

/// The same for a file of `found_len_bytes`, of which `bytes` are the first: all, or at least [`MAX_HEAD_BYTES`].
///
/// # Errors
/// Errors of [`decode_header`].
pub fn decode_header_of(bytes: &[u8], found_len_bytes: u64) -> Result<Vec<Section>, ParseError> {
    let found_magic = &bytes[..bytes.len().min(MAGIC.len())];
    if found_magic != MAGIC {
        return Err(ParseError::Magic { found: found_magic.to_vec() });
    }
    let header = take(bytes, "header", 0, HEADER_BYTES)?;
    let (major, minor) = (u16_at(header, 8), u16_at(header, 10));
    if major != VERSION_MAJOR {
        return Err(ParseError::Version { found_major: major, found_minor: minor, supported_major: VERSION_MAJOR });
    }
    let count = u32_at(header, 12);
    if count > MAX_SECTIONS {
        return Err(ParseError::invalid("section count", format!("at most {MAX_SECTIONS}"), count));
    }
    let file_len_bytes = u64_at(header, 16);
    if file_len_bytes != found_len_bytes {
        return Err(ParseError::Cut { what: "file", offset: 0, expected: file_len_bytes, found: found_len_bytes });
    }
    let table = take(bytes, "section table", HEADER_BYTES, count as usize * ENTRY_BYTES)?;
    let expected = &header[32..64];
    let found = table_hash(&bytes[..HEADER_BYTES + table.len()]);
    if expected != found {
        return Err(ParseError::Hash {
            what: "section table".into(),
            offset: HEADER_BYTES as u64,
            expected: hex(expected),
            found: hex(&found),
        });
    }
    let sections: Vec<Section> = table.chunks_exact(ENTRY_BYTES).map(decode_entry).collect();
    let mut end = (HEADER_BYTES + table.len()) as u64;
    for section in &sections {
        if section.offset_bytes < end || !section.offset_bytes.is_multiple_of(SECTION_ALIGN) {
            return Err(ParseError::invalid(
                format!("offset of section {}.{}", section.kind, section.index),
                format!("a multiple of {SECTION_ALIGN} from {end} on"),
                section.offset_bytes,
            ));
        }
        end = section.offset_bytes.checked_add(section.len_bytes).filter(|&end| end <= file_len_bytes).ok_or(
            ParseError::Cut {
                what: "a section",
                offset: section.offset_bytes,
                expected: section.len_bytes,
                found: file_len_bytes.saturating_sub(section.offset_bytes),
            },
        )?;
    }
    Ok(sections)
}

/// Lower-case hexadecimal, as hashes are shown.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn decode_entry(entry: &[u8]) -> Section {
    Section {
        kind: u32_at(entry, 0),
        index: u32_at(entry, 4),
        offset_bytes: u64_at(entry, 8),
        len_bytes: u64_at(entry, 16),
        hash: entry[32..64].try_into().expect("32 bytes"),
    }
}

fn table_hash(header_and_table: &[u8]) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&header_and_table[..32]).update(&header_and_table[HEADER_BYTES..]);
    *hasher.finalize().as_bytes()
}

fn take<'a>(bytes: &'a [u8], what: &'static str, offset: usize, len: usize) -> Result<&'a [u8], ParseError> {
    bytes.get(offset..offset + len).ok_or(ParseError::Cut {
        what,
        offset: offset as u64,
        expected: len as u64,
        found: bytes.len().saturating_sub(offset) as u64,
    })
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes[at..at + 2].try_into().expect("2 bytes"))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
}
