//! An animated SVG of a terminal: every picture lies below the one before, and a style sheet moves them through the window. A line
//! that several pictures have is drawn once.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::Frame;

/// A little more than of the fonts below, so that the last column is not cut.
const CHARACTER_WIDTH: f64 = 8.5;
const LINE_HEIGHT: u32 = 18;
const MARGIN: u32 = 12;

/// Draws the frames of a terminal of that size.
pub fn draw(frames: &[Frame], columns: u16, rows: u16) -> String {
    let (width, height) = ((f64::from(columns) * CHARACTER_WIDTH).ceil() as u32, u32::from(rows) * LINE_HEIGHT);
    let total: f64 = frames.iter().map(|frame| frame.seconds).sum();
    let mut numbers: BTreeMap<&str, usize> = BTreeMap::new();
    let (mut steps, mut lines, mut pictures) = (String::new(), String::new(), String::new());
    let mut begun = 0.0;
    for (index, frame) in frames.iter().enumerate() {
        let top = index as u32 * height;
        let _ = writeln!(steps, "{:.3}% {{ transform: translateY(-{top}px); }}", 100.0 * begun / total);
        begun += frame.seconds;
        for (row, line) in frame.lines.iter().enumerate().filter(|(_, line)| !line.is_empty()) {
            let new = numbers.len();
            let number = *numbers.entry(line).or_insert(new);
            if number == new {
                let _ = writeln!(lines, r#"<text id="l{number}">{}</text>"#, escaped(line));
            }
            let y = top + row as u32 * LINE_HEIGHT;
            let _ = writeln!(pictures, r##"<use href="#l{number}" y="{y}"/>"##);
        }
    }
    let (full_width, full_height) = (width + 2 * MARGIN, height + 2 * MARGIN);
    format!(
        r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {full_width} {full_height}" width="{full_width}">
<style>
text {{ font: 14px 'DejaVu Sans Mono', 'Liberation Mono', Menlo, Consolas, monospace; fill: #e6e6e6; white-space: pre; dominant-baseline: text-before-edge; }}
#pictures {{ animation: show {total:.2}s steps(1, end) infinite; }}
@keyframes show {{
{steps}}}
</style>
<defs>
{lines}</defs>
<rect width="100%" height="100%" rx="6" fill="#1b1b1f"/>
<svg x="{MARGIN}" y="{MARGIN}" width="{width}" height="{height}">
<g id="pictures">
{pictures}</g>
</svg>
</svg>
"##
    )
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_several_frames_is_drawn_once() {
        let frame =
            |lines: &[&str], seconds| Frame { lines: lines.iter().map(|&line| line.to_owned()).collect(), seconds };
        let svg = draw(&[frame(&["a < b", ""], 1.0), frame(&["a < b", "c"], 3.0)], 80, 2);
        assert_eq!(svg.matches("a &lt; b").count(), 1);
        assert_eq!(svg.matches("<use ").count(), 3);
        assert!(
            svg.contains("0.000% { transform: translateY(-0px); }\n25.000% { transform: translateY(-36px); }"),
            "{svg}"
        );
        assert!(svg.contains("animation: show 4.00s"));
    }
}
