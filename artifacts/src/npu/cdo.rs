//! Configuration data objects (CDO): commands that write registers of the array, as bytes.
//!
//! ```text
//! words, little-endian
//! head      0 words of the head behind it: 4 · 1 "CDO" · 2 version · 3 words of commands · 4 inverted sum of the words before it
//! command     operands << 16 │ 1 << 8 │ number, operands; 255 operands: their number is the next word
//!
//! number    0x02 masked write  address · mask · value            0x07 the same, its address with an upper half of 0 before it
//!           0x03 write         address · value                   0x08 the same
//!           0x05 block         0 · address · words
//!           0x11 nothing       any, which place the next command
//! ```
//!
//! Sources: AMD's UG1304 (Versal system software, "Configuration Data Object"); bootgen's `cdo-binary.c`. Commands that are not listed are
//! refused: none here moves memory of the system or runs code of the firmware.

/// "CDO", as a number.
const CDO: u32 = 0x004f_4443;
const VERSION: u32 = 0x200;
/// Words of the head.
const HEAD_WORDS: usize = 5;
/// Operands' number that stands in a word of its own.
const LONG: u32 = 255;

const MASK_WRITE: u32 = 0x102;
const WRITE: u32 = 0x103;
const BLOCK: u32 = 0x105;
const MASK_WRITE_64: u32 = 0x107;
const WRITE_64: u32 = 0x108;
const NOTHING: u32 = 0x111;

/// A command. Addresses are of the array: column, row, place in the tile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CdoCommand {
    /// Writes a register.
    Write {
        /// Address of the register.
        address: u32,
        /// Value that is written.
        value: u32,
    },
    /// Changes some bits of a register.
    MaskWrite {
        /// Address of the register.
        address: u32,
        /// The bits.
        mask: u32,
        /// Their value.
        value: u32,
    },
    /// Writes consecutive registers.
    Block {
        /// Address of the first register.
        address: u32,
        /// Values that are written.
        words: Vec<u32>,
    },
    /// Does nothing.
    Nothing {
        /// Words that are passed over.
        operands: Vec<u32>,
    },
}

/// How addresses are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressForm {
    /// With an upper half, as AMD's tools write files.
    Long,
    /// Without, as bootgen writes device images; blocks always have one.
    Short,
}

impl CdoCommand {
    /// The words of the command.
    fn words(&self, form: AddressForm) -> Vec<u32> {
        let (number, operands) = match (self, form) {
            (CdoCommand::Write { address, value }, AddressForm::Short) => (WRITE, vec![*address, *value]),
            (CdoCommand::Write { address, value }, AddressForm::Long) => (WRITE_64, vec![0, *address, *value]),
            (CdoCommand::MaskWrite { address, mask, value }, AddressForm::Short) => {
                (MASK_WRITE, vec![*address, *mask, *value])
            }
            (CdoCommand::MaskWrite { address, mask, value }, AddressForm::Long) => {
                (MASK_WRITE_64, vec![0, *address, *mask, *value])
            }
            (CdoCommand::Block { address, words }, _) => (BLOCK, [&[0, *address][..], words].concat()),
            (CdoCommand::Nothing { operands }, _) => (NOTHING, operands.clone()),
        };
        let len = u32::try_from(operands.len()).expect("a command has less than 2^32 operands");
        let head = if len < LONG { vec![len << 16 | number] } else { vec![LONG << 16 | number, len] };
        [head, operands].concat()
    }
}

/// The words of `commands`, without a head.
pub fn encode_commands(commands: &[CdoCommand], form: AddressForm) -> Vec<u32> {
    commands.iter().flat_map(|command| command.words(form)).collect()
}

/// The words of `commands` in a device image: before a block, nothing is done until its words are at a multiple of 16 bytes behind the head.
pub(super) fn encode_aligned(commands: &[CdoCommand]) -> Vec<u32> {
    let mut words = Vec::new();
    for command in commands {
        let encoded = command.words(AddressForm::Short);
        if let CdoCommand::Block { words: data, .. } = command {
            let data_at = HEAD_WORDS + words.len() + encoded.len() - data.len();
            let missing = data_at.next_multiple_of(4) - data_at;
            if missing > 0 {
                words.extend(CdoCommand::Nothing { operands: vec![0; missing - 1] }.words(AddressForm::Short));
            }
        }
        words.extend(encoded);
    }
    words
}

/// `commands` with their head.
pub(super) fn with_head(commands: &[u32]) -> Vec<u32> {
    let len = u32::try_from(commands.len()).expect("an object has less than 2^32 words");
    let head = [HEAD_WORDS as u32 - 1, CDO, VERSION, len];
    [&head[..], &[inverted_sum(&head)], commands].concat()
}

/// A file of `commands`.
pub fn cdo_file(commands: &[CdoCommand]) -> Vec<u8> {
    let words = with_head(&encode_commands(commands, AddressForm::Long));
    words.into_iter().flat_map(u32::to_le_bytes).collect()
}

/// Inverted sum of words: the checksum of heads.
pub(super) fn inverted_sum(words: &[u32]) -> u32 {
    !words.iter().fold(0, |sum: u32, word| sum.wrapping_add(*word))
}

/// Reads an object: a head and its commands.
///
/// # Errors
/// The first rule that it breaks.
pub fn decode_object(words: &[u32]) -> Result<Vec<CdoCommand>, String> {
    let Some((head, commands)) = words.split_at_checked(HEAD_WORDS) else {
        return Err(format!("head of the data is words 0 to {HEAD_WORDS}, expected up to {}", words.len()));
    };
    for (what, expected, found) in [
        ("number of the data", CDO, head[1]),
        ("words of the head", HEAD_WORDS as u32 - 1, head[0]),
        ("version of the data", VERSION, head[2]),
        ("checksum of the head of the data", inverted_sum(&head[..4]), head[4]),
    ] {
        expect(what, expected, found)?;
    }
    if commands.len() != head[3] as usize {
        return Err(format!("words of commands are {:#x}, expected {:#x}", head[3], commands.len()));
    }
    decode_commands(commands)
}

pub(super) fn expect(what: &str, expected: u32, found: u32) -> Result<(), String> {
    if expected == found { Ok(()) } else { Err(format!("{what} is {found:#x}, expected {expected:#x}")) }
}

/// Reads commands without a head.
///
/// # Errors
/// The first command that is none of the listed ones.
pub fn decode_commands(mut words: &[u32]) -> Result<Vec<CdoCommand>, String> {
    let mut commands = Vec::new();
    while let Some((head, rest)) = words.split_first() {
        let index = commands.len();
        let (len, rest) = match (head >> 16 & LONG, rest.split_first()) {
            (LONG, Some((len, rest))) => (*len as usize, rest),
            (LONG, None) => return Err(format!("command {index} ends before its length")),
            (len, _) => (len as usize, rest),
        };
        let Some((operands, rest)) = rest.split_at_checked(len) else {
            return Err(format!("command {index} has {len} operands, expected at most {}", rest.len()));
        };
        let of = |what: String| format!("command {index}, {head:#010x}: {what}");
        commands.push(match (head & !(LONG << 16), operands) {
            (MASK_WRITE, [address, mask, value]) | (MASK_WRITE_64, [0, address, mask, value]) => {
                CdoCommand::MaskWrite { address: *address, mask: *mask, value: *value }
            }
            (WRITE, [address, value]) | (WRITE_64, [0, address, value]) => {
                CdoCommand::Write { address: *address, value: *value }
            }
            (BLOCK, [0, address, words @ ..]) if !words.is_empty() => {
                CdoCommand::Block { address: *address, words: words.to_vec() }
            }
            (NOTHING, operands) => CdoCommand::Nothing { operands: operands.to_vec() },
            (MASK_WRITE_64 | WRITE_64 | BLOCK, [upper, _, _, ..]) if *upper != 0 => {
                return Err(of(format!("upper half of the address is {upper:#x}, expected 0")));
            }
            (MASK_WRITE_64, _) => return Err(of(format!("{len} operands, expected 4"))),
            (MASK_WRITE | WRITE_64, _) => return Err(of(format!("{len} operands, expected 3"))),
            (WRITE, _) => return Err(of(format!("{len} operands, expected 2"))),
            (BLOCK, _) => return Err(of(format!("{len} operands, expected 3 or more"))),
            _ => return Err(of("unknown, expected a write or nothing".into())),
        });
        words = rest;
    }
    Ok(commands)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_read_as_they_were_written_in_both_forms() {
        let block = |len: u32| CdoCommand::Block { address: 0x0021_d000, words: (0..len).collect() };
        let commands = vec![
            CdoCommand::Nothing { operands: vec![] },
            CdoCommand::Write { address: 0x0221_f000, value: 7 },
            CdoCommand::MaskWrite { address: 0x0001_f000, mask: 0xc00, value: 0x400 },
            block(1),
            block(252),
            block(253),
            block(1000),
            CdoCommand::Nothing { operands: vec![3; 300] },
        ];
        for form in [AddressForm::Long, AddressForm::Short] {
            let words = encode_commands(&commands, form);
            assert_eq!(decode_commands(&words), Ok(commands.clone()));
            assert_eq!(decode_object(&with_head(&words)), Ok(commands.clone()));
            for end in 0..words.len() {
                let whole = decode_commands(&words[..end]);
                assert!(whole.is_err() || whole.is_ok_and(|found| commands.starts_with(&found)), "{end} words");
            }
        }
    }

    #[test]
    fn a_file_has_the_bytes_of_the_format() {
        let words = [4, 0x004f_4443, 0x200, 4, !(4 + 0x004f_4443 + 0x200 + 4), 0x0003_0108, 0, 0x0221_f000, 1];
        let expected: Vec<u8> = words.into_iter().flat_map(u32::to_le_bytes).collect();
        assert_eq!(cdo_file(&[CdoCommand::Write { address: 0x0221_f000, value: 1 }]), expected);
    }

    #[test]
    fn blocks_in_an_image_are_aligned_behind_the_head() {
        let write = CdoCommand::Write { address: 4, value: 5 };
        for writes in 0..4 {
            let mut commands = vec![write.clone(); writes];
            commands.push(CdoCommand::Block { address: 8, words: vec![0xdada; 2] });
            let words = with_head(&encode_aligned(&commands));
            let at = words.iter().position(|word| *word == 0xdada).unwrap();
            assert!(at.is_multiple_of(4) && at < HEAD_WORDS + 3 * writes + 3 + 4, "{writes} writes: {words:x?}");
        }
    }
}
