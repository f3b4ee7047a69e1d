//! Lines broken between words at a terminal's width.

use unicode_width::UnicodeWidthStr;

/// `text` with its lines broken between words, so that each has less than `columns` columns where no word is longer. What continues a
/// line is indented as the line is, or as what follows its label: `  fits      on all machines`. Commands to type are not broken, so
/// that they can be copied: the terminal itself wraps those that are too long.
pub fn wrapped(text: &str, columns: usize) -> String {
    text.split('\n').map(|line| broken(line, columns)).collect::<Vec<_>>().join("\n")
}

fn broken(line: &str, columns: usize) -> String {
    let indent = indent(line, columns);
    let (mut written, mut column, mut has_word) = (String::with_capacity(line.len()), 0, false);
    for piece in pieces(line) {
        // A cursor behind the last column is in a state of its own.
        if has_word && column > indent && column + piece.trim_end().width() >= columns {
            written.truncate(written.trim_end().len());
            written.push('\n');
            written.extend(std::iter::repeat_n(' ', indent));
            column = indent;
        }
        written += piece;
        column += piece.width();
        has_word |= !piece.trim_end().is_empty();
    }
    written
}

/// Columns before what continues a line.
fn indent(line: &str, columns: usize) -> usize {
    /// Of the longest label.
    const MAX_INDENT: usize = 16;
    let spaces = |text: &str| text.len() - text.trim_start_matches(' ').len();
    let first = spaces(line);
    let label = line[first..].find("  ").map_or(0, |at| first + at);
    let behind_label = label + spaces(&line[label..]);
    match behind_label {
        found if label > 0 && found <= MAX_INDENT && 2 * found <= columns => line[..found].width(),
        _ if 2 * first <= columns => first,
        _ => 0,
    }
}

/// The words of a line with the spaces behind them; a command is one word.
fn pieces(line: &str) -> Vec<&str> {
    let mut pieces = Vec::new();
    let (mut begin, mut end, mut introduces_command) = (0, 0, false);
    // While a command is read: the quote that is open in it.
    let mut command: Option<Option<char>> = None;
    for word in line.split_inclusive(' ') {
        end += word.len();
        let bare = word.trim_end();
        if introduces_command && PROGRAMS.contains(&bare) {
            command = Some(None);
        }
        introduces_command = bare.ends_with(':');
        if let Some(open) = &mut command {
            bare.chars().filter(|letter| "'\"".contains(*letter)).for_each(|quote| match open {
                Some(other) if *other == quote => *open = None,
                Some(_) => (),
                None => *open = Some(quote),
            });
            if open.is_some() || !bare.ends_with([';', ',']) {
                continue;
            }
            command = None;
        }
        pieces.push(&line[begin..end]);
        begin = end;
    }
    pieces.extend(Some(&line[begin..]).filter(|rest| !rest.is_empty()));
    pieces
}

/// Programs whose commands stand in messages, behind a colon.
const PROGRAMS: [&str; 8] =
    ["unicorn-run", "unicorn-compile", "python", "llama-quantize", "hf", "cargo", "mkdir", "ls"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_broken_between_words() {
        assert_eq!(wrapped("one two three", 9), "one two\nthree");
        assert_eq!(wrapped("one two\nthree four", 9), "one two\nthree\nfour");
        assert_eq!(wrapped("  indented  text", 100), "  indented  text");
        assert_eq!(wrapped("日本語 日本語", 10), "日本語\n日本語");
        assert_eq!(wrapped("a-long-word and b", 8), "a-long-word\nand b");
        assert_eq!(wrapped("one two", usize::MAX), "one two");
    }

    #[test]
    fn what_continues_a_line_is_below_its_beginning() {
        assert_eq!(wrapped("  fits  one two three", 17), "  fits  one two\n        three");
        assert_eq!(wrapped("  one two three", 9), "  one\n  two\n  three");
        // No room for an indent.
        assert_eq!(wrapped("          one two", 12), "          one\ntwo");
    }

    #[test]
    fn commands_are_not_broken() {
        let message = "x: is no artifact; compile it: unicorn-compile x -o x.unicorn; or leave it";
        let expected = "x: is no artifact;\ncompile it:\nunicorn-compile x -o x.unicorn;\nor leave it";
        assert_eq!(wrapped(message, 20), expected);
        let quoted = "convert it: python -c \"a; b\"; then again";
        assert_eq!(wrapped(quoted, 16), "convert it:\npython -c \"a; b\";\nthen again");
        // A program's name in a sentence is a word.
        assert_eq!(wrapped("with unicorn-run it is", 18), "with unicorn-run\nit is");
    }
}
