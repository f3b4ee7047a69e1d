//! From the hidden rows of a text to one vector.

/// How the hidden rows of a text become its embedding, by llama-server's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Pooling {
    /// The mean of all rows.
    Mean,
    /// The row of the last token, which attends to all others.
    Last,
    /// The row of the first token.
    Cls,
    /// No pooling: each token has its own row.
    None,
}

/// Pools hidden rows one by one.
pub(crate) struct Pool {
    pooling: Pooling,
    n_rows: u64,
    /// Sums of the rows, for [`Pooling::Mean`].
    sums: Vec<f64>,
    /// Rows that are kept unchanged.
    rows: Vec<Vec<f32>>,
}

impl Pool {
    pub(crate) fn new(pooling: Pooling) -> Pool {
        Pool { pooling, n_rows: 0, sums: Vec::new(), rows: Vec::new() }
    }

    /// Drops its sums: the text is read again.
    pub(crate) fn clear(&mut self) {
        *self = Pool::new(self.pooling);
    }

    pub(crate) fn add(&mut self, row: &[f32]) {
        match self.pooling {
            Pooling::Mean => {
                self.sums.resize(row.len(), 0.0);
                self.sums.iter_mut().zip(row).for_each(|(sum, &value)| *sum += f64::from(value));
            }
            Pooling::Last => self.rows = vec![row.to_vec()],
            Pooling::Cls if self.n_rows > 0 => {}
            Pooling::Cls | Pooling::None => self.rows.push(row.to_vec()),
        }
        self.n_rows += 1;
    }

    /// One row, or with [`Pooling::None`] as many as the text has tokens.
    pub(crate) fn take(&mut self) -> Vec<Vec<f32>> {
        if self.pooling == Pooling::Mean {
            let n_rows = self.n_rows.max(1) as f64;
            self.rows = vec![self.sums.iter().map(|sum| (sum / n_rows) as f32).collect()];
        }
        std::mem::take(&mut self.rows)
    }
}

/// Largest magnitude of an embedding that is scaled to fit 16-bit integers.
const INT16_PEAK: f64 = 32760.0;

/// Scales a row as llama-server does, by its parameter `embd_normalize`: -1 not at all, 0 to the range of int16, 2 to a Euclidean norm
/// of 1, and another p to a p-norm of 1. A row of zeros stays one.
pub(crate) fn normalize(row: &mut [f32], norm: i32) {
    let magnitudes = || row.iter().map(|&value| f64::from(value).abs());
    let size = match norm {
        ..0 => return,
        0 => magnitudes().fold(0.0, f64::max) / INT16_PEAK,
        2 => magnitudes().map(|value| value * value).sum::<f64>().sqrt(),
        p => magnitudes().map(|value| value.powi(p)).sum::<f64>().powf(1.0 / f64::from(p)),
    };
    if size > 0.0 {
        row.iter_mut().for_each(|value| *value = (f64::from(*value) / size) as f32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pooled(pooling: Pooling) -> Vec<Vec<f32>> {
        let mut pool = Pool::new(pooling);
        // What came before a text was read again does not count.
        pool.add(&[100.0, 100.0]);
        pool.clear();
        [[1.0, 2.0], [3.0, -4.0], [5.0, 8.0]].iter().for_each(|row| pool.add(row));
        pool.take()
    }

    #[test]
    fn rows_are_pooled_by_their_place() {
        assert_eq!(pooled(Pooling::Mean), [[3.0, 2.0]]);
        assert_eq!(pooled(Pooling::Last), [[5.0, 8.0]]);
        assert_eq!(pooled(Pooling::Cls), [[1.0, 2.0]]);
        assert_eq!(pooled(Pooling::None), [[1.0, 2.0], [3.0, -4.0], [5.0, 8.0]]);
    }

    #[test]
    fn rows_are_scaled_by_the_norm_that_was_asked_for() {
        let scaled = |norm| {
            let mut row = [3.0, -4.0];
            normalize(&mut row, norm);
            row
        };
        assert_eq!(scaled(-1), [3.0, -4.0]);
        assert_eq!(scaled(0), [24570.0, -32760.0]);
        assert_eq!(scaled(1), [3.0 / 7.0, -4.0 / 7.0]);
        assert_eq!(scaled(2), [0.6, -0.8]);
        let cubic = 91f64.cbrt();
        assert_eq!(scaled(3), [(3.0 / cubic) as f32, (-4.0 / cubic) as f32]);
        let mut zeros = [0.0; 2];
        normalize(&mut zeros, 2);
        assert_eq!(zeros, [0.0; 2]);
    }
}
