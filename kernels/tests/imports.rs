//! Files of this crate import only files below them: the vocabulary, then what families share, then other families, and
//! `spec.rs`, the list of all, on top.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Files under `src`, each with those that it imports; a family's folder counts as one file.
fn imports() -> BTreeMap<PathBuf, BTreeSet<PathBuf>> {
    let part = |path: &Path| PathBuf::from(path.components().next().unwrap().as_os_str()).with_extension("");
    let mut imports_by_part: BTreeMap<PathBuf, BTreeSet<PathBuf>> = BTreeMap::new();
    for (path, imports) in file_imports() {
        let others = imports.iter().map(|path| part(path)).filter(|other| *other != part(&path));
        imports_by_part.entry(part(&path)).or_default().extend(others);
    }
    imports_by_part
}

fn file_imports() -> BTreeMap<PathBuf, BTreeSet<PathBuf>> {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = BTreeMap::new();
    let mut folders = vec![PathBuf::new()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(src.join(&folder)).unwrap() {
            let path = folder.join(entry.unwrap().file_name());
            if src.join(&path).is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = std::fs::read_to_string(src.join(&path)).unwrap();
                files.insert(path, text);
            }
        }
    }
    // `name` in `folder` as a file; a name that is not a file is an item of that folder's own file.
    let file = |folder: &Path, name: &str| {
        [folder.join(name).with_extension("rs"), folder.join(name).join("mod.rs"), folder.join("mod.rs")]
            .into_iter()
            .find(|path| files.contains_key(path))
    };
    let of_file = |(path, text): (&PathBuf, &String)| {
        let code = text.split("#[cfg(test)]").next().unwrap();
        let code: Vec<&str> = code.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
        let folder = path.parent().unwrap();
        let mut imports = BTreeSet::new();
        for (prefix, folder) in [("crate::", Path::new("")), ("super::", folder)] {
            for rest in code.iter().flat_map(|line| line.split(prefix).skip(1)) {
                let list = rest.strip_prefix('{').map_or(rest, |list| list.split('}').next().unwrap());
                let is_list = rest.starts_with('{');
                for item in list.split(',').take(if is_list { usize::MAX } else { 1 }) {
                    let name: String = item.trim().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
                    imports.extend(file(folder, &name).filter(|target| target != path));
                }
            }
        }
        (path.clone(), imports)
    };
    files.iter().filter(|(path, _)| *path != Path::new("lib.rs")).map(of_file).collect()
}

/// The imports from `path` on that lead back to a file of `trail`.
fn circle(
    files: &BTreeMap<PathBuf, BTreeSet<PathBuf>>,
    done: &mut BTreeSet<PathBuf>,
    trail: &mut Vec<PathBuf>,
    path: &PathBuf,
) -> Option<Vec<PathBuf>> {
    if let Some(at) = trail.iter().position(|before| before == path) {
        return Some(trail[at..].to_vec());
    }
    if done.contains(path) {
        return None;
    }
    trail.push(path.clone());
    let found = files.get(path).into_iter().flatten().find_map(|next| circle(files, done, trail, next));
    trail.pop();
    done.insert(path.clone());
    found
}

#[test]
fn no_files_import_each_other_in_a_circle() {
    let files = imports();
    assert!(files[Path::new("matmul")].contains(Path::new("layout")), "{files:?}");
    let (mut done, mut trail) = (BTreeSet::new(), Vec::new());
    for path in files.keys() {
        let found = circle(&files, &mut done, &mut trail, path);
        assert!(found.is_none(), "files that import each other: {found:?}");
    }
}

#[test]
fn nothing_imports_the_list_of_kernels() {
    for (path, imports) in imports() {
        assert!(!imports.contains(Path::new("spec")), "{} imports spec.rs", path.display());
    }
}
