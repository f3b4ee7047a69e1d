//! Checks on the repository itself.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use unicorn_artifact::header::{VERSION_MAJOR, VERSION_MINOR};

/// Longest source file: a longer file has more than one subject.
const MAX_LINES: usize = 700;
/// Longest page of benchmarks: a table a device, and what must be read with it.
const MAX_BENCHMARK_LINES: usize = 150;

/// The files whose meaning `artifacts/FORMAT.md` describes.
const FORMAT_FILES: [&str; 15] = [
    "header.rs",
    "plan.rs",
    "kernels.rs",
    "device_class.rs",
    "modules.rs",
    "meta.rs",
    "tokenizer.rs",
    "license.rs",
    "step.rs",
    "int4.rs",
    "npu.rs",
    "fp4.rs",
    "codebook.rs",
    "image.rs",
    "npu/schedule.rs",
];

#[test]
fn no_source_names_a_place_of_one_machine() {
    // In pieces, so that this file is not its own finding.
    let places = ["/ho", "/ro", "/tm", "/wo"].iter().zip(["me/", "ot/", "p/", "rk/"]);
    let places: Vec<String> = places.map(|(start, end)| format!("{start}{end}")).collect();
    let mut found = Vec::new();
    for file in text_files() {
        let text = read(&file);
        for (index, line) in text.lines().enumerate() {
            // A place is named where a path begins: not in the middle of an address or of a relative path.
            let names_one = |place: &String| {
                line.match_indices(place.as_str()).any(|(at, _)| {
                    let before = line[..at].chars().next_back();
                    !before.is_some_and(|letter| letter.is_alphanumeric() || "._-~}".contains(letter))
                })
            };
            if places.iter().any(names_one) {
                found.push(format!("{}:{}: {}", shown(&file), index + 1, line.trim()));
            }
        }
    }
    assert!(found.is_empty(), "places of one machine:\n{}", found.join("\n"));
}

#[test]
fn every_dependency_has_its_reason() {
    let manifest = read(&root().join("Cargo.toml"));
    let (_, dependencies) = manifest.split_once("[workspace.dependencies]").expect("dependencies are listed once");
    let section = dependencies.lines().skip(1).take_while(|line| !line.starts_with('['));
    let external = section.filter(|line| line.contains('=') && !line.starts_with('#') && !line.contains("path ="));
    let without: Vec<&str> = external.filter(|line| !line.contains(" # ")).collect();
    assert!(
        without.is_empty(),
        "dependencies of Cargo.toml without a comment that says what they save us: {without:#?}"
    );
    for manifest in files("toml").into_iter().filter(|path| path.ends_with("Cargo.toml")) {
        if manifest == root().join("Cargo.toml") {
            continue;
        }
        if OWN_WORKSPACES.iter().any(|folder| manifest.starts_with(root().join(folder))) {
            let without = external_without_reason(&read(&manifest));
            assert!(without.is_empty(), "{}: dependencies without a reason: {without:#?}", shown(&manifest));
            continue;
        }
        for line in read(&manifest).lines() {
            assert!(
                !line.contains("version = \"") && !line.contains("git = \""),
                "{}: {line}: versions are pinned once, in the workspace's Cargo.toml",
                shown(&manifest)
            );
        }
    }
}

/// Packages that are workspaces of their own, with versions of their own.
const OWN_WORKSPACES: [&str; 2] = ["tests/fuzz", "deploy/dynamo"];

/// Lines of a manifest's dependencies that are not in the repository and have no comment.
fn external_without_reason(manifest: &str) -> Vec<String> {
    let mut is_dependency = false;
    let mut without = Vec::new();
    for line in manifest.lines() {
        if line.starts_with('[') {
            is_dependency = line.ends_with("dependencies]");
        }
        let is_external = is_dependency && line.contains(" = ") && !line.contains("path =");
        if is_external && !line.contains(" # ") {
            without.push(line.to_owned());
        }
    }
    without
}

#[test]
fn unsafe_is_in_few_places() {
    for file in files("rs") {
        let name = shown(&file);
        let is_room = ["artifacts/src/map.rs", "runtime/src/npu/ioctl.rs", "runtime/src/npu/xrt/library.rs"]
            .contains(&&name[..])
            || name.starts_with("runtime/src/vk/");
        // MLIR's engine takes untyped pointers: the test that runs bodies of NPU cores gives it some.
        if is_room || ["npu-gen/tests/bodies.rs", "tests/tests/tidy.rs"].contains(&&name[..]) {
            continue;
        }
        let text = read(&file);
        let found: Vec<&str> = text.lines().filter(|line| opens_unsafe(line)).collect();
        assert!(found.is_empty(), "{name}: unsafe outside its places: {found:#?}");
    }
}

#[test]
fn bincode_is_in_one_place() {
    let uses = |file: &PathBuf| read(file).contains("bincode::");
    let found: Vec<String> = files("rs").iter().filter(|file| uses(file)).map(|file| shown(file)).collect();
    assert_eq!(found, ["artifacts/src/codec.rs", "tests/tests/tidy.rs"]);
}

fn opens_unsafe(line: &str) -> bool {
    let code = line.split("//").next().unwrap_or_default();
    ["unsafe {", "unsafe fn", "unsafe impl", "unsafe extern"].iter().any(|words| code.contains(words))
}

#[test]
fn no_comment_leaves_work_for_later() {
    // In pieces, as above.
    let marks = ["to", "unimple", "db"].iter().zip(["do!(", "mented!(", "g!("]);
    let marks: Vec<String> = marks.map(|(start, end)| format!("{start}{end}")).collect();
    for file in files("rs") {
        let text = read(&file);
        for (index, line) in text.lines().enumerate() {
            let found = marks.iter().find(|mark| line.contains(mark.as_str()));
            assert!(found.is_none(), "{}:{}: {}", shown(&file), index + 1, line.trim());
        }
    }
}

/// Options and commands are a program's: it adds them to a library's errors (`explain.rs`).
#[test]
fn no_library_names_an_option_or_a_program() {
    for library in LIBRARIES {
        let source = root().join(library).join("src");
        for file in files("rs").iter().filter(|file| file.starts_with(&source) && !file.starts_with(source.join("bin")))
        {
            let text = read(file);
            let code = text.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
            for (index, line) in code.lines().enumerate() {
                assert!(!names_a_program(line), "{}:{}: {}", shown(file), index + 1, line.trim());
            }
        }
    }
}

/// Packages without a program, or whose program lies in `src/bin`.
const LIBRARIES: [&str; 11] = [
    "artifacts",
    "kernels",
    "shaders-gen",
    "npu-gen",
    "npu-simulator",
    "compiler",
    "registry",
    "runtime",
    "runtime/text",
    "runtime/structure",
    "runtime/serve",
];

fn names_a_program(line: &str) -> bool {
    let line = line.trim_start();
    let code = if line.starts_with("//") { "" } else { line.split(" // ").next().unwrap_or_default() };
    let mut options =
        code.match_indices("--").map(|(at, _)| (code[..at].chars().next_back(), code[at + 2..].chars().next()));
    let is_option = options.any(|(before, first)| {
        before.is_none_or(|letter| " \"'(=`".contains(letter))
            && first.is_some_and(|letter| letter.is_ascii_lowercase())
    });
    is_option
        || ["unicorn-run", "unicorn-compile"].iter().any(|program| {
            let after = code.match_indices(program).map(|(at, _)| code[at + program.len()..].chars().next());
            after.into_iter().flatten().any(|letter| !letter.is_alphanumeric())
        })
}

#[test]
fn names_of_programs_are_found() {
    for line in [
        "what += \"; it has no TLS: --plain-http\";",
        "smaller (--no-npu leaves it out)",
        "\"unicorn-run list shows it\"",
    ] {
        assert!(names_a_program(line), "{line}");
    }
    for line in
        ["/// As `--weights int4` does.", "let a = b; // with --weights", "\"unicorn-compiler\"", "a - -b", "\"a---b\""]
    {
        assert!(!names_a_program(line), "{line}");
    }
}

#[test]
fn no_file_is_too_long() {
    for file in files("rs") {
        let lines = read(&file).lines().count();
        assert!(
            lines <= MAX_LINES,
            "{} has {lines} lines, expected at most {MAX_LINES}: divide it by subject",
            shown(&file)
        );
    }
}

#[test]
fn every_file_begins_with_its_purpose() {
    for file in files("rs") {
        let text = read(&file);
        let name = shown(&file);
        assert!(text.trim().is_empty() || text.starts_with("//!"), "{name} does not begin with a //! comment");
    }
}

#[test]
fn format_md_describes_the_format_of_today() {
    let mut hasher = blake3::Hasher::new();
    for name in FORMAT_FILES {
        hasher.update(read(&root().join("artifacts/src").join(name)).as_bytes());
    }
    let hash = hasher.finalize().to_hex();
    let described = read(&root().join("artifacts/FORMAT.md"));
    assert!(
        described.contains(hash.as_str()),
        "{} of artifacts/src changed: bring artifacts/FORMAT.md up to date, then write this hash into its last line: {hash}",
        FORMAT_FILES.join(", ")
    );
    for number in [
        format!("\nVersion {VERSION_MAJOR}.{VERSION_MINOR}. "),
        format!("| u16 | major version, {VERSION_MAJOR} |"),
        format!("| u16 | minor version, {VERSION_MINOR} |"),
    ] {
        let number = number.trim_start();
        assert!(
            described.contains(number),
            "artifacts/FORMAT.md has another version than artifacts/src/header.rs: expected {number}"
        );
    }
}

#[test]
fn the_libraries_depend_on_what_is_listed() {
    for (package, golden, max_crates) in
        [("unicorn-runtime", "runtime-tree.txt", 35), ("unicorn-text", "text-tree.txt", 115)]
    {
        let golden = root().join("tests/golden").join(golden);
        let mut command = Command::new(env!("CARGO"));
        command.args(["tree", "-p", package, "-e", "normal", "--prefix", "none", "--offline"]);
        let output = command.current_dir(root()).output().expect("cargo starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let listed = String::from_utf8(output.stdout).expect("cargo prints text");
        // Two versions of a crate are two crates; `(*)` marks one that was listed before.
        let crates = listed.lines().map(|line| line.trim_end_matches(" (*)"));
        let n_crates = crates.filter(|line| !line.is_empty()).collect::<BTreeSet<&str>>().len();
        assert!(n_crates <= max_crates, "{package} brings {n_crates} crates, expected at most {max_crates}");
        let names: BTreeSet<&str> = listed.lines().filter_map(|line| line.split(' ').next()).collect();
        let found: String = names.into_iter().map(|name| format!("{name}\n")).collect();
        if std::env::var_os("BLESS").is_some() {
            std::fs::write(&golden, found).expect("the golden file can be written");
            continue;
        }
        assert_eq!(
            read(&golden),
            found,
            "crates of {package}; if each new one has its reason, BLESS=1 cargo test -p tests --test tidy"
        );
    }
}

/// A user of one library needs no dependency on those below it.
#[test]
fn libraries_re_export_those_that_they_are_built_on() {
    let libraries = files("toml").into_iter().filter_map(|manifest| {
        let root_file = manifest.with_file_name("src").join("lib.rs");
        let text = read(&manifest);
        let is_published = text.contains("name = \"unicorn-") && !text.contains("\npublish = false");
        (is_published && root_file.exists()).then_some((text, root_file))
    });
    let mut looked_at = 0;
    for (manifest, root_file) in libraries {
        let dependencies =
            manifest.split("\n[dependencies]\n").nth(1).and_then(|rest| rest.split("\n[").next()).unwrap_or_default();
        let always =
            dependencies.lines().filter(|line| line.starts_with("unicorn-") && !line.contains("optional = true"));
        let exported = read(&root_file);
        for name in always.filter_map(|line| line.split(['.', ' ']).next()) {
            looked_at += 1;
            let export = format!("pub use {};", name.replace('-', "_"));
            assert!(exported.contains(&export), "{}: expected {export}", shown(&root_file));
        }
    }
    assert!(looked_at >= 12, "{looked_at} dependencies among the packages: their manifests are read wrongly");
}

#[test]
fn the_readme_shows_the_two_commands() {
    let readme = read(&root().join("README.md"));
    for command in ["cargo xtask demo", "cargo xtask test"] {
        assert!(readme.contains(command), "README.md does not show {command}");
    }
}

#[test]
fn links_between_documents_lead_to_files() {
    for file in files("md") {
        let text = read(&file);
        let targets = text.split("](").skip(1).filter_map(|rest| rest.split([')', '#', ' ']).next());
        // Addresses are somebody else's, and a target without a dot or a slash is a formula.
        let links = targets.filter(|target| !target.contains(':') && target.contains(['.', '/']));
        for link in links {
            let folder = file.parent().expect("a file lies in a folder");
            assert!(folder.join(link).exists(), "{} links to {link}, which does not exist", shown(&file));
        }
    }
}

/// Files that people write; those of the models are data.
/// A path in backticks that begins with a folder of the repository.
#[test]
fn files_that_documents_name_exist() {
    let folders: BTreeSet<String> =
        ["artifacts", "compiler", "deploy", "docs", "kernels", "npu-gen", "packaging", "registry", "runtime"]
            .into_iter()
            .chain(["shaders-gen", "tests", "xtask"])
            .map(|folder| format!("{folder}/"))
            .collect();
    let is_path = |text: &str| {
        folders.iter().any(|folder| text.starts_with(folder.as_str()))
            && text.chars().all(|letter| letter.is_ascii_alphanumeric() || "/._-".contains(letter))
    };
    // A path is that of the repository, or that of the package whose file names it.
    let exists = |file: &Path, path: &str| {
        let path = path.trim_end_matches("/NAME/").trim_end_matches("/TARGET");
        file.ancestors().take_while(|above| above.starts_with(root())).any(|above| above.join(path).exists())
    };
    let mut missing = Vec::new();
    // What the past names may be gone.
    let is_of_today = |file: &PathBuf| !shown(file).starts_with("docs/lab/") && !shown(file).ends_with("CHANGELOG.md");
    for file in text_files().into_iter().filter(is_of_today) {
        let text = read(&file);
        let named = text.split('`').skip(1).step_by(2).filter(|text| is_path(text));
        let made = ["tests/fuzz/artifacts", "tests/fuzz/corpus"];
        let gone = named.filter(|path| !exists(&file, path) && !made.iter().any(|made| path.starts_with(made)));
        missing.extend(gone.map(|path| format!("{}: {path}", shown(&file))));
    }
    assert!(missing.is_empty(), "no such file:\n{}", missing.join("\n"));
}

#[test]
fn benchmarks_fit_their_page_and_experiments_name_their_commit() {
    let lines = read(&root().join("docs/benchmarks.md")).lines().count();
    assert!(lines <= MAX_BENCHMARK_LINES, "docs/benchmarks.md: {lines} lines; move the older ones to the lab book");
    let pages = files("md").into_iter().filter(|file| shown(file).starts_with("docs/lab/20"));
    for page in pages {
        let text = read(&page);
        let mut lines = text.lines();
        while let Some(title) = lines.find(|line| line.starts_with("### ")) {
            let facts = lines.next().unwrap_or_default();
            let words = facts.split([' ', ',']);
            let is_commit = |word: &str| word.len() >= 7 && word.chars().all(|letter| letter.is_ascii_hexdigit());
            assert!(words.into_iter().any(is_commit), "{}: {title}: no commit in {facts:?}", shown(&page));
        }
    }
}

/// `skip` of `tests/support/src/skip.rs` counts a check that does not run, and refuses most under UNICORN_STRICT.
#[test]
fn no_check_is_skipped_without_being_counted() {
    // In pieces, so that this file is not its own finding.
    let words = ["eprintln!(\"skip", "println!(\"skip"].map(|word| format!("{word}ped"));
    // `xtask` shows what was counted.
    let elsewhere = ["tests/support/src/skip.rs", "xtask/src/skipped.rs"];
    for file in files("rs").into_iter().filter(|file| !elsewhere.iter().any(|shows| file.ends_with(shows))) {
        let text = read(&file);
        assert!(
            !words.iter().any(|word| text.contains(word.as_str())),
            "{}: use tests/support/src/skip.rs",
            shown(&file)
        );
    }
}

fn text_files() -> Vec<PathBuf> {
    let written = ["rs", "toml", "md", "wgsl", "py", "yml", "yaml", "sh", "test"];
    written.into_iter().flat_map(files).filter(|path| !path.starts_with(root().join("tests/models"))).collect()
}

/// Every file with this extension, generated folders and hidden ones (but `.ci` and `.github`) aside, by name.
fn files(extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    collect(&root(), extension, &mut found);
    found.sort();
    found
}

fn collect(folder: &Path, extension: &str, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display())) {
        let path = entry.expect("an entry of the folder").path();
        let name = path.file_name().expect("a name").to_string_lossy();
        let hidden = name.starts_with('.') && !matches!(name.as_ref(), ".ci" | ".github" | ".cargo");
        if path.is_dir() && !hidden && !matches!(name.as_ref(), "target" | "node_modules" | "corpus") {
            collect(&path, extension, found);
        } else if path.extension().is_some_and(|found| found == extension) {
            found.push(path);
        }
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate lies in the workspace").to_owned()
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn shown(path: &Path) -> String {
    path.strip_prefix(root()).expect("inside the workspace").display().to_string()
}
