//! Text that has arrived and may still be part of a marker.

/// Searches text that arrives in pieces for markers.
#[derive(Debug, Default)]
pub(super) struct Pending {
    text: String,
}

impl Pending {
    pub(super) fn push(&mut self, text: &str) {
        self.text += text;
    }

    /// Restores `text` that was removed from the beginning.
    pub(super) fn put_back(&mut self, text: &str) {
        self.text.insert_str(0, text);
    }

    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// Removes the first `n_bytes` and returns them.
    pub(super) fn take(&mut self, n_bytes: usize) -> String {
        let rest = self.text.split_off(n_bytes);
        std::mem::replace(&mut self.text, rest)
    }

    pub(super) fn take_all(&mut self) -> String {
        std::mem::take(&mut self.text)
    }

    /// Removes the text before the first of `markers`, and the marker, and returns the text with the marker's index. Without one,
    /// all text but what may be the beginning of one; afterwards less than a marker is left.
    pub(super) fn take_until(&mut self, markers: &[&str]) -> (String, Option<usize>) {
        let found = markers.iter().enumerate().filter_map(|(index, marker)| Some((self.text.find(marker)?, index)));
        if let Some((at, index)) = found.min() {
            let before = self.take(at);
            self.take(markers[index].len());
            return (before, Some(index));
        }
        let longest = markers.iter().map(|marker| marker.len()).max().unwrap_or(0);
        let from = self.text.len().saturating_sub(longest);
        let may_begin = |at: &usize| markers.iter().any(|marker| marker.starts_with(&self.text[*at..]));
        let ends = (from..self.text.len()).filter(|at| self.text.is_char_boundary(*at)).find(may_begin);
        (self.take(ends.unwrap_or(self.text.len())), None)
    }

    /// Removes white space at the beginning and returns it.
    pub(super) fn take_space(&mut self) -> String {
        self.take(self.text.len() - self.text.trim_start().len())
    }
}
