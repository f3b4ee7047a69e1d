//! A bound on the work of looking through a grammar.

/// Steps that are left for the search, so that a grammar cannot take long.
pub(super) struct Steps(u32);

impl Default for Steps {
    fn default() -> Steps {
        Steps(2 << 20)
    }
}

impl Steps {
    pub(super) fn take(&mut self, number: usize) -> Option<()> {
        self.0 = self.0.checked_sub(u32::try_from(number).ok()?)?;
        Some(())
    }
}
