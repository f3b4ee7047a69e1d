//! An NPU program as MLIR. The text needs no MLIR; `npu-gen/tests/mlir.rs` has MLIR read and verify such texts.

use unicorn_kernels::Activation;
use unicorn_kernels::npu::attention::{AttentionShape, AttentionTile};
use unicorn_kernels::npu::tile::{CoreTile, Epilogue, GemmShape};
use unicorn_npu::design::Design;
use unicorn_npu::emit::{Dialect, module, readable};
use unicorn_npu::{attention, gemm, legal, lower};

use super::settings::{AttentionSettings, ProductSettings, ProgramSettings};

/// The text of a design that the device takes.
pub fn text(settings: &ProgramSettings) -> Result<String, String> {
    let dialect = Dialect::ALL.into_iter().find(|dialect| dialect.name() == settings.dialect);
    let dialect = dialect.ok_or_else(|| format!("dialect is {}, expected 2024 or 2026", settings.dialect))?;
    let design = match (&settings.product, &settings.attention) {
        (Some(product), None) => gemm::design(&product.shape()?),
        (None, Some(attention)) => attention::design(&attention.shape()),
        _ => return Err("expected either a product or attention".into()),
    };
    check(&design)?;
    Ok(readable(&module(&design, dialect)))
}

fn check(design: &Design) -> Result<(), String> {
    let faults = legal::check(design, &lower::lower(design)).err().unwrap_or_default();
    match &faults[..] {
        [] => Ok(()),
        [first, ..] => Err(format!("the device does not take the design: {first}")),
    }
}

impl ProductSettings {
    fn shape(&self) -> Result<GemmShape, String> {
        let [rows, cols, depth] = self.tile;
        let epilogue = match self.activation.as_deref() {
            None => Epilogue::Scale,
            Some("silu") => Epilogue::ActMul(Activation::Silu),
            Some("gelu") => Epilogue::ActMul(Activation::GeluTanh),
            Some(other) => return Err(format!("activation {other} is unknown, expected silu or gelu")),
        };
        let tile = CoreTile::new(rows, cols, depth, epilogue);
        Ok(GemmShape::padded(self.rows, self.cols, self.depth, self.columns, tile))
    }
}

impl AttentionSettings {
    fn shape(&self) -> AttentionShape {
        let [rows, keys, depth] = self.tile;
        let tile = AttentionTile { rows, keys, depth };
        AttentionShape::padded(self.heads, self.rows, self.keys, self.columns, tile)
    }
}
