//! The page of `unicorn-run inspect --html` in a headless Chromium without a network: what it shows, that its map zooms and
//! its tables sort, and that a screenshot shows something. `cargo xtask browser` installs Chromium and runs these tests.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;
use tests::compiled::{Compiled, options, with};
use tests::programs::program;
use tests::tiny_model::{Family, TinyModel};
use unicorn_artifact::ArtifactView;
use unicorn_compiler::Machine;
use unicorn_spirv::target;

/// The page of a small Gemma 3, planned for a phoenix-32gb.
struct Page {
    folder: TempDir,
    artifact: Vec<u8>,
}

impl Page {
    fn new() -> Page {
        let model = TinyModel { family: Family::Gemma3, layers: 3, sliding_window: Some(64), ..Default::default() };
        let machine = Machine::named("phoenix-32gb").unwrap().plan(&Default::default()).unwrap();
        let options = with(options(target::presets(), Vec::new()), |options| options.machine = machine);
        let artifact = Compiled::of(&model, &options).artifact();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.unicorn");
        std::fs::write(&path, &artifact).unwrap();
        let page = Page { folder, artifact };
        let mut inspect = program("unicorn-run");
        let output = inspect.arg("inspect").arg(path).arg("--html").arg(page.path("page.html")).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        page
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// What the document has become, after `script` ran behind the page's own.
    fn document(&self, fragment: &str, script: &str) -> String {
        let page = std::fs::read_to_string(self.path("page.html")).unwrap();
        let with_script = page.replace("</body>", &format!("<script>{script}</script></body>"));
        let path = self.path("with-script.html");
        std::fs::write(&path, with_script).unwrap();
        self.dump(&path, fragment)
    }

    fn dump(&self, path: &Path, fragment: &str) -> String {
        let output = self.chromium(&["--dump-dom"], path, fragment);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(!stderr.contains("Uncaught"), "a script failed: {stderr}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn chromium(&self, arguments: &[&str], path: &Path, fragment: &str) -> Output {
        let mut chromium = Command::new("chromium");
        chromium.args(["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--enable-logging=stderr"]);
        // Nothing may be fetched: every name is unknown.
        chromium.args(["--host-resolver-rules=MAP * ~NOTFOUND", "--virtual-time-budget=3000"]);
        chromium.arg("--window-size=1200,1600").args(arguments);
        chromium.arg(format!("--user-data-dir={}", self.path("profile").display()));
        chromium.arg(format!("file://{}{fragment}", path.display()));
        let output = chromium.output().unwrap_or_else(|error| panic!("chromium does not start ({error})"));
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        output
    }
}

/// The text of `<name>…</name>`, which a test's script has added to the document.
fn answer<'a>(document: &'a str, name: &str) -> &'a str {
    let from = document.split_once(&format!("<{name}>")).unwrap_or_else(|| panic!("no {name} in {document}")).1;
    from.split_once(&format!("</{name}>")).unwrap().0
}

/// A script that adds the value of `expression` as an element.
fn ask(name: &str, expression: &str) -> String {
    format!(
        "{{ const found = document.createElement(\"{name}\"); found.textContent = {expression}; \
         document.body.append(found); }}"
    )
}

#[test]
#[ignore = "needs Chromium: cargo xtask browser"]
fn every_weight_and_dispatch_is_shown() {
    let page = Page::new();
    let view = ArtifactView::parse(&page.artifact).unwrap();
    let rows = |place: &str| ask(place, &format!("document.querySelectorAll(\"#{place} tbody tr\").length"));
    let document = page.document("#vram", &["weights", "tensors", "dispatches"].map(rows).join("\n"));
    assert_eq!(answer(&document, "weights"), view.plan.weights.len().to_string());
    assert_eq!(answer(&document, "tensors"), view.meta.tensors.len().to_string());
    let decode = &view.kernels.targets[0].programs[0];
    assert_eq!(answer(&document, "dispatches"), decode.dispatches.len().to_string());
    assert!(document.contains("Planned for phoenix-32gb, with the KV cache of one sequence of 512 tokens"));
    assert!(document.contains("Estimate: at most ") && document.contains(" of vram at 89.6 GB/s"));
    assert!(document.contains("data-path=\"vram/layer 2\""), "the map has a cell for each layer");
}

#[test]
#[ignore = "needs Chromium: cargo xtask browser"]
fn the_map_zooms_and_the_address_remembers() {
    let page = Page::new();
    let widths = "[...document.querySelectorAll(\"#map button\")].map(cell => \
                  cell.dataset.path + \" \" + Math.round(parseFloat(cell.style.width))).join(\"|\")";
    let before = page.document("", &ask("cells", widths));
    assert!(answer(&before, "cells").starts_with(" 100|vram "), "{}", answer(&before, "cells"));
    // The layers of so small a model are seen only in a map of the tier that they lie in.
    let click = |path: &str| format!("document.querySelector('[data-path=\"{path}\"]').click();");
    let twice = format!("{} {}", click("vram"), click("vram/layer 1"));
    let clicked = page.document("", &format!("{twice} {} {}", ask("cells", widths), ask("address", "location.hash")));
    assert!(answer(&clicked, "cells").contains("|vram/layer 1 100|"), "{}", answer(&clicked, "cells"));
    assert_eq!(answer(&clicked, "address"), "#vram%2Flayer%201");
    let again = page.document("#vram%2Flayer%201", &ask("cells", widths));
    assert_eq!(answer(&again, "cells"), answer(&clicked, "cells"));
    let out = page.document("#vram%2Flayer%201", &format!("{} {}", click(""), ask("cells", widths)));
    assert_eq!(answer(&out, "cells"), answer(&before, "cells"));
    let wheel = "at(\"map\").dispatchEvent(new WheelEvent(\"wheel\", { deltaY: -1, clientX: 300, cancelable: true }));";
    let wheeled = page.document("", &format!("{wheel} {}", ask("share", "view.bytes / root.bytes")));
    assert_eq!(answer(&wheeled, "share"), "0.8");
}

#[test]
#[ignore = "needs Chromium: cargo xtask browser"]
fn headings_sort_their_tables() {
    let page = Page::new();
    let click = "const heading = [...document.querySelectorAll(\"#weights th button\")][2]; heading.click();";
    let bytes =
        "[...document.querySelectorAll(\"#weights tbody tr\")].map(row => row.children[2].textContent).join(\" \")";
    let numbers = |document: &str| -> Vec<u64> {
        answer(document, "bytes").split(' ').map(|number| number.parse().unwrap()).collect()
    };
    let falling = numbers(&page.document("", &format!("{click} {}", ask("bytes", bytes))));
    assert!(falling.len() > 10 && falling.is_sorted_by(|one, next| one >= next), "{falling:?}");
    let rising = numbers(&page.document("", &format!("{click} heading.click(); {}", ask("bytes", bytes))));
    assert!(rising.is_sorted(), "{rising:?}");
}

/// Another page counts the screenshot's colours: a blank one has one.
#[test]
#[ignore = "needs Chromium: cargo xtask browser"]
fn a_screenshot_shows_something() {
    let page = Page::new();
    let picture = page.path("page.png");
    let screenshot = format!("--screenshot={}", picture.display());
    page.chromium(&[&screenshot], &page.path("page.html"), "");
    let png = std::fs::read(&picture).unwrap();
    let count = "const counted = document.createElement('counted'); const image = new Image(); image.onload = () => { \
                 const canvas = document.createElement('canvas'); canvas.width = image.width; canvas.height = image.height; \
                 const context = canvas.getContext('2d'); context.drawImage(image, 0, 0); \
                 const words = new Uint32Array(context.getImageData(0, 0, image.width, image.height).data.buffer); \
                 counted.textContent = `${image.width} ${image.height} ${new Set(words).size}`; \
                 document.body.append(counted); };";
    let source = format!("image.src = 'data:image/png;base64,{}';", base64(&png));
    let counter = page.path("counter.html");
    std::fs::write(&counter, format!("<body><script>{count} {source}</script></body>")).unwrap();
    let document = page.dump(&counter, "");
    let counted: Vec<u32> = answer(&document, "counted").split(' ').map(|number| number.parse().unwrap()).collect();
    let [width, height, colours] = counted[..] else { panic!("{counted:?}") };
    assert_eq!((width, height), (1200, 1600));
    assert!(colours > 100, "a page with text and a map has more than {colours} colours");
}

/// RFC 4648, for a data address.
fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for three in bytes.chunks(3) {
        let word = three.iter().fold(0u32, |word, byte| word << 8 | u32::from(*byte)) << (8 * (3 - three.len()));
        for letter in 0..4 {
            let index = (word >> (18 - 6 * letter) & 63) as usize;
            text.push(if letter <= three.len() { char::from(LETTERS[index]) } else { '=' });
        }
    }
    text
}
