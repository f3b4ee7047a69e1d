//! The instruction stream: how much of a kernel's hottest loop is the instruction that does its arithmetic.

use super::family::Family;
use super::instructions::Class;

/// The part of the arithmetic peak that a kernel can reach, by the vector instructions of the loop with most arithmetic.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stream {
    /// The class of the arithmetic.
    pub class: Class,
    /// Cycles of those instructions as a part of all vector instructions', from 0 to 1.
    pub share: f64,
}

impl Stream {
    /// Analyses machine code; `None`: no instruction multiplies and adds.
    pub fn of(assembly: &str, family: &Family) -> Option<Stream> {
        let lines: Vec<&str> = assembly.lines().collect();
        let class = [Class::Matrix, Class::PackedDot, Class::MultiplyAdd]
            .into_iter()
            .find(|class| lines.iter().any(|line| class.is_of(line)))?;
        let cycles = |line: &&str| match line.trim_start() {
            instruction if Class::Matrix.is_of(instruction) => family.matrix_cycles.unwrap_or(family.vector_cycles),
            instruction if instruction.starts_with("v_") => family.vector_cycles,
            _ => 0.0,
        };
        let hottest = hottest_loop(&lines, class);
        let all: f64 = hottest.iter().map(cycles).sum();
        let useful: f64 = hottest.iter().filter(|line| class.is_of(line)).map(cycles).sum();
        Some(Stream { class, share: useful / all.max(1.0) })
    }
}

/// The shortest loop with at least half as many instructions of `class` as any other; the whole code if none is in a loop.
fn hottest_loop<'l, 'a>(lines: &'l [&'a str], class: Class) -> &'l [&'a str] {
    let count = |lines: &[&str]| lines.iter().filter(|line| class.is_of(line)).count();
    let loops = loops(lines);
    let most = loops.iter().map(|range| count(&lines[range.clone()])).max().unwrap_or(0);
    let hot = loops.into_iter().filter(|range| most > 0 && 2 * count(&lines[range.clone()]) >= most);
    hot.min_by_key(|range| range.len()).map_or(lines, |range| &lines[range])
}

/// From each label to each later branch to it.
fn loops(lines: &[&str]) -> Vec<std::ops::Range<usize>> {
    let label = |line: &str| line.strip_suffix(':').filter(|name| name.starts_with("BB")).map(str::to_owned);
    let labels: Vec<(usize, String)> =
        lines.iter().enumerate().filter_map(|(at, line)| Some((at, label(line.trim())?))).collect();
    let mut found = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let mut words = line.split_whitespace();
        let is_branch = words.next().is_some_and(|word| word.starts_with("s_branch") || word.starts_with("s_cbranch"));
        let target = words.next().filter(|_| is_branch);
        if let Some((begin, _)) = labels.iter().find(|(begin, name)| Some(name.as_str()) == target && *begin < at) {
            found.push(*begin..at + 1);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_is_that_of_the_loop_with_the_arithmetic() {
        let family = Family::named("phoenix").unwrap();
        let matrix = "\tv_wmma_f32_16x16x16_f16 v[0:7], v[8:15], v[16:23], v[0:7] ; cc404030";
        let other = "\tv_mov_b32 v0, v1 ; 7e000301\n".repeat(8);
        let code = format!(
            "BB0:\n{other}BB1:\n\ts_nop 0\nBB2:\n{other}{matrix}\n\ts_cbranch_scc0 BB2 ; bfa1\n{other}BB3:\n\ts_endpgm"
        );
        let stream = Stream::of(&code, family).unwrap();
        assert_eq!((stream.class, stream.share), (Class::Matrix, 32.0 / 40.0));
        assert_eq!(Stream::of("BB0:\n\tv_mov_b32 v0, v1", family), None);
    }

    #[test]
    fn without_a_loop_all_of_the_code_counts() {
        let family = Family::named("renoir").unwrap();
        let stream = Stream::of("BB0:\n\tv_fma_f32 v0, v1, v2, v0\n\tv_mov_b32 v0, v1\n\ts_endpgm", family).unwrap();
        assert_eq!((stream.class, stream.share), (Class::MultiplyAdd, 0.5));
    }
}
