//! Wraps words at a terminal's width while their text still arrives.

use unicode_width::UnicodeWidthChar;

/// Position of the text on the terminal. A word that turns out not to fit its line is erased there and written again on the next.
#[derive(Debug, Default)]
pub struct Wrapper {
    /// Column of the cursor, counted from the left.
    column: usize,
    /// The letters before the cursor that belong to one word.
    word: String,
    /// Columns of `word`.
    word_columns: usize,
    /// The beginning of the line, as far as needed to recognise the fence of a code block.
    line_start: String,
    /// Within a code block, lines are not wrapped.
    in_code: bool,
}

const FENCE: &str = "```";

impl Wrapper {
    /// What to write for `text`, on a terminal of `columns` columns. Control characters other than line breaks and tabs are shown as
    /// symbols: a model's text may contain any, and terminals execute them.
    pub fn wrap(&mut self, text: &str, columns: usize) -> String {
        // A cursor behind the last column is in a state of its own, from which terminals go back in different ways.
        let limit = columns.saturating_sub(1);
        let mut written = String::with_capacity(text.len());
        for letter in text.chars() {
            match letter {
                '\n' => self.end_line(&mut written),
                letter => self.letter(visible(letter), limit, &mut written),
            }
        }
        written
    }

    fn end_line(&mut self, written: &mut String) {
        if self.line_start.trim_start().starts_with(FENCE) {
            self.in_code = !self.in_code;
        }
        self.line_start.clear();
        self.begin_line(written);
    }

    fn begin_line(&mut self, written: &mut String) {
        written.push('\n');
        self.column = 0;
        self.end_word();
    }

    fn end_word(&mut self) {
        self.word.clear();
        self.word_columns = 0;
    }

    fn letter(&mut self, letter: char, limit: usize, written: &mut String) {
        if self.line_start.len() < 16 {
            self.line_start.push(letter);
        }
        let columns = if letter == '\t' { 8 - self.column % 8 } else { letter.width().unwrap_or(0) };
        let fits = self.in_code || self.column + columns <= limit;
        if letter.is_whitespace() {
            // The line break replaces the space.
            if !fits {
                return self.begin_line(written);
            }
            self.end_word();
        } else {
            if !fits {
                self.wrap_word(written);
            }
            // Scripts of wide characters break lines between any two.
            if columns > 1 {
                self.end_word();
            } else {
                self.word.push(letter);
                self.word_columns += columns;
            }
        }
        written.push(letter);
        self.column += columns;
    }

    /// Moves the word at the end of the line to the next. A word that is a line by itself is broken.
    fn wrap_word(&mut self, written: &mut String) {
        let (word, columns) = (std::mem::take(&mut self.word), self.word_columns);
        if columns == self.column || columns == 0 {
            return self.begin_line(written);
        }
        // Back over the word, and erase to the end of the line.
        *written += &format!("\x1b[{columns}D\x1b[K");
        self.begin_line(written);
        *written += &word;
        (self.word, self.word_columns, self.column) = (word, columns, columns);
    }
}

/// The symbol of a control character.
fn visible(letter: char) -> char {
    match letter {
        '\t' => letter,
        '\0'..='\x1f' => char::from_u32(0x2400 + letter as u32).unwrap_or('\u{fffd}'),
        '\x7f' => '\u{2421}',
        '\u{80}'..='\u{9f}' => '\u{fffd}',
        letter => letter,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lines on a terminal of `columns` after `pieces`: an independent reading of what was written.
    fn screen(pieces: &[&str], columns: usize) -> Vec<String> {
        let mut wrapper = Wrapper::default();
        let written: String = pieces.iter().map(|piece| wrapper.wrap(piece, columns)).collect();
        let mut lines: Vec<Vec<char>> = vec![Vec::new()];
        let mut letters = written.chars().peekable();
        while let Some(letter) = letters.next() {
            let line = lines.last_mut().unwrap();
            match letter {
                '\n' => lines.push(Vec::new()),
                '\x1b' => {
                    assert_eq!(letters.next(), Some('['));
                    let mut number = String::new();
                    while let Some(digit) = letters.next_if(char::is_ascii_digit) {
                        number.push(digit);
                    }
                    match letters.next().unwrap() {
                        'D' => line.truncate(line.len() - number.parse::<usize>().unwrap()),
                        'K' => {}
                        other => panic!("escape {other}"),
                    }
                }
                letter => line.push(letter),
            }
            assert!(lines.last().unwrap().len() < columns, "a line reaches the last column");
        }
        lines.into_iter().map(|line| line.into_iter().collect()).collect()
    }

    #[test]
    fn a_word_that_does_not_fit_begins_the_next_line() {
        assert_eq!(screen(&["one two three"], 10), ["one two ", "three"]);
        // However it arrives.
        assert_eq!(screen(&["one t", "wo th", "ree fo", "ur"], 10), ["one two ", "three ", "four"]);
        assert_eq!(screen(&["one two\nthree"], 20), ["one two", "three"]);
        // The space at the end of a full line.
        assert_eq!(screen(&["123456789 next"], 10), ["123456789", "next"]);
    }

    #[test]
    fn a_word_longer_than_a_line_is_broken() {
        assert_eq!(screen(&["ab 0123456789012"], 10), ["ab ", "012345678", "9012"]);
    }

    #[test]
    fn code_is_left_as_it_is() {
        let mut wrapper = Wrapper::default();
        let code = "```rust\nlet a_long_line = 1 + 2 + 3;\n```\n";
        assert_eq!(wrapper.wrap(code, 10), code);
        assert_eq!(wrapper.wrap("one two three", 10), "one two t\x1b[1D\x1b[K\nthree");
    }

    #[test]
    fn wide_characters_count_as_two_columns() {
        let mut wrapper = Wrapper::default();
        assert_eq!(wrapper.wrap("日本語日本語", 9), "日本語日\n本語");
    }

    #[test]
    fn control_characters_do_not_reach_the_terminal() {
        assert_eq!(Wrapper::default().wrap("a\x1b[2J\u{9b}b\t\r", 80), "a␛[2J\u{fffd}b\t␍");
    }
}
