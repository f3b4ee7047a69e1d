//! The crates that the programs are linked with, as `cargo metadata` resolves them for one target.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::Value;

use crate::run::{cargo, read};

/// A crate, of this repository or another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Crate {
    pub name: String,
    pub version: String,
    /// An SPDX expression.
    pub licence: String,
    /// Folder of its source on this machine.
    pub folder: PathBuf,
    /// SHA-256 of the archive that crates.io has; `None`: ours.
    pub checksum: Option<String>,
    /// Crates that it is linked with, by index in the list.
    pub links: Vec<usize>,
}

impl Crate {
    /// The crate's package URL.
    pub fn url(&self) -> String {
        format!("pkg:cargo/{}@{}", self.name, self.version)
    }
}

/// `packages` and the crates that they are linked with, by name, without crates that only builds or tests use.
///
/// # Errors
/// When cargo does not resolve them.
pub fn linked(root: &Path, target: &str, packages: &[&str]) -> Result<Vec<Crate>> {
    let text = read(
        cargo()
            .args(["metadata", "--format-version", "1", "--locked", "--filter-platform", target, "--manifest-path"])
            .arg(root.join("Cargo.toml")),
    )?;
    let metadata: Value = serde_json::from_str(&text).context("cargo metadata prints no JSON")?;
    let lock = std::fs::read_to_string(root.join("Cargo.lock")).context("cannot read Cargo.lock")?;
    reached(&metadata, &checksums(&lock), packages)
}

fn reached(metadata: &Value, checksums: &BTreeMap<(String, String), String>, packages: &[&str]) -> Result<Vec<Crate>> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut nodes = BTreeMap::new();
    for node in list(&metadata["resolve"]["nodes"]) {
        let normal = |dependency: &Value| list(&dependency["dep_kinds"]).iter().any(|kind| kind["kind"].is_null());
        let links = list(&node["deps"]).iter().filter(|one| normal(one)).map(|one| text(&one["pkg"])).collect();
        nodes.insert(text(&node["id"]), links);
    }
    let known: BTreeMap<String, Value> =
        list(&metadata["packages"]).into_iter().map(|package| (text(&package["id"]), package)).collect();
    let is_wanted = |package: &Value| packages.iter().any(|name| package["name"] == *name);
    let mut open: Vec<String> =
        known.iter().filter(|(_, package)| is_wanted(package)).map(|(id, _)| id.clone()).collect();
    anyhow::ensure!(open.len() == packages.len(), "workspace has not all of {}", packages.join(", "));
    let mut ids = BTreeSet::new();
    while let Some(id) = open.pop() {
        if ids.insert(id.clone()) {
            let links: &Vec<String> = nodes.get(&id).with_context(|| format!("{id} is not resolved"))?;
            open.extend(links.iter().cloned());
        }
    }
    // A procedural macro runs in the compiler and is not linked.
    let is_macro = |package: &Value| {
        list(&package["targets"]).iter().any(|target| list(&target["kind"]).contains(&Value::from("proc-macro")))
    };
    let mut ids: Vec<String> = ids.into_iter().filter(|id| !is_macro(&known[id])).collect();
    ids.sort_by_key(|id| (text(&known[id]["name"]), text(&known[id]["version"])));
    let of = |id: &String| {
        let package = &known[id];
        let (name, version) = (text(&package["name"]), text(&package["version"]));
        let manifest = PathBuf::from(text(&package["manifest_path"]));
        Ok(Crate {
            licence: text(&package["license"]),
            folder: manifest.parent().context("a manifest lies in a folder")?.to_owned(),
            checksum: checksums.get(&(name.clone(), version.clone())).cloned(),
            links: nodes[id].iter().filter_map(|link| ids.iter().position(|other| other == link)).collect(),
            name,
            version,
        })
    };
    ids.iter().map(of).collect()
}

/// Checksums of the packages in Cargo.lock, by name and version.
fn checksums(lock: &str) -> BTreeMap<(String, String), String> {
    let value = |package: &str, key: &str| {
        let line = package.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(" = \""));
        line.map(|value| value.trim_end_matches('"').to_owned())
    };
    let packages = lock.split("[[package]]").skip(1);
    packages.filter_map(|one| Some(((value(one, "name")?, value(one, "version")?), value(one, "checksum")?))).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_linked_is_listed_and_nothing_else() {
        let package = |name: &str, kind: &str| {
            json!({"id": name, "name": name, "version": "1.0.0", "license": "MIT", "manifest_path": format!("/{name}/Cargo.toml"),
                "targets": [{"kind": [kind]}]})
        };
        let link = |name: &str, kind: Value| json!({"pkg": name, "dep_kinds": [{"kind": kind}]});
        let metadata = json!({
            "packages": [package("ours", "bin"), package("a", "lib"), package("b", "lib"), package("tested", "lib"),
                package("built", "lib"), package("derive", "proc-macro"), package("other", "lib")],
            "resolve": {"nodes": [
                {"id": "ours", "deps": [link("b", Value::Null), link("tested", json!("dev")), link("derive", Value::Null)]},
                {"id": "b", "deps": [link("a", Value::Null), link("built", json!("build"))]},
                {"id": "derive", "deps": []}, {"id": "a", "deps": []}, {"id": "other", "deps": []},
            ]},
        });
        let lock = "[[package]]\nname = \"a\"\nversion = \"1.0.0\"\nchecksum = \"01ab\"\n\n[[package]]\nname = \"ours\"\nversion = \"1.0.0\"\n";
        let found = reached(&metadata, &checksums(lock), &["ours"]).unwrap();
        let shown: Vec<_> = found.iter().map(|one| (&one.name[..], one.checksum.as_deref(), &one.links[..])).collect();
        assert_eq!(shown, [("a", Some("01ab"), &[][..]), ("b", None, &[0]), ("ours", None, &[1])]);
        assert_eq!(found[0].url(), "pkg:cargo/a@1.0.0");
        assert!(reached(&metadata, &checksums(lock), &["missing"]).is_err());
    }
}
