//! MLIR of designs: text of both dialects; with the feature `mlir`, built and verified by MLIR, and bodies run on the host.

mod support;

use support::small;
use unicorn_kernels::npu::tile::Epilogue;
use unicorn_npu::emit::{Dialect, module, readable};
use unicorn_npu::gemm;

/// The lines of a text that say where things go, without the bodies of cores.
fn outline(text: &str) -> Vec<&str> {
    text.lines().map(str::trim).filter(|line| line.starts_with("aie") && !line.contains("subview")).collect()
}

#[test]
fn each_dialect_has_its_own_syntax() {
    let design = gemm::design(&small(4, 32, Epilogue::Scale));
    let [old, new] = Dialect::ALL.map(|dialect| readable(&module(&design, dialect)));
    let [old, new] = [outline(&old), outline(&new)];
    assert_eq!(old[0], "aie.device(npu1_4col) {");
    assert_eq!(new[0], "aie.device(npu1) @main {");
    for line in [
        "aie.objectfifo @w_col_0(%tile_0_1, {%tile_0_2, %tile_0_3, %tile_0_4, %tile_0_5}, 2 : i32) : !aie.objectfifo<memref<384xi8>>",
        "aie.objectfifo @a_row_1(%tile_1_1, {%tile_0_3, %tile_1_3, %tile_2_3, %tile_3_3}, 2 : i32) : !aie.objectfifo<memref<608xi8>>",
        "aie.objectfifo @out_2(%tile_2_1, {%tile_2_0}, 2 : i32) : !aie.objectfifo<memref<256xbf16>>",
        "aie.objectfifo.release @a_row_0(Consume, 1)",
        "aiex.npu.dma_wait {symbol = @out_3}",
    ] {
        assert!(old.contains(&line) && new.contains(&line), "{line} is not in:\n{}", old.join("\n"));
    }
    assert!(old.contains(&"aie.objectfifo.link [@out_0_0, @out_0_1, @out_0_2, @out_0_3] -> [@out_0] ()"));
    assert!(
        new.contains(
            &"aie.objectfifo.link [@out_0_0, @out_0_1, @out_0_2, @out_0_3] -> [@out_0] ([0, 64, 128, 192] [])"
        )
    );
    let transfer = "[0, 0, 0, 0][1, 1, 1, 4608][0, 0, 0, 1]) {metadata = @w_in_0, id = 2 : i64} : memref<18432xi8>";
    assert!(old.contains(&&*format!("aiex.npu.dma_memcpy_nd(0, 0, %weights{transfer}")), "{}", old.join("\n"));
    assert!(new.contains(&&*format!("aiex.npu.dma_memcpy_nd(%weights{transfer}")));
    assert!(new.iter().any(|line| line.starts_with("aie.runtime_sequence @sequence(%activations: memref<")));
    assert!(old.iter().any(|line| line.starts_with("aiex.runtime_sequence(%activations: memref<")));
}

#[cfg(feature = "mlir")]
mod with_mlir {
    use super::support::attention::small_attention;
    use super::*;
    use unicorn_kernels::Activation;
    use unicorn_npu::emit::{attention_functions, body_function, context, generic, generic_text};
    use unicorn_npu::{Design, attention};

    /// Verifies what MLIR reads of its own generic text. A call inside of a device is what it alone cannot verify, and therefore not read.
    fn read_back(design: &Design, dialect: Dialect, calls: usize, cores: usize) {
        let text = generic_text(&module(design, dialect)).unwrap();
        let context = context();
        let is_call = |line: &&str| line.contains("\"func.call\"");
        let without: String = text.lines().filter(|line| !is_call(line)).map(|line| format!("{line}\n")).collect();
        assert_eq!(text.lines().filter(is_call).count(), calls);
        let parsed = melior::ir::Module::parse(&context, &without);
        assert!(parsed.is_some_and(|parsed| parsed.as_operation().verify()), "{text}");
        assert!(text.contains("\"aie.device\"()"), "{text}");
        // Each core has a terminator; the device only in 2026.
        let ends = text.matches("\"aie.end\"()").count();
        assert_eq!(ends, cores + usize::from(dialect == Dialect::Y2026), "{text}");
    }

    #[test]
    fn mlir_verifies_designs_and_reads_its_own_text_of_them() {
        for (columns, dialect) in (1..=4).flat_map(|columns| Dialect::ALL.map(|dialect| (columns, dialect))) {
            let design = gemm::design(&small(columns, 64, Epilogue::ActMul(Activation::Silu)));
            read_back(&design, dialect, 4 * columns, 4 * columns);
            // One core of a pipeline calls the softmax.
            read_back(&attention::design(&small_attention(columns)), dialect, columns, 3 * columns);
        }
    }

    /// The readable text of what MLIR has a syntax for, read by MLIR, is what was built from the same operations.
    #[test]
    fn readable_bodies_mean_what_the_built_ones_do() {
        let context = context();
        for depth in [32, 96] {
            let body = body_function(&small(1, depth, Epilogue::Scale).core);
            let built = generic(&context, &body).unwrap();
            let parsed = melior::ir::Module::parse(&context, &readable(&body)).expect("MLIR reads the text");
            assert_eq!(built.as_operation().to_string(), parsed.as_operation().to_string());
        }
        let bodies = attention_functions(&small_attention(1).tile);
        let built = generic(&context, &bodies).unwrap();
        let parsed = melior::ir::Module::parse(&context, &readable(&bodies)).expect("MLIR reads the text");
        assert_eq!(built.as_operation().to_string(), parsed.as_operation().to_string());
    }
}
