//! Random numbers that stay the same on every machine and with every version of every crate.

/// SplitMix64: a counter, stirred.
pub struct Random {
    counter: u64,
}

impl Random {
    pub fn new(seed: u64) -> Self {
        Self { counter: seed }
    }

    /// Mean 0, deviation 1, nearly normal: the sum of twelve numbers from 0 to 1, less their mean.
    pub fn normal(&mut self) -> f32 {
        (0..12).map(|_| self.unit()).sum::<f32>() - 6.0
    }

    /// From 0 up to, not including, 1.
    fn unit(&mut self) -> f32 {
        (self.word() >> 40) as f32 / (1u64 << 24) as f32
    }

    /// 64 random bits.
    pub fn word(&mut self) -> u64 {
        self.counter = self.counter.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.counter;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }
}
