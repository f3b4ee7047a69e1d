//! A machine's file, in which unknown fields are errors: see `artifacts/machines/README.md`.

use std::path::Path;

use serde::Deserialize;

use super::{Machine, MachineError, MachineTier};
use crate::account::size;
use crate::amount;
use crate::plan::{Reader, Tier};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    about: String,
    tiers: Tiers,
    arithmetic: Option<Figure>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Tiers {
    npu: Option<FileTier>,
    vram: FileTier,
    gtt: FileTier,
    host: FileTier,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileTier {
    size: Figure,
    kept_free: Option<Figure>,
    bandwidth: Figure,
    readers: Vec<Reader>,
    sparse_rows: bool,
}

/// A figure with its unit and its source.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Figure {
    is: String,
    source: String,
}

/// The machine in `bytes`, which were read from `path`.
pub(super) fn parse(path: &Path, bytes: &[u8]) -> Result<Machine, MachineError> {
    let malformed = |what: String| MachineError::Malformed { path: path.to_owned(), what };
    let file: File = serde_json::from_slice(bytes).map_err(|error| malformed(error.to_string()))?;
    let File { about, tiers, arithmetic } = file;
    let found = [
        (Tier::Npu, tiers.npu),
        (Tier::Vram, Some(tiers.vram)),
        (Tier::Gtt, Some(tiers.gtt)),
        (Tier::Host, Some(tiers.host)),
    ];
    let tiers = found.into_iter().filter_map(|(tier, fields)| Some(fields?.read(tier)));
    let machine = Machine {
        name: path.file_stem().map_or(String::new(), |stem| stem.to_string_lossy().into_owned()),
        about,
        tiers: tiers.collect::<Result<_, _>>().map_err(malformed)?,
        flop_per_s: arithmetic
            .map(|figure| figure.read("arithmetic", amount::flop_per_s, "unknown"))
            .transpose()
            .map_err(malformed)?
            .flatten(),
    };
    let shared = |tier: &MachineTier| [Reader::Gpu, Reader::Cpu].iter().all(|reader| tier.readers.contains(reader));
    if !machine.tiers.iter().any(shared) {
        return Err(malformed("no tier has both gpu and cpu among its readers, expected one at least".into()));
    }
    Ok(machine)
}

impl FileTier {
    fn read(self, tier: Tier) -> Result<MachineTier, String> {
        let place = |field: &str| format!("tiers.{tier}.{field}");
        let size_bytes = self.size.read(&place("size"), amount::bytes, "unlimited")?;
        let bytes_per_s = self.bandwidth.read(&place("bandwidth"), amount::bytes_per_s, "unknown")?;
        // An unlimited size has no reserve, and the default reserve is nothing.
        let kept_free = self.kept_free.map(|figure| figure.read(&place("kept_free"), amount::bytes, "nothing"));
        let kept_free_bytes = kept_free.transpose()?.flatten().unwrap_or(0);
        if let Some(all) = size_bytes.filter(|all| kept_free_bytes >= *all) {
            let (field, kept, all) = (place("kept_free"), size(kept_free_bytes), size(all));
            return Err(format!("{field} is {kept}, expected less than the size of {all}"));
        }
        Ok(MachineTier {
            tier,
            size_bytes,
            kept_free_bytes,
            bytes_per_s,
            readers: self.readers,
            sparse_rows: self.sparse_rows,
            source: format!("size: {}; bandwidth: {}", self.size.source, self.bandwidth.source),
        })
    }
}

impl Figure {
    /// The figure of the field at `place`; `None` where it is `open`.
    fn read(&self, place: &str, read: fn(&str) -> Result<u64, String>, open: &str) -> Result<Option<u64>, String> {
        if self.source.trim().is_empty() {
            return Err(format!("{place}.source is empty, expected where the figure comes from"));
        }
        if self.is == open {
            return Ok(None);
        }
        let wrong = |expected| format!("{place}.is is {:?}, expected {expected}, or {open}", self.is);
        read(&self.is).map(Some).map_err(wrong)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The preset with `from` replaced by `to`, once.
    fn refusal(from: &str, to: &str) -> String {
        let text = include_str!("../../machines/phoenix-32gb.json");
        assert!(text.contains(from), "{from}");
        parse(Path::new("mine.json"), text.replacen(from, to, 1).as_bytes()).unwrap_err().to_string()
    }

    #[test]
    fn mistakes_are_reported_with_their_place() {
        let cases = [
            (
                "\"vram\"",
                "\"vrma\"",
                "mine.json: unknown field `vrma`, expected one of `npu`, `vram`, `gtt`, `host` at",
            ),
            ("\"readers\"", "\"reader\"", "mine.json: unknown field `reader`, expected one of `size`, `kept_free`"),
            ("\"4 GiB\"", "\"4\"", "mine.json: tiers.vram.size.is is \"4\", expected a positive number with a unit"),
            ("\"4 GiB\"", "\"0 GiB\"", "mine.json: tiers.vram.size.is is \"0 GiB\", expected a positive number"),
            ("\"4 GiB\"", "\"4 GB/s\"", "mine.json: tiers.vram.size.is is \"4 GB/s\", expected"),
            ("\"4 GiB\"", "4", "mine.json: invalid type: integer `4`, expected a string at line "),
            ("\"512 MiB\"", "\"5 GiB\"", "kept_free is 5.00 GiB, expected less than the size of 4.00 GiB"),
            ("\"89.6 GB/s\"", "\"89.6 GB\"", "tiers.vram.bandwidth.is is \"89.6 GB\", expected a positive number"),
            ("\"gpu\", \"cpu\"]", "\"gpu\", \"tpu\"]", "unknown variant `tpu`, expected one of `npu`, `gpu`, `cpu` at"),
            (
                ", \"source\": \"4 columns",
                ", \"sauce\": \"4 columns",
                "unknown field `sauce`, expected `is` or `source`",
            ),
            (" TFLOP/s", " GB/s", "mine.json: arithmetic.is is "),
        ];
        for (from, to, expected) in cases {
            let message = refusal(from, to);
            assert!(message.contains(expected), "{message}");
        }
    }

    #[test]
    fn a_missing_tier_is_named() {
        let figure = r#"{ "is": "1 GiB", "source": "s" }"#;
        let speed = r#"{ "is": "1 GB/s", "source": "s" }"#;
        let tier = format!(r#"{{ "size": {figure}, "bandwidth": {speed}, "readers": ["cpu"], "sparse_rows": true }}"#);
        let read = |tiers: String| {
            let text = format!(r#"{{ "about": "a", "tiers": {{ {tiers} }} }}"#);
            parse(Path::new("mine.json"), text.as_bytes()).unwrap_err().to_string()
        };
        assert!(read(format!(r#""vram": {tier}, "host": {tier}"#)).starts_with("mine.json: missing field `gtt` at"));
        let message = read(format!(r#""vram": {tier}, "gtt": {tier}, "host": {tier}"#));
        assert_eq!(message, "mine.json: no tier has both gpu and cpu among its readers, expected one at least");
        assert!(parse(Path::new("mine.json"), b"[]").unwrap_err().to_string().contains("invalid"));
    }
}
