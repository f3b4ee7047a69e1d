//! Weights a second that one core quantises: `cargo bench -p unicorn-compiler --bench quantize`.

use std::hint::black_box;
use std::time::Instant;

use half::f16;
use unicorn_artifact::int4::{INT8_GROUP, Int4Params};
use unicorn_compiler::quantize::{ErrorSum, quantize_int4_row, quantize_int8_row};

const ROWS: usize = 32;
const COLS: usize = 2048;
const REPEATS: usize = 200;

fn main() {
    let rows = normal_rows();
    let importance: Vec<f32> = (0..COLS).map(|column| 0.5 + (column % 7) as f32).collect();
    for group in [32, 64, 128] {
        for (name, importance) in [("plain", None), ("column weights", Some(importance.as_slice()))] {
            let (mut codes, mut params) = (vec![0u8; COLS], vec![Int4Params::default(); COLS / group]);
            report(&format!("int4 group {group}, {name}"), &rows, |row| {
                let error = quantize_int4_row(row, importance, group, &mut codes, &mut params);
                black_box((&codes, &params));
                error.expect("weights are finite")
            });
        }
    }
    let (mut codes, mut scales) = (vec![0i8; COLS], vec![f16::ZERO; COLS / INT8_GROUP]);
    report("int8", &rows, |row| {
        let error = quantize_int8_row(row, &mut codes, &mut scales);
        black_box((&codes, &scales));
        error.expect("weights are finite")
    });
}

/// Prints the fastest of [`REPEATS`] passes over all rows and the error that quantisation made.
fn report(name: &str, rows: &[f32], mut quantize: impl FnMut(&[f32]) -> ErrorSum) {
    let mut fastest = f64::INFINITY;
    let mut error = ErrorSum::default();
    for _ in 0..REPEATS {
        let start = Instant::now();
        error = ErrorSum::default();
        for row in rows.chunks_exact(COLS) {
            error.merge(&quantize(row));
        }
        fastest = fastest.min(start.elapsed().as_secs_f64());
    }
    let rate = rows.len() as f64 / fastest / 1e6;
    println!("{name}: {rate:.1} M weights/s on one core, relative error {:.5}", error.relative());
}

/// (ROWS, COLS), near to normally distributed (a sum of uniform numbers), standard deviation 0.02.
fn normal_rows() -> Vec<f32> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut uniform = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 24) as f32 - 0.5
    };
    (0..ROWS * COLS).map(|_| (0..12).map(|_| uniform()).sum::<f32>() * 0.02).collect()
}
