//! Stop strings: text ends where the first of them is complete.

/// Searches text that arrives in pieces for stop strings. A suffix that could be the beginning of a stop string is kept back until
/// the next piece decides it, so that no part of a stop string is ever returned.
///
/// ```
/// let mut stop = unicorn_text::StopStrings::new(["END"]);
/// assert_eq!(stop.push("one E"), ("one ".to_owned(), false));
/// assert_eq!(stop.push("ND two"), (String::new(), true));
/// ```
#[derive(Clone, Debug, Default)]
pub struct StopStrings {
    /// The stop strings, none of which is empty.
    stop_strings: Vec<String>,
    /// The longest suffix of the text so far that a stop string begins with.
    kept_back: String,
    /// Index of the one that was found.
    found: Option<usize>,
}

impl StopStrings {
    /// Empty strings are ignored: they would end every text at its beginning.
    pub fn new(stop_strings: impl IntoIterator<Item = impl Into<String>>) -> StopStrings {
        let stop_strings = stop_strings.into_iter().map(Into::into).filter(|one| !one.is_empty()).collect();
        StopStrings { stop_strings, kept_back: String::new(), found: None }
    }

    /// Takes the next piece of text. Returns the text that precedes any stop string and is not part of one, and whether a stop
    /// string was found, after which nothing more may be pushed.
    pub fn push(&mut self, text: &str) -> (String, bool) {
        let mut known = std::mem::take(&mut self.kept_back) + text;
        // The stop string that ends first counts, so that text in pieces ends where the whole text would.
        let found =
            |(index, one): (usize, &String)| known.find(one.as_str()).map(|begin| (begin + one.len(), begin, index));
        if let Some((_, begin, index)) = self.stop_strings.iter().enumerate().filter_map(found).min() {
            self.found = Some(index);
            known.truncate(begin);
            return (known, true);
        }
        let begins = |at: &usize| self.stop_strings.iter().any(|one| one.starts_with(&known[*at..]));
        let from = known.char_indices().map(|(at, _)| at).find(begins).unwrap_or(known.len());
        self.kept_back = known.split_off(from);
        (known, false)
    }

    /// The stop string that was found.
    pub fn found(&self) -> Option<&str> {
        self.found.map(|index| self.stop_strings[index].as_str())
    }

    /// The text that was kept back. Called when no more text comes.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.kept_back)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is returned for each piece, and whether a stop string was found.
    fn returned(stop_strings: &[&str], pieces: &[&str]) -> (Vec<String>, bool) {
        let mut stop = StopStrings::new(stop_strings.iter().copied());
        let mut returned = Vec::new();
        for piece in pieces {
            let (text, has_stopped) = stop.push(piece);
            returned.push(text);
            if has_stopped {
                return (returned, true);
            }
        }
        returned.push(stop.finish());
        (returned, false)
    }

    #[test]
    fn a_beginning_is_kept_back_until_it_is_decided() {
        assert_eq!(
            returned(&["END"], &["a E", "N", "x", "E"]),
            (["a ", "", "ENx", "", "E"].map(String::from).into(), false)
        );
        assert_eq!(returned(&["END"], &["a E", "N", "D b"]), (["a ", "", ""].map(String::from).into(), true));
        // A beginning within a beginning.
        assert_eq!(returned(&["aab"], &["aa", "a", "b"]), (["", "a", ""].map(String::from).into(), true));
    }

    #[test]
    fn the_first_of_several_ends_the_text() {
        assert_eq!(returned(&["three", "two"], &["one two three"]), (vec!["one ".into()], true));
        assert_eq!(returned(&["é\n"], &["caf", "é", "\n\n"]), (["caf", "", ""].map(String::from).into(), true));
    }

    #[test]
    fn nothing_stops_without_strings() {
        assert_eq!(returned(&[], &["a", "b"]), (["a", "b", ""].map(String::from).into(), false));
        assert_eq!(returned(&[""], &["a"]), (["a", ""].map(String::from).into(), false));
    }

    #[test]
    fn pieces_of_any_size_end_where_the_whole_text_does() {
        let text = "abcabcababcabd";
        let stop_strings: [&[&str]; 8] = [
            &["abca"],
            &["cab"],
            &["abd"],
            &["bb"],
            &["abcabcababcabd"],
            &["d"],
            &["abcabc", "ca"],
            &["bcab", "abca", "b"],
        ];
        for stop_strings in stop_strings {
            let whole = returned(stop_strings, &[text]);
            for size in 1..text.len() {
                let pieces: Vec<&str> =
                    text.as_bytes().chunks(size).map(|piece| str::from_utf8(piece).unwrap()).collect();
                let cut = returned(stop_strings, &pieces);
                assert_eq!((cut.0.concat(), cut.1), (whole.0.concat(), whole.1), "{stop_strings:?} by {size}");
            }
        }
    }
}
