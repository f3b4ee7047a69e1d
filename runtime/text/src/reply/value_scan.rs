//! Where a value of JSON, or a list of Python's, ends, without reading it again for every piece.

/// Scans an object, a list or a text, whose first byte is the first that is fed; of Python, a call begins with its name.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct ValueScan {
    depth: usize,
    /// Within a text: the quote that ends it.
    quote: Option<u8>,
    escaped: bool,
    is_python: bool,
}

impl ValueScan {
    /// Of Python: a text may stand between single quotes, and parentheses are brackets.
    pub(super) fn python() -> ValueScan {
        ValueScan { is_python: true, ..ValueScan::default() }
    }

    /// Takes the next piece. Returns how many of its bytes belong to the value if it ends in it.
    pub(super) fn feed(&mut self, piece: &str) -> Option<usize> {
        for (at, byte) in piece.bytes().enumerate() {
            match (byte, self.quote) {
                _ if self.escaped => self.escaped = false,
                (b'\\', Some(_)) => self.escaped = true,
                (_, Some(quote)) if byte == quote => self.quote = None,
                (_, Some(_)) => continue,
                (b'"', None) => self.quote = Some(byte),
                (b'\'', None) if self.is_python => self.quote = Some(byte),
                (b'{' | b'[', None) => self.depth += 1,
                (b'}' | b']', None) => self.depth = self.depth.saturating_sub(1),
                (b'(', None) if self.is_python => self.depth += 1,
                (b')', None) if self.is_python => self.depth = self.depth.saturating_sub(1),
                _ => continue,
            }
            if self.depth == 0 && self.quote.is_none() && !self.escaped {
                return Some(at + 1);
            }
        }
        None
    }
}
