//! Text that ends before the stop string that is first complete in it. What may be the beginning of one is held back until it is known.

pub struct StopStrings {
    /// None is empty.
    stop_strings: Vec<String>,
    /// The end of the text so far, which one of them begins with.
    held: String,
}

impl StopStrings {
    /// Empty strings stop nothing.
    pub fn new(mut stop_strings: Vec<String>) -> StopStrings {
        stop_strings.retain(|one| !one.is_empty());
        StopStrings { stop_strings, held: String::new() }
    }

    /// What can be given out after `text` has come, and whether a stop string has come up, after which there is no more.
    pub fn push(&mut self, text: &str) -> (String, bool) {
        let mut known = std::mem::take(&mut self.held) + text;
        // What has come in pieces is stopped where the whole would be.
        let found = |one: &String| known.find(one.as_str()).map(|begin| (begin + one.len(), begin));
        if let Some((_, begin)) = self.stop_strings.iter().filter_map(found).min() {
            known.truncate(begin);
            return (known, true);
        }
        let begins = |at: &usize| self.stop_strings.iter().any(|one| one.starts_with(&known[*at..]));
        let from = known.char_indices().map(|(at, _)| at).find(begins).unwrap_or(known.len());
        self.held = known.split_off(from);
        (known, false)
    }

    /// What was held back when no more text comes.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is given out of pieces, and whether it was stopped.
    fn given(stop_strings: &[&str], pieces: &[&str]) -> (Vec<String>, bool) {
        let mut stop = StopStrings::new(stop_strings.iter().map(ToString::to_string).collect());
        let mut given = Vec::new();
        for piece in pieces {
            let (text, has_stopped) = stop.push(piece);
            given.push(text);
            if has_stopped {
                return (given, true);
            }
        }
        given.push(stop.finish());
        (given, false)
    }

    #[test]
    fn a_beginning_is_held_until_it_is_known() {
        assert_eq!(
            given(&["END"], &["a E", "N", "x", "E"]),
            (["a ", "", "ENx", "", "E"].map(String::from).into(), false)
        );
        assert_eq!(given(&["END"], &["a E", "N", "D b"]), (["a ", "", ""].map(String::from).into(), true));
        // A beginning within a beginning.
        assert_eq!(given(&["aab"], &["aa", "a", "b"]), (["", "a", ""].map(String::from).into(), true));
    }

    #[test]
    fn the_first_of_several_ends_the_text() {
        assert_eq!(given(&["three", "two"], &["one two three"]), (vec!["one ".into()], true));
        assert_eq!(given(&["é\n"], &["caf", "é", "\n\n"]), (["caf", "", ""].map(String::from).into(), true));
    }

    #[test]
    fn nothing_stops_without_strings() {
        assert_eq!(given(&[], &["a", "b"]), (["a", "b", ""].map(String::from).into(), false));
        assert_eq!(given(&[""], &["a"]), (["a", ""].map(String::from).into(), false));
    }

    #[test]
    fn pieces_of_any_size_give_what_the_whole_gives() {
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
            let whole = given(stop_strings, &[text]);
            for size in 1..text.len() {
                let pieces: Vec<&str> =
                    text.as_bytes().chunks(size).map(|piece| str::from_utf8(piece).unwrap()).collect();
                let cut = given(stop_strings, &pieces);
                assert_eq!((cut.0.concat(), cut.1), (whole.0.concat(), whole.1), "{stop_strings:?} by {size}");
            }
        }
    }
}
