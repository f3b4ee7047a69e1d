//! The list of the crates that the programs are linked with, as CycloneDX 1.6 (JSON): scanners compare it with advisories.
//! cargo-cyclonedx also writes such lists, but for one package; a release has two, whose crates `cargo metadata` lists together.

use anyhow::{Context, Result};
use serde_json::{Value, json};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::crates::Crate;
use super::notices::text_of_unlisted;

/// SBOM of a release that is made at `epoch`, in seconds since 1970.
///
/// # Errors
/// When the time is not a number.
pub fn of(crates: &[Crate], version: &str, epoch: &str) -> Result<Vec<u8>> {
    let seconds: u64 = epoch.parse().with_context(|| format!("{epoch} is no time in seconds"))?;
    let components: Vec<Value> = crates.iter().map(component).collect();
    let depends = |one: &Crate| {
        let links: Vec<String> = one.links.iter().map(|&link| crates[link].url()).collect();
        json!({"ref": one.url(), "dependsOn": links})
    };
    let programs: Vec<String> =
        crates.iter().filter(|one| super::PACKAGES.contains(&&one.name[..])).map(Crate::url).collect();
    let whole = "pkg:generic/unicorn";
    let mut dependencies = vec![json!({"ref": whole, "dependsOn": programs})];
    dependencies.extend(crates.iter().map(depends));
    let list = json!({
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "timestamp": utc(seconds)?,
            "component": {
                "type": "application", "bom-ref": whole, "name": "unicorn", "version": version,
                "licenses": [{"expression": "Apache-2.0 OR MIT"}],
            },
        },
        "components": components,
        "dependencies": dependencies,
    });
    Ok(serde_json::to_vec_pretty(&list)?)
}

fn component(one: &Crate) -> Value {
    let mut component = json!({
        "type": "library", "bom-ref": one.url(), "name": one.name, "version": one.version, "purl": one.url(),
    });
    match &one.licence[..] {
        "" => component["licenses"] = json!([{"license": {"name": text_of_unlisted(one)}}]),
        // Older syntax: `MIT/Apache-2.0` means either.
        expression => component["licenses"] = json!([{"expression": expression.replace('/', " OR ")}]),
    }
    if let Some(checksum) = &one.checksum {
        component["hashes"] = json!([{"alg": "SHA-256", "content": checksum}]);
    }
    component
}

/// `seconds` since 1970 in the form of RFC 3339.
fn utc(seconds: u64) -> Result<String> {
    Ok(OffsetDateTime::from_unix_timestamp(seconds.try_into()?)?.format(&Rfc3339)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_date() {
        for (seconds, expected) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_709_251_199, "2024-02-29T23:59:59Z"),
            (1_735_689_600, "2025-01-01T00:00:00Z"),
        ] {
            assert_eq!(utc(seconds).unwrap(), expected);
        }
    }

    #[test]
    fn a_component_has_its_licence_and_the_hash_of_its_archive() {
        let one = |name: &str, licence: &str, links| Crate {
            name: name.into(),
            version: "1.2.3".into(),
            licence: licence.into(),
            folder: "/".into(),
            checksum: Some("01ab".into()),
            links,
        };
        let list = of(&[one("a", "MIT/Apache-2.0", vec![]), one("unicorn-run", "MIT", vec![0])], "0.1.0", "0").unwrap();
        let list: Value = serde_json::from_slice(&list).unwrap();
        let first = &list["components"][0];
        assert_eq!(first["licenses"][0]["expression"], "MIT OR Apache-2.0");
        assert_eq!(first["hashes"][0]["content"], "01ab");
        let links: Vec<_> =
            list["dependencies"].as_array().unwrap().iter().map(|one| one["dependsOn"][0].as_str()).collect();
        assert_eq!(links, [Some("pkg:cargo/unicorn-run@1.2.3"), None, Some("pkg:cargo/a@1.2.3")]);
    }
}
