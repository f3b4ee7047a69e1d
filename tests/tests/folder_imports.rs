//! Which folder of a package may use which: read from the sources' `use` lines, paths behind the name of an imported module and paths that
//! begin with `crate::`, test modules excluded.
//!
//! A folder of the runtime uses only folders before it in the list, and no files of a package use each other in a circle. A new folder
//! gets a place in the list; a use against the order is answered by moving the shared type down, not by a longer list.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Folders and top-level files of the runtime, lowest first. `error` stands below all: it holds plain data of `device` and
/// `memory`, whose files below it use no error.
const RUNTIME: [&str; 16] = [
    "error", "parallel", "device", "npu", "vk", "memory", "program", "load", "probe", "step", "tune", "options",
    "report", "resident", "session", "model",
];

/// Sources of each package and program.
const SOURCES: [&str; 17] = [
    "artifacts/src",
    "compiler/src",
    "compiler/src/bin/unicorn-compile",
    "kernels/src",
    "npu-gen/src",
    "npu-simulator/src",
    "registry/src",
    "runtime/cli/src",
    "runtime/serve/src",
    "runtime/src",
    "runtime/text/src",
    "runtime/structure/src",
    "shaders-gen/src",
    "terminal/src",
    "tests/src",
    "tests/support/src",
    "xtask/src",
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

/// What reads models knows no later stage of the compiler: not what kernels are chosen, nor where bytes lie.
#[test]
fn the_compilers_import_uses_no_stage_behind_it() {
    let uses = uses(&root().join("compiler/src"));
    let of_import: Vec<_> = uses.iter().filter(|(file, _)| file.starts_with("import")).collect();
    assert!(of_import.len() > 20, "{}", of_import.len());
    let is_below = |used: &PathBuf| used.starts_with("import") || used == Path::new("error.rs");
    let against = of_import.iter().flat_map(|(file, used)| used.iter().map(move |used| (file, used)));
    let against: Vec<_> = against.filter(|(_, used)| !is_below(used)).collect();
    assert!(against.is_empty(), "{against:#?}");
}

#[test]
fn no_files_use_each_other_in_a_circle() {
    for source in SOURCES {
        let uses = uses(&root().join(source));
        assert!(!uses.is_empty(), "{source} has no files");
        let circles = circles(&uses);
        assert!(circles.is_empty(), "{source}: files in circles; a shared type in a lower file ends one: {circles:#?}");
    }
}

#[test]
fn every_package_is_looked_at() {
    let manifest = std::fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let members =
        manifest.split("members = [").nth(1).and_then(|list| list.split(']').next()).expect("a list of members");
    for member in members.split('"').skip(1).step_by(2) {
        assert!(SOURCES.contains(&format!("{member}/src").as_str()), "{member} has no place in SOURCES");
    }
}

#[test]
fn uses_are_read_from_the_sources() {
    let text = "use std::fmt;\nuse crate::a::{self, b::{C, D}, e};\npub use crate::f::G as H;\nuse super::{i, j::K};\nuse self::l::M;\n\
                #[cfg(test)]\nmod tests {\n    use crate::z::Y;\n}\n";
    let text = &format!("mod a;\n#[cfg(test)]\nmod tests;\n{text}");
    let paths: Vec<String> = imported(text, Path::new("n/o.rs")).iter().map(|path| path.join("::")).collect();
    assert_eq!(paths, ["a::self", "a::b::C", "a::b::D", "a::e", "f::G", "n::i", "n::j::K", "n::o::l::M"]);
    assert_eq!(imported("use super::p;", Path::new("n/mod.rs")), [["p"]]);
    // Behind the name of an imported module, which may be a new one, and without an import.
    let text = "use crate::{a, b as c};\nfn f(d: crate::e::F) {\n    a::g::h(x::a::y, c::I, c); // a::z\n    $crate::z(d);\n}\n";
    let paths: Vec<String> = imported(text, Path::new("n.rs")).iter().map(|path| path.join("::")).collect();
    assert_eq!(paths, ["a", "b", "a::g::h", "b::I", "e::F"]);
}

/// The files below `source` that each file below it uses. `lib.rs` and `main.rs` are on top of everything and left out.
fn uses(source: &Path) -> BTreeMap<PathBuf, BTreeSet<PathBuf>> {
    let mut files = Vec::new();
    collect(source, source, &mut files);
    let is_on_top = |file: &PathBuf| ["lib.rs", "main.rs"].contains(&file.to_str().unwrap_or_default());
    // Programs are checked separately.
    files.retain(|file| !is_on_top(file) && !file.starts_with("bin") && !file.ends_with("tests.rs"));
    let known: BTreeSet<PathBuf> = files.iter().cloned().collect();
    let of_file = |file: PathBuf| {
        let text = std::fs::read_to_string(source.join(&file)).unwrap();
        let mut used: BTreeSet<PathBuf> =
            imported(&text, &file).iter().filter_map(|path| file_of(path, &known)).collect();
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

/// Paths below the package that `file` imports outside of its test module.
fn imported(text: &str, file: &Path) -> Vec<Vec<String>> {
    let module = file.with_extension("");
    let mut module: Vec<String> = module.iter().map(|part| part.to_string_lossy().into_owned()).collect();
    if module.last().is_some_and(|last| last == "mod") {
        module.pop();
    }
    let above = module[..module.len() - 1].to_vec();
    // A module in a file of its own does not end this one.
    let is_inline = |line: &str| {
        let begins = ["mod ", "pub mod ", "pub("].iter().any(|begins| line.starts_with(begins));
        begins && line.trim_end().ends_with('{')
    };
    let mut tests = text.match_indices("#[cfg(test)]\n");
    let end = tests.find(|(at, mark)| text[at + mark.len()..].lines().next().is_some_and(is_inline));
    let code = &text[..end.map_or(text.len(), |(at, _)| at)];
    let mut names = Vec::new();
    for (begins, below) in [("use crate::", Vec::new()), ("use super::", above), ("use self::", module)] {
        for (at, _) in code.match_indices(begins) {
            let before = code[..at].rsplit('\n').next().unwrap_or_default();
            // In a module within the file, this is the file itself.
            let is_own = begins == "use super::" && before.starts_with(' ');
            if before.contains("//") || is_own {
                continue;
            }
            let statement = code[at + begins.len()..].split(';').next().unwrap_or_default();
            expand(&mut below.clone(), &without_spaces(statement), &mut names);
        }
    }
    let code: String = code.lines().flat_map(|line| [line.split("//").next().unwrap_or_default(), "\n"]).collect();
    let behind_names = names.iter().flat_map(|(path, name)| {
        let module = path.strip_suffix(&["self".to_owned()]).unwrap_or(path);
        behind(&code, &format!("{name}::")).into_iter().map(move |rest| [module, &rest].concat())
    });
    let behind_names: Vec<_> = behind_names.chain(behind(&code, "crate::")).collect();
    names.into_iter().map(|(path, _)| path).chain(behind_names).collect()
}

/// What follows each `prefix` that begins a path outside of a `use`.
fn behind(code: &str, prefix: &str) -> Vec<Vec<String>> {
    let is_name = |letter: char| letter.is_alphanumeric() || letter == '_';
    let begins = |at: usize| {
        let before = &code[..at];
        !before.ends_with(|letter| is_name(letter) || ":$".contains(letter)) && !before.trim_end().ends_with("use")
    };
    let path = |(at, _): (usize, &str)| {
        let path =
            code[at + prefix.len()..].split(|letter| !is_name(letter) && letter != ':').next().unwrap_or_default();
        path.split("::").filter(|part| !part.is_empty()).map(str::to_owned).collect::<Vec<String>>()
    };
    let found = code.match_indices(prefix).filter(|(at, _)| begins(*at)).map(path);
    found.filter(|path| !path.is_empty()).collect()
}

/// Splits `a::{b,c::d=e}` into paths, each with its name in the file.
fn expand(before: &mut Vec<String>, rest: &str, paths: &mut Vec<(Vec<String>, String)>) {
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
        None => {
            let (own, new) = rest.split_once('=').unwrap_or((rest, rest));
            let name = if new == "self" { before.last().map_or(new, String::as_str) } else { new }.to_owned();
            paths.push((before.iter().cloned().chain([own.to_owned()]).collect(), name));
        }
    }
}

/// A statement without spaces, and with `a=b` for `a as b`.
fn without_spaces(statement: &str) -> String {
    statement.split_whitespace().map(|word| if word == "as" { "=" } else { word }).collect()
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
