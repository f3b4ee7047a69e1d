//! Where a JSON value ends, without reading it again for every piece.

/// Scans an object, a list or a text, whose first byte is the first that is fed.
#[derive(Clone, Debug, Default)]
pub(super) struct JsonScan {
    depth: usize,
    in_text: bool,
    escaped: bool,
}

impl JsonScan {
    /// Takes the next piece. Returns how many of its bytes belong to the value if it ends in it.
    pub(super) fn feed(&mut self, piece: &str) -> Option<usize> {
        for (at, byte) in piece.bytes().enumerate() {
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' if self.in_text => self.escaped = true,
                b'"' => self.in_text = !self.in_text,
                b'{' | b'[' if !self.in_text => self.depth += 1,
                b'}' | b']' if !self.in_text => self.depth = self.depth.saturating_sub(1),
                _ => continue,
            }
            if self.depth == 0 && !self.in_text && !self.escaped {
                return Some(at + 1);
            }
        }
        None
    }
}
