//! The stream behind attention and a learned augmented residual layer (LAuReL, Menghani, Kumar and Kumar 2024), as transformers'
//! `Gemma3nTextDecoderLayer`: `y = (x + x / rms(x) · w_0 + a / rms(a) · w_1 + l / rms(l) · w_2) / √2` of the stream `x`, attention's
//! result `a` and that of the layer's two small matrices, `l`.

mod spec;
mod twin;

pub use spec::LaurelSpec;
pub use twin::twin_row;
