//! Machine code as text. Where RADV's disassembler lacks a family, ACO prints its own form of the same instructions, with results in front
//! and registers by other punctuation; it is brought into the disassembler's form here.
//!
//! ```text
//!  v8: %4:v[72-79] = v_wmma_f32_16x16x16_f16 %7:v[108-115], …     ─►   v_wmma_f32_16x16x16_f16 v[72:79], v[108:115], …
//! ```

/// How ACO begins its own form.
const FALLBACK: &str = "Shader disassembly is not supported";

/// Machine code in the disassembler's form, one instruction a line.
pub fn normalized(text: &str) -> String {
    match text.starts_with(FALLBACK) {
        true => text.lines().map(|line| line_of_aco(line) + "\n").collect(),
        false => text.to_owned(),
    }
}

fn line_of_aco(line: &str) -> String {
    let line = line.trim();
    let is_label = line.strip_prefix("BB").is_some_and(|number| number.bytes().all(|byte| byte.is_ascii_digit()));
    if is_label {
        return format!("{line}:");
    }
    let (results, instruction) = line.split_once(" = ").unwrap_or(("", line));
    let (mnemonic, operands) = instruction.split_once(' ').unwrap_or((instruction, ""));
    let result = results.split(", ").next().filter(|result| !result.is_empty());
    let operands = result.into_iter().chain(operands.split(", ")).map(register).collect::<Vec<_>>();
    format!("\t{mnemonic} {}", operands.join(", "))
}

/// `v[108:115]` of `(latekill)%497:v[108-115]`, `BB2` of `block:BB2`; anything else as it is.
fn register(operand: &str) -> String {
    match operand.rsplit_once(':') {
        Some((_, name)) if name.ends_with(']') => name.replace('-', ":"),
        Some((_, name)) if name.starts_with("BB") => name.to_owned(),
        _ => operand.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acos_own_form_is_brought_into_the_disassemblers() {
        let text = "Shader disassembly is not supported in the current configuration, falling back to print_program.\n\nBB2\n\
                    \t v8: %499:v[72-79] = v_wmma_f32_16x16x16_f16 (latekill)%497:v[108-115], %477:v[116-123], %498:v[72-79]\n\
                    \ts_cbranch_scc0 block:BB2\n";
        let found = normalized(text);
        let lines: Vec<&str> = found.lines().skip(2).collect();
        let expected =
            ["BB2:", "\tv_wmma_f32_16x16x16_f16 v[72:79], v[108:115], v[116:123], v[72:79]", "\ts_cbranch_scc0 BB2"];
        assert_eq!(lines, expected);
        assert_eq!(normalized("BB0:\n\ts_endpgm"), "BB0:\n\ts_endpgm");
    }
}
