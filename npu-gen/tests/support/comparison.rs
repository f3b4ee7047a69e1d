//! Outputs of a run and what they must be, value by value.

/// How far outputs are from the expected ones.
#[derive(Debug)]
pub struct Comparison {
    /// Values compared.
    pub values: usize,
    /// Largest difference; infinite if a value is not a number.
    pub largest: f64,
    /// Values that differ by more than the bound.
    pub beyond: usize,
    /// The first of them: its index, what was found, and what was expected.
    pub first: Option<(usize, f64, f64)>,
}

impl Comparison {
    /// Of pairs of a found and an expected value, at most `bound` apart.
    pub fn of(pairs: impl IntoIterator<Item = (f64, f64)>, bound: f64) -> Comparison {
        let mut comparison = Comparison { values: 0, largest: 0.0, beyond: 0, first: None };
        for (index, (found, expected)) in pairs.into_iter().enumerate() {
            let difference = (found - expected).abs();
            // max would pass over a NaN.
            let difference = if difference.is_nan() { f64::INFINITY } else { difference };
            comparison.values += 1;
            comparison.largest = comparison.largest.max(difference);
            if difference > bound {
                comparison.beyond += 1;
                comparison.first.get_or_insert((index, found, expected));
            }
        }
        comparison
    }
}
