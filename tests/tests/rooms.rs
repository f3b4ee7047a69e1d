//! Which folder of a package may use which: read from the sources' `use crate::` lines, test modules excluded.
//!
//! A folder uses only folders before it in its package's list, and no files of a package use each other in a circle. A new folder
//! gets a place in the list; a use against the order is answered by moving the shared type down, not by a longer list.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Folders and top-level files of the runtime, lowest first. `error` stands below all: it holds plain data of `device` and
/// `memory`, whose files below it use no error.
const RUNTIME: [&str; 16] = [
    "error", "parallel", "device", "npu", "vk", "memory", "program", "load", "probe", "step", "tune", "options",
    "report", "resident", "session", "model",
];

#[test]
fn folders_of_the_runtime_use_only_folders_below() {
    let rank = |file: &Path| {
        let folder = folder(file);
        RUNTIME.iter().position(|name| *name == folder).unwrap_or_else(|| panic!("{folder} has no place in RUNTIME"))
    };
    let uses = uses(&root().join("runtime/src"));
    let mut found = Vec::new();
    for (file, used) in &uses {
        let is_free = |file: &Path| ["lib", "error"].contains(&folder(file).as_str());
        let against = used.iter().filter(|used| !is_free(file) && !is_free(used) && rank(used) > rank(file));
        found.extend(against.map(|used| format!("{} uses {}", file.display(), used.display())));
    }
    assert!(found.is_empty(), "uses against the order {RUNTIME:?}:\n{}", found.join("\n"));
}

#[test]
fn no_files_of_the_runtime_use_each_other_in_a_circle() {
    let circles = circles(&uses(&root().join("runtime/src")));
    assert!(circles.is_empty(), "files in circles; a shared type in a lower file ends one: {circles:#?}");
}

#[test]
fn uses_are_read_from_the_sources() {
    let text = "use std::fmt;\nuse crate::a::{self, b::{C, D}, e};\npub use crate::f::G as H;\n#[cfg(test)]\nmod tests {\n    use crate::z::Y;\n}\n";
    let paths: Vec<String> = imported(text).iter().map(|path| path.join("::")).collect();
    assert_eq!(paths, ["a::self", "a::b::C", "a::b::D", "a::e", "f::G"]);
}

/// The files below `source` that each file below it uses. `lib.rs` and `main.rs` are on top of everything and left out.
fn uses(source: &Path) -> BTreeMap<PathBuf, BTreeSet<PathBuf>> {
    let mut files = Vec::new();
    collect(source, source, &mut files);
    files.retain(|file| !["lib.rs", "main.rs"].contains(&file.to_str().unwrap_or_default()));
    let known: BTreeSet<PathBuf> = files.iter().cloned().collect();
    let of_file = |file: PathBuf| {
        let text = std::fs::read_to_string(source.join(&file)).unwrap();
        let mut used: BTreeSet<PathBuf> = imported(&text).iter().filter_map(|path| file_of(path, &known)).collect();
        used.remove(&file);
        (file, used)
    };
    files.into_iter().map(of_file).collect()
}

/// The file that defines or re-exports a path.
fn file_of(path: &[String], known: &BTreeSet<PathBuf>) -> Option<PathBuf> {
    (1..=path.len()).rev().find_map(|length| {
        let module: PathBuf = path[..length].iter().collect();
        [module.with_extension("rs"), module.join("mod.rs")].into_iter().find(|file| known.contains(file))
    })
}

/// Paths below `crate::` that a file imports outside of its test module.
fn imported(text: &str) -> Vec<Vec<String>> {
    let code = text.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
    let code = code.split("#[cfg(test)]\npub(").next().unwrap_or_default();
    let mut paths = Vec::new();
    for (at, _) in code.match_indices("use crate::") {
        let before = code[..at].rsplit('\n').next().unwrap_or_default();
        if before.contains("//") {
            continue;
        }
        let statement = code[at + "use crate::".len()..].split(';').next().unwrap_or_default();
        let statement = without_renames(statement);
        expand(&mut Vec::new(), &statement, &mut paths);
    }
    paths
}

/// Splits `a::{b,c::d}` into paths.
fn expand(before: &mut Vec<String>, rest: &str, paths: &mut Vec<Vec<String>>) {
    if let Some(list) = rest.strip_prefix('{').and_then(|rest| rest.strip_suffix('}')) {
        let (mut depth, mut from) = (0, 0);
        for (at, letter) in list.char_indices().chain([(list.len(), ',')]) {
            match letter {
                '{' => depth += 1,
                '}' => depth -= 1,
                ',' if depth == 0 => {
                    if at > from {
                        expand(before, &list[from..at], paths);
                    }
                    from = at + 1;
                }
                _ => {}
            }
        }
        return;
    }
    match rest.split_once("::") {
        Some((first, rest)) => {
            before.push(first.to_owned());
            expand(before, rest, paths);
            before.pop();
        }
        None => paths.push(before.iter().cloned().chain([rest.to_owned()]).collect()),
    }
}

/// A statement without spaces and without the new names of `a as b`.
fn without_renames(statement: &str) -> String {
    let mut words = statement.split_whitespace();
    let mut plain = String::new();
    while let Some(word) = words.next() {
        let is_name = |letter: char| letter.is_alphanumeric() || letter == '_';
        plain += if word == "as" { words.next().unwrap_or_default().trim_start_matches(is_name) } else { word };
    }
    plain
}

/// Groups of files that reach each other, each sorted.
fn circles(uses: &BTreeMap<PathBuf, BTreeSet<PathBuf>>) -> BTreeSet<Vec<PathBuf>> {
    let reached: BTreeMap<&PathBuf, BTreeSet<&PathBuf>> =
        uses.keys().map(|file| (file, reached_from(file, uses))).collect();
    let mut circles = BTreeSet::new();
    for (file, others) in &reached {
        let back = |other: &&&PathBuf| reached.get(**other).is_some_and(|from_there| from_there.contains(*file));
        let circle: Vec<PathBuf> = others.iter().filter(back).map(|other| (**other).clone()).collect();
        if circle.len() > 1 {
            circles.insert(circle);
        }
    }
    circles
}

fn reached_from<'u>(file: &PathBuf, uses: &'u BTreeMap<PathBuf, BTreeSet<PathBuf>>) -> BTreeSet<&'u PathBuf> {
    let mut reached = BTreeSet::new();
    let mut open: Vec<&PathBuf> = uses[file].iter().collect();
    while let Some(next) = open.pop() {
        if reached.insert(next) {
            open.extend(uses.get(next).into_iter().flatten());
        }
    }
    reached
}

/// The first part of a path below `src`, without `.rs`.
fn folder(file: &Path) -> String {
    let first = file.components().next().expect("a file has a name").as_os_str().to_string_lossy().into_owned();
    first.trim_end_matches(".rs").to_owned()
}

fn collect(source: &Path, folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(source, &path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path.strip_prefix(source).unwrap().to_owned());
        }
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests lie in the workspace").to_owned()
}
