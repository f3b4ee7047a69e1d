//! Where a call that is read when it is whole ends.

use super::value_scan::ValueScan;

/// What ends a call, and what was found of it so far.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum CallEnd {
    /// The first of these texts.
    First(&'static [&'static str]),
    /// The first of these texts that is not in the value of a parameter, which stands between the two tags.
    BehindTags { closers: &'static [&'static str], value: [&'static str; 2], in_value: bool },
    /// The bracket of the list.
    Bracket(ValueScan),
}

impl CallEnd {
    /// Where the end begins and ends in `text`, whose first `scanned` bytes hold none. Without one, more bytes are scanned afterwards.
    pub(super) fn find(&mut self, text: &str, scanned: &mut usize) -> Option<(usize, usize)> {
        match self {
            CallEnd::First(ends) => first(text, ends, scanned),
            CallEnd::Bracket(scan) => {
                let found = scan.feed(&text[*scanned..]).map(|n_bytes| *scanned + n_bytes);
                *scanned = text.len();
                found.map(|end| (end, end))
            }
            CallEnd::BehindTags { closers, value, in_value } => loop {
                let tag = value[usize::from(*in_value)];
                let ends: Vec<&str> = match in_value {
                    true => vec![tag],
                    false => closers.iter().copied().chain([tag]).collect(),
                };
                let (at, end) = first(text, &ends, scanned)?;
                if &text[at..end] != tag {
                    return Some((at, end));
                }
                (*in_value, *scanned) = (!*in_value, end);
            },
        }
    }
}

/// Where the first of `ends` begins and ends.
fn first(text: &str, ends: &[&str], scanned: &mut usize) -> Option<(usize, usize)> {
    let mut from = (*scanned).min(text.len());
    while !text.is_char_boundary(from) {
        from -= 1;
    }
    let found = ends.iter().filter_map(|end| Some((from + text[from..].find(end)?, end.len()))).min();
    if found.is_none() {
        // An end may have begun.
        let longest = ends.iter().map(|end| end.len()).max().unwrap_or(0);
        *scanned = from.max(text.len().saturating_sub(longest));
    }
    found.map(|(at, n_bytes)| (at, at + n_bytes))
}
