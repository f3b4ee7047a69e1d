//! Sizes, bandwidths and rates of arithmetic as text: `16 GiB`, `89.6 GB/s`, `8.9 TFLOP/s`.

/// Units of bytes; those of three letters are powers of 1024.
const UNITS: [(&str, u64); 8] = [
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
];

/// Largest amount that is accepted: 2⁵⁰ bytes.
const MAX_BYTES: f64 = (1u64 << 50) as f64;

/// Bytes of `text`: a positive number and a unit, with or without a space between.
///
/// # Errors
/// What was expected, without the text itself.
pub fn bytes(text: &str) -> Result<u64, String> {
    let expected = || "a positive number with a unit of KiB, MiB, GiB, TiB, KB, MB, GB or TB".to_owned();
    let number_len = text.find(|letter: char| !letter.is_ascii_digit() && letter != '.').ok_or_else(expected)?;
    let (number, unit) = text.split_at(number_len);
    let (_, scale) = UNITS.iter().find(|(name, _)| *name == unit.trim_start()).ok_or_else(expected)?;
    let amount = number.parse::<f64>().map_err(|_| expected())? * *scale as f64;
    // At least a byte: a size of zero means a tier that does not exist.
    (1.0..=MAX_BYTES).contains(&amount).then_some(amount.round() as u64).ok_or_else(expected)
}

/// An amount that is at least `bytes` and that [`bytes`] reads: MiB below one GiB, else tenths of GiB.
pub fn at_least(bytes: u64) -> String {
    const MIB: u64 = 1 << 20;
    if bytes <= 1024 * MIB {
        return format!("{}MiB", bytes.div_ceil(MIB));
    }
    // In integers: a rounded float may be too small.
    let tenths = (u128::from(bytes) * 10).div_ceil(1 << 30);
    if tenths.is_multiple_of(10) {
        format!("{}GiB", tenths / 10)
    } else {
        format!("{}.{}GiB", tenths / 10, tenths % 10)
    }
}

/// From this size on, [`rounded_down`] gives whole quarters of a GiB.
const COARSE_FROM_BYTES: u64 = 4 << 30;
const QUARTER_GIB: u64 = 256 << 20;

/// `bytes` rounded to an amount that is short to type: a whole number of MiB, and of quarters of a GiB from 4 GiB on.
pub fn rounded_down(bytes: u64) -> u64 {
    let step = if bytes >= COARSE_FROM_BYTES { QUARTER_GIB } else { 1 << 20 };
    bytes / step * step
}

/// The amount as one word that [`bytes`] reads back, exact for results of [`rounded_down`]: `7.75GiB`, `1200MiB`.
pub fn typed(bytes: u64) -> String {
    match bytes {
        whole if whole >= 1 << 30 && whole.is_multiple_of(QUARTER_GIB) => {
            format!("{}GiB", whole as f64 / f64::from(1 << 30))
        }
        other => format!("{}MiB", other >> 20),
    }
}

/// Bytes a second of `text`: an amount of bytes followed by `/s`.
///
/// # Errors
/// What was expected, without the text itself.
pub fn bytes_per_s(text: &str) -> Result<u64, String> {
    let amount = text.strip_suffix("/s").and_then(|amount| bytes(amount).ok());
    amount.ok_or_else(|| "a positive number with a unit such as MB/s, GB/s, MiB/s or GiB/s".to_owned())
}

/// Operations a second of `text`: a positive number of GFLOP/s or TFLOP/s.
///
/// # Errors
/// What was expected, without the text itself.
pub fn flop_per_s(text: &str) -> Result<u64, String> {
    let bytes = text.strip_suffix("FLOP/s").map(|amount| format!("{amount}B"));
    let amount = bytes.and_then(|amount| self::bytes(&amount).ok());
    amount.ok_or_else(|| "a positive number with a unit of GFLOP/s or TFLOP/s".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_read_in_both_kinds_of_units() {
        assert_eq!(bytes("16 GiB"), Ok(16 << 30));
        assert_eq!(bytes("16GB"), Ok(16_000_000_000));
        assert_eq!(bytes("7.75 GiB"), Ok(31 << 28));
        assert_eq!(bytes_per_s("89.6 GB/s"), Ok(89_600_000_000));
        assert_eq!(flop_per_s("8.9 TFLOP/s"), Ok(8_900_000_000_000));
    }

    #[test]
    fn amounts_that_are_enough_are_short_and_read_back() {
        for (amount, text) in
            [(1, "1MiB"), (1 << 30, "1024MiB"), (5 << 30, "5GiB"), ((5 << 30) + 1, "5.1GiB"), (20_482 << 20, "20.1GiB")]
        {
            assert_eq!(at_least(amount), text);
            let read = bytes(text).unwrap();
            assert!((amount..amount + (1 << 30) / 8).contains(&read), "{text}: {read}");
        }
    }

    #[test]
    fn what_is_suggested_is_short_and_read_back() {
        for (given, expected) in [
            ((31 << 28) + 12_345_678, "7.75GiB"),
            ((8 << 30) + (100 << 20), "8GiB"),
            ((1200 << 20) + 7, "1200MiB"),
            (1 << 30, "1GiB"),
            (500 << 20, "500MiB"),
        ] {
            let rounded = rounded_down(given);
            assert_eq!((typed(rounded).as_str(), bytes(&typed(rounded))), (expected, Ok(rounded)));
        }
    }

    #[test]
    fn what_is_no_amount_is_refused() {
        for text in
            ["", "16", "GiB", "16 GiB/s", "0 GiB", "-1 GiB", "1e9 GiB", "1.2.3 GiB", "16 gib", "9999 TiB", "nanGiB"]
        {
            assert!(bytes(text).is_err(), "{text}");
        }
        assert!(bytes_per_s("89.6 GB").is_err());
        assert!(flop_per_s("8.9 TB/s").is_err() && flop_per_s("8.9").is_err() && flop_per_s("9999 TFLOP/s").is_err());
    }
}
