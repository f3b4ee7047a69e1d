//! Names of steps, for people.

use unicorn_runtime::StepShape;

/// The name of a step in a report.
pub fn step_name(shape: StepShape) -> String {
    match (shape.rows, shape.batch) {
        (1, _) if shape.from_tokens > 0 => format!("decode from {} tokens on", shape.from_tokens),
        (1, _) => "decode".into(),
        (rows, true) => format!("decode of {rows} sequences"),
        (rows, false) => format!("prefill of {rows} tokens"),
    }
}
