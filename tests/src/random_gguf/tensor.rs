//! A tensor, and what it holds.

use std::io::{self, Write};

use half::f16;

use super::encoding::Encoding;
use crate::tiny_model::random::Random;

/// Alignment of tensor data, in bytes.
pub const ALIGN: u64 = 32;
/// The most random blocks that a tensor repeats: more than caches hold, and quickly made.
const POOL_BLOCKS: usize = 1 << 16;

#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    pub name: String,
    /// Outermost first, columns last.
    pub shape: Vec<u64>,
    content: Content,
}

#[derive(Clone, Debug, PartialEq)]
enum Content {
    /// Random, in the type that the writer takes for matrices.
    Random,
    /// Random, in a type of its own.
    RandomIn(Encoding),
    /// The same number everywhere, in F32.
    Constant(f32),
    /// These numbers, in F32.
    Values(Vec<f32>),
}

impl Tensor {
    pub fn matrix(name: impl Into<String>, rows: u32, cols: u32) -> Tensor {
        Tensor { name: name.into(), shape: [rows, cols].map(u64::from).to_vec(), content: Content::Random }
    }

    pub fn vector(name: impl Into<String>, cols: u32) -> Tensor {
        Tensor { name: name.into(), shape: vec![cols.into()], content: Content::Constant(1.0) }
    }

    pub fn values(name: impl Into<String>, values: Vec<f32>) -> Tensor {
        Tensor { name: name.into(), shape: vec![values.len() as u64], content: Content::Values(values) }
    }

    /// A stack of such tensors, one an expert.
    pub fn of_experts(mut self, count: u32) -> Tensor {
        self.shape.insert(0, count.into());
        self
    }

    pub fn of(self, constant: f32) -> Tensor {
        Tensor { content: Content::Constant(constant), ..self }
    }

    pub fn random_in(self, encoding: Encoding) -> Tensor {
        Tensor { content: Content::RandomIn(encoding), ..self }
    }

    pub fn is_quantized(&self) -> bool {
        matches!(self.content, Content::Random | Content::RandomIn(Encoding::MxFp4))
    }

    pub fn cols(&self) -> u64 {
        *self.shape.last().expect("a tensor has columns")
    }

    /// The type in a file whose matrices are as `of_matrix` has it for each name.
    pub fn encoding(&self, of_matrix: &dyn Fn(&str) -> Encoding) -> Encoding {
        match self.content {
            Content::Random => of_matrix(&self.name),
            Content::RandomIn(encoding) => encoding,
            Content::Constant(_) | Content::Values(_) => Encoding::F32,
        }
    }

    fn blocks(&self, encoding: Encoding) -> u64 {
        self.shape.iter().product::<u64>() / encoding.block().0 as u64
    }

    pub fn bytes(&self, encoding: Encoding) -> u64 {
        self.blocks(encoding) * encoding.block().1 as u64
    }

    pub fn write(&self, encoding: Encoding, seed: u64, out: &mut impl Write) -> io::Result<()> {
        let elements = self.shape.iter().product::<u64>() as usize;
        match &self.content {
            Content::Constant(value) => out.write_all(&value.to_le_bytes().repeat(elements))?,
            Content::Values(values) => {
                let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
                out.write_all(&bytes)?;
            }
            Content::Random | Content::RandomIn(_) => {
                let count = POOL_BLOCKS.min(self.blocks(encoding) as usize);
                let pool = random_blocks(encoding, seed, self.cols(), count);
                let mut left = self.bytes(encoding) as usize;
                while left > 0 {
                    let now = left.min(pool.len());
                    out.write_all(&pool[..now])?;
                    left -= now;
                }
            }
        }
        let padding = self.bytes(encoding).next_multiple_of(ALIGN) - self.bytes(encoding);
        out.write_all(&[0; ALIGN as usize][..padding as usize])
    }
}

/// Codes at random, and scales with which activations keep about their size.
fn random_blocks(encoding: Encoding, seed: u64, cols: u64, count: usize) -> Vec<u8> {
    let mut random = Random::new(seed);
    let deviation = 1.0 / (cols as f64).sqrt();
    // Scales of the table's levels, of either sign, around the one that gives the deviation.
    let scale = |random: &mut Random, factor: f64| {
        let scale = deviation / LEVEL_DEVIATION / factor * (0.5 + (random.word() % 1000) as f64 / 1000.0);
        f16::from_f64(if random.word().is_multiple_of(2) { scale } else { -scale }).to_le_bytes()
    };
    // The power of two that is next to the one that gives the deviation, with the exponent's bias.
    let exponent = 127 + (deviation / FLOAT_DEVIATION).log2().round() as i32;
    let mut blocks = Vec::with_capacity(count * encoding.block().1);
    for _ in 0..count {
        let words = match encoding {
            Encoding::F32 => {
                // f16 holds them, too.
                let weight = f16::from_f64(f64::from(random.normal()) * deviation);
                blocks.extend(weight.to_f32().to_le_bytes());
                0
            }
            Encoding::Q4_0 => {
                blocks.extend(f16::from_f64(deviation / 8.0).to_le_bytes());
                2
            }
            Encoding::Iq4Nl => {
                blocks.extend(scale(&mut random, 1.0));
                2
            }
            Encoding::Iq4Xs => {
                blocks.extend(scale(&mut random, FACTOR_DEVIATION));
                blocks.extend(&random.word().to_le_bytes()[..6]);
                16
            }
            Encoding::MxFp4 => {
                blocks.push(u8::try_from(exponent).expect("an exponent above -127"));
                2
            }
        };
        (0..words).for_each(|_| blocks.extend(random.word().to_le_bytes()));
    }
    blocks
}

/// Standard deviation of the levels of IQ4's table.
const LEVEL_DEVIATION: f64 = 69.0;
/// That of whole numbers from -32 to 31.
const FACTOR_DEVIATION: f64 = 18.5;
/// That of floats of 4 bits: 0, 0.5, 1, 1.5, 2, 3, 4 and 6 of either sign.
const FLOAT_DEVIATION: f64 = 2.93;
