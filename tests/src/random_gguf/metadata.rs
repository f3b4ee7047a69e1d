//! Values of metadata.

#[derive(Clone, Debug, PartialEq)]
pub enum Metadata {
    Number(u32),
    Float(f32),
    Text(&'static str),
    Numbers(Vec<u32>),
    Floats(Vec<f32>),
    Bools(Vec<bool>),
}

impl Metadata {
    pub fn put(&self, out: &mut Vec<u8>) {
        let mut words = |words: &[u32]| out.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        match self {
            Metadata::Number(value) => words(&[4, *value]),
            Metadata::Float(value) => words(&[6, value.to_bits()]),
            Metadata::Text(text) => {
                words(&[8]);
                put_text(out, text);
            }
            Metadata::Numbers(values) => put_array(out, 4, values, |value| value.to_le_bytes()),
            Metadata::Floats(values) => put_array(out, 6, values, |value| value.to_le_bytes()),
            Metadata::Bools(values) => put_array(out, 7, values, |value| [u8::from(value)]),
        }
    }
}

pub fn put_text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

/// An array of ggml's type `type_id`.
fn put_array<T: Copy, const N: usize>(out: &mut Vec<u8>, type_id: u32, values: &[T], bytes: impl Fn(T) -> [u8; N]) {
    out.extend([9, type_id].into_iter().flat_map(u32::to_le_bytes));
    out.extend((values.len() as u64).to_le_bytes());
    out.extend(values.iter().flat_map(|&value| bytes(value)));
}
