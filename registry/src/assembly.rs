//! Where each layer's bytes go in the assembled artifact.
//!
//! With the kernels of all targets, the file is the one that was pushed, bit for bit. With fewer, the sections that list a record for each
//! target hold only the records of the fetched targets, in the same order; later sections move up, and header and table are changed
//! accordingly. Everything else is the same: the file is what the compiler would have written with the same plan and only these
//! targets, and `unicorn-compile verify` finds no difference.

use std::ops::Range;

use unicorn_artifact::header::{HEADER_BYTES, SECTION_ALIGN, Section, SectionKind, decode_header_of, encode_header};

use crate::manifest::Layer;
use crate::parts::{COUNT_BYTES, PartName, check_packed};

/// The plan of a file.
#[derive(Debug)]
pub struct Assembly {
    sections: Vec<Section>,
    /// Length of the file.
    pub len_bytes: u64,
    /// All layers except the head by number, and the offset of each in the file.
    pub places: Vec<(usize, u64)>,
    /// Kinds of the sections that hold a record for each target, after the number of targets, and their ranges.
    pub by_target: Vec<(u32, Range<u64>)>,
    /// The targets whose records they hold.
    pub targets: Vec<String>,
    /// The header as it was pushed, if all targets are requested.
    whole_head: Option<Vec<u8>>,
}

impl Assembly {
    /// Plans a file from the head and layers of an artifact and the targets that are `wanted`. Head and layers are not trusted:
    /// every section must be covered by its layers exactly and in order.
    ///
    /// # Errors
    /// A message for people, when head and layers do not describe one artifact.
    pub fn plan(head: &[u8], layers: &[Layer], wanted: impl Fn(&str) -> bool) -> Result<Assembly, String> {
        let file_bytes = head.get(16..24).and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_le_bytes);
        let mut sections = decode_header_of(head, file_bytes).map_err(|error| error.to_string())?;
        check_packed(&sections, file_bytes).map_err(|error| error.to_string())?;
        if HEADER_BYTES + sections.len() * unicorn_artifact::header::ENTRY_BYTES != head.len() {
            return Err(format!("head has {} bytes, expected {} sections and no more", head.len(), sections.len()));
        }
        let mut rest = Layers { layers, next: 0 };
        rest.take("head", |name| *name == PartName::Head)?;

        let (mut places, mut targets, mut by_target) = (Vec::new(), Vec::new(), Vec::new());
        // All targets with kernels, in their order.
        let mut known: Vec<String> = Vec::new();
        let (mut all, mut end) = (true, head.len() as u64);
        for section in &mut sections {
            section.offset_bytes = end.next_multiple_of(SECTION_ALIGN);
            let mut at = section.offset_bytes;
            let Section { kind, index, len_bytes, .. } = *section;
            let mut left = len_bytes;
            if kind == SectionKind::Kernels as u32 {
                (at, left) = (at + COUNT_BYTES, left.saturating_sub(COUNT_BYTES));
                while left > 0 {
                    let (number, layer) = rest.take("kernels", |name| matches!(name, PartName::Kernels(_)))?;
                    left = rest.minus(left, layer)?;
                    let PartName::Kernels(target) = &layer.name else { unreachable!("it was just looked at") };
                    if known.contains(target) {
                        return Err(format!("target {target} is there twice"));
                    }
                    known.push(target.clone());
                    if wanted(target) {
                        places.push((number, at));
                        targets.push(target.clone());
                        at += layer.size;
                    } else {
                        all = false;
                    }
                }
                section.len_bytes = at - section.offset_bytes;
                by_target.push((kind, section.offset_bytes..at));
            } else if let Some((programs, name)) = PartName::of_programs(kind) {
                at += COUNT_BYTES;
                for target in &known {
                    let expected = name(target.clone());
                    let (number, layer) = rest.take(&expected.to_string(), |name| *name == expected)?;
                    left = rest.minus(left, layer)?;
                    if wanted(target) {
                        places.push((number, at));
                        at += layer.size;
                    }
                }
                if left != COUNT_BYTES {
                    return Err(format!("{} have {len_bytes} bytes, {left} of them in no layer", programs.name()));
                }
                section.len_bytes = at - section.offset_bytes;
                by_target.push((kind, section.offset_bytes..at));
            } else {
                let mut chunks = 0;
                while left > 0 {
                    let expected = match kind == SectionKind::Weights as u32 {
                        true => PartName::Weights { section: index, chunk: chunks },
                        false => PartName::Section { kind, index },
                    };
                    let (number, layer) = rest.take(&expected.to_string(), |name| *name == expected)?;
                    left = rest.minus(left, layer)?;
                    places.push((number, at));
                    at += layer.size;
                    chunks += 1;
                    if left > 0 && kind != SectionKind::Weights as u32 {
                        return Err(format!("layer {expected} has {} bytes, expected {len_bytes}", layer.size));
                    }
                }
            }
            end = section.offset_bytes + section.len_bytes;
        }
        if let Some(layer) = layers.get(rest.next) {
            return Err(format!("layer {} is of no section", layer.name));
        }
        if known.is_empty() {
            return Err("there is no kernels section".into());
        }
        let whole_head = all.then(|| head.to_vec());
        Ok(Assembly { sections, len_bytes: end, places, by_target, targets, whole_head })
    }

    /// Whether the kernels of all targets are requested.
    pub fn is_whole(&self) -> bool {
        self.whole_head.is_some()
    }

    /// Header and table, where the sections of `by_target` have these hashes.
    pub fn head(&self, hashes: &[[u8; 32]]) -> Vec<u8> {
        if let Some(head) = &self.whole_head {
            return head.clone();
        }
        let mut sections = self.sections.clone();
        for ((kind, _), hash) in self.by_target.iter().zip(hashes) {
            let of_kind = sections.iter_mut().filter(|section| section.kind == *kind);
            of_kind.for_each(|section| section.hash = *hash);
        }
        encode_header(&sections, self.len_bytes)
    }
}

/// Layers, taken in order.
struct Layers<'a> {
    layers: &'a [Layer],
    next: usize,
}

impl<'a> Layers<'a> {
    fn take(&mut self, expected: &str, is_expected: impl Fn(&PartName) -> bool) -> Result<(usize, &'a Layer), String> {
        let number = self.next;
        let found = self.layers.get(number);
        let layer = found.filter(|layer| is_expected(&layer.name)).ok_or_else(|| {
            let found = found.map_or("no more".into(), |layer| layer.name.to_string());
            format!("layer {number} is {found}, expected {expected}")
        })?;
        self.next += 1;
        Ok((number, layer))
    }

    /// The rest of a section after a layer.
    fn minus(&self, left: u64, layer: &Layer) -> Result<u64, String> {
        let rest = left.checked_sub(layer.size).filter(|_| layer.size > 0);
        rest.ok_or_else(|| format!("layer {} has {} bytes, expected 1 to {left}", layer.name, layer.size))
    }
}
