//! A machine's file, read strictly: see `compiler/machines/README.md`.

use std::path::Path;

use unicorn_artifact::account::size;
use unicorn_artifact::{Reader, Tier, amount};

use super::{Machine, MachineTier};
use crate::error::{CompileError, Result};
use crate::import::json::{Fields, parse_json};

/// Tiers by the name that files and budgets use.
const TIERS: [Tier; 4] = [Tier::Npu, Tier::Vram, Tier::Gtt, Tier::Host];

/// The machine that `bytes`, read from `path`, describe.
pub(super) fn parse(path: &Path, bytes: &[u8]) -> Result<Machine> {
    let json = parse_json(path, bytes)?;
    let root = Fields::root(path, &json)?;
    only(&root, &["about", "tiers"])?;
    let about = root.text("about")?.ok_or_else(|| root.error("about", "is missing, expected a line for people"))?;
    let tiers = root.object("tiers")?.ok_or_else(|| root.error("tiers", "is missing, expected an object"))?;
    only(&tiers, &TIERS.map(Tier::name))?;
    let mut machine = Machine {
        name: path.file_stem().map_or(String::new(), |stem| stem.to_string_lossy().into_owned()),
        about: about.to_owned(),
        tiers: Vec::new(),
    };
    for tier in TIERS {
        match tiers.object(tier.name())? {
            Some(fields) => machine.tiers.push(read_tier(tier, &fields)?),
            None if tier == Tier::Npu => {}
            None => return Err(tiers.error(tier.name(), "is missing, expected an object with size and bandwidth")),
        }
    }
    let shared = |tier: &MachineTier| [Reader::Gpu, Reader::Cpu].iter().all(|reader| tier.readers.contains(reader));
    if !machine.tiers.iter().any(shared) {
        return Err(CompileError::malformed(
            path,
            "no tier has both gpu and cpu among its readers, expected one at least",
        ));
    }
    Ok(machine)
}

fn read_tier(tier: Tier, fields: &Fields) -> Result<MachineTier> {
    only(fields, &["size", "kept_free", "bandwidth", "readers", "sparse_rows"])?;
    let missing = |name, expected: &str| fields.error(name, &format!("is missing, expected {expected}"));
    let (size_bytes, size_source) =
        figure(fields, "size", amount::bytes, "unlimited")?.ok_or_else(|| missing("size", FIGURE))?;
    let (bytes_per_s, bandwidth_source) =
        figure(fields, "bandwidth", amount::bytes_per_s, "unknown")?.ok_or_else(|| missing("bandwidth", FIGURE))?;
    // Nothing is kept free of an unlimited size, and nothing where nothing is said.
    let kept_free_bytes =
        figure(fields, "kept_free", amount::bytes, "nothing")?.and_then(|(bytes, _)| bytes).unwrap_or(0);
    if size_bytes.is_some_and(|all| kept_free_bytes >= all) {
        let (kept, all) = (size(kept_free_bytes), size(size_bytes.unwrap_or_default()));
        return Err(fields.error("kept_free", &format!("is {kept}, expected less than the size of {all}")));
    }
    let readers = fields.texts("readers")?.ok_or_else(|| missing("readers", "a list of npu, gpu, cpu"))?;
    let sparse_rows = fields.flag("sparse_rows")?.ok_or_else(|| missing("sparse_rows", "true or false"))?;
    Ok(MachineTier {
        tier,
        size_bytes,
        kept_free_bytes,
        bytes_per_s,
        readers: readers.into_iter().map(|name| reader(fields, name)).collect::<Result<_>>()?,
        sparse_rows,
        source: format!("size: {size_source}; bandwidth: {bandwidth_source}"),
    })
}

const FIGURE: &str = "{ \"is\": …, \"source\": … }";

/// A figure and its source; the figure is `None` where it says `open`. `None` without the field.
fn figure(
    fields: &Fields,
    name: &str,
    read: fn(&str) -> std::result::Result<u64, String>,
    open: &str,
) -> Result<Option<(Option<u64>, String)>> {
    let Some(object) = fields.object(name)? else { return Ok(None) };
    only(&object, &["is", "source"])?;
    let text = object.text("is")?.ok_or_else(|| object.error("is", "is missing, expected a figure with its unit"))?;
    let source = object.text("source")?.filter(|source| !source.trim().is_empty());
    let source = source.ok_or_else(|| object.error("source", "is missing, expected where the figure comes from"))?;
    let amount = match text {
        _ if text == open => None,
        _ => Some(
            read(text)
                .map_err(|expected| object.error("is", &format!("is {text:?}, expected {expected}, or {open}")))?,
        ),
    };
    Ok(Some((amount, source.to_owned())))
}

fn reader(fields: &Fields, name: &str) -> Result<Reader> {
    match name {
        "npu" => Ok(Reader::Npu),
        "gpu" => Ok(Reader::Gpu),
        "cpu" => Ok(Reader::Cpu),
        _ => Err(fields.error("readers", &format!("names {name:?}, expected npu, gpu or cpu"))),
    }
}

/// Refuses keys that are not in `known`: a misspelt one would silently change nothing.
fn only(fields: &Fields, known: &[&str]) -> Result<()> {
    match fields.names().find(|name| !known.contains(name)) {
        Some(name) => Err(fields.error(name, &format!("is an unknown key, expected {}", known.join(", ")))),
        None => Ok(()),
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
    fn mistakes_are_told_with_their_place() {
        let cases = [
            ("\"vram\"", "\"vrma\"", "mine.json: tiers.vrma is an unknown key, expected npu, vram, gtt, host"),
            ("\"readers\"", "\"reader\"", "mine.json: tiers.npu.reader is an unknown key, expected size, kept_free"),
            ("\"4 GiB\"", "\"4\"", "mine.json: tiers.vram.size.is is \"4\", expected a positive number with a unit"),
            ("\"4 GiB\"", "\"0 GiB\"", "mine.json: tiers.vram.size.is is \"0 GiB\", expected a positive number"),
            ("\"4 GiB\"", "\"4 GB/s\"", "mine.json: tiers.vram.size.is is \"4 GB/s\", expected"),
            ("\"4 GiB\"", "4", "mine.json: tiers.vram.size.is is 4, expected a string"),
            ("\"512 MiB\"", "\"5 GiB\"", "kept_free is 5.00 GiB, expected less than the size of 4.00 GiB"),
            ("\"89.6 GB/s\"", "\"89.6 GB\"", "tiers.vram.bandwidth.is is \"89.6 GB\", expected a positive number"),
            ("\"gpu\", \"cpu\"]", "\"gpu\", \"tpu\"]", "tiers.vram.readers names \"tpu\", expected npu, gpu or cpu"),
            (", \"source\": \"4 columns", ", \"sauce\": \"4 columns", "tiers.npu.size.sauce is an unknown key"),
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
        assert!(read(format!(r#""vram": {tier}, "host": {tier}"#)).starts_with("mine.json: tiers.gtt is missing"));
        let message = read(format!(r#""vram": {tier}, "gtt": {tier}, "host": {tier}"#));
        assert_eq!(message, "mine.json: no tier has both gpu and cpu among its readers, expected one at least");
        assert!(parse(Path::new("mine.json"), b"[]").unwrap_err().to_string().contains("not a JSON object"));
    }
}
