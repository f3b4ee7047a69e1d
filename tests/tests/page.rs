//! The page of `unicorn-run inspect --html` in a headless Chromium without a network: what it shows, that its map zooms and
//! its tables sort, and that a screenshot shows something. `cargo xtask browser` installs Chromium and runs these tests.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;
use tests::compiled::{Compiled, options, with};
use tests::programs::program;
use tests::tiny_model::{Family, TinyModel};
use unicorn_artifact::{Account, ArtifactView, MachinePlan, Order, Tier, fit};
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
        let options = with(options(target::defaults(), Vec::new()), |options| options.machine = machine);
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
        self.dump(&self.with_script(script), fragment)
    }

    /// The same in a window of another size.
    fn sized_document(&self, (width, height): (u32, u32), script: &str) -> String {
        let size = format!("--window-size={width},{height}");
        let output = self.chromium(&["--dump-dom", &size], &self.with_script(script), "");
        String::from_utf8(output.stdout).unwrap()
    }

    fn with_script(&self, script: &str) -> PathBuf {
        let page = std::fs::read_to_string(self.path("page.html")).unwrap();
        let with_script = page.replace("</body>", &format!("<script>{script}</script></body>"));
        let path = self.path("with-script.html");
        std::fs::write(&path, with_script).unwrap();
        path
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
        chromium.arg("--window-size=1200,1600").args(arguments); // The last size counts.
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
    let count = |name: &str, selector: &str| ask(name, &format!("document.querySelectorAll(\"{selector}\").length"));
    let drawn = [
        count("blocks", "#timeline rect"),
        count("barriers", "#timeline line.barrier"),
        count("cells", "#errors td[title]"),
        count("dots", "#roofline circle"),
    ];
    let script = [rows("weights"), rows("tensors"), rows("dispatches")].into_iter().chain(drawn).collect::<String>();
    let document = page.document("#vram", &script);
    assert_eq!(answer(&document, "weights"), view.plan.weights.len().to_string());
    assert_eq!(answer(&document, "tensors"), view.meta.tensors.len().to_string());
    let decode = &view.kernels.targets[0].programs[0];
    for place in ["dispatches", "blocks"] {
        assert_eq!(answer(&document, place), decode.dispatches.len().to_string());
    }
    let barriers = decode.dispatches.iter().filter(|dispatch| dispatch.order == Order::Barrier).count();
    assert_eq!(answer(&document, "barriers"), barriers.to_string());
    let lossy = view.meta.tensors.iter().filter(|tensor| tensor.relative_error > 0.0).count();
    assert_eq!(answer(&document, "cells"), lossy.to_string());
    // At least the matrices of decode and of each prefill.
    assert!(answer(&document, "dots").parse::<usize>().unwrap() >= 16, "{}", answer(&document, "dots"));
    assert!(document.contains("as planned for <span id=\"planned\">phoenix-32gb</span>"));
    assert!(document.contains("Estimate, not a measurement: at most ") && document.contains(" at 89.6 GB/s"));
    assert!(document.contains("data-path=\"vram/layer 2\""), "the map has a cell for each layer");
}

/// The page computes again what Rust computes: for every machine, and for contexts up to the model's.
#[test]
#[ignore = "needs Chromium: cargo xtask browser"]
fn the_page_fits_machines_as_the_planner_does() {
    let page = Page::new();
    let view = ArtifactView::parse(&page.artifact).unwrap();
    let (plan, most) = (&view.plan, view.meta.model.max_positions);
    // Machines on which it fits, on which it fits in part, and on which it does not: presets are all too large for so small a model.
    let bytes = Account::of(plan).bytes();
    let tiers = |vram: u64, gtt: u64| {
        let mut machine = Machine::named("phoenix-16gb").unwrap();
        for tier in &mut machine.tiers {
            (tier.kept_free_bytes, tier.size_bytes) = match tier.tier {
                Tier::Vram => (0, Some(vram)),
                Tier::Gtt => (0, Some(gtt)),
                _ => (0, tier.size_bytes),
            };
        }
        machine
    };
    let small = [(bytes / 2, bytes), (bytes / 3, bytes * 2 / 3), (bytes / 9, bytes / 9), (1, bytes)]
        .map(|(vram, gtt)| tiers(vram, gtt));
    let presets = Machine::presets().map(|name| Machine::named(name).unwrap());
    let machines: Vec<Machine> = presets.chain(small).collect();
    let planned: Vec<MachinePlan> = machines.iter().map(|one| one.plan(&Default::default()).unwrap()).collect();
    let contexts = [1, 31, 512, most];
    let one = "({ missing: fit.missing, tiers: fit.tiers.map(one => [one.tier.tier, one.bytes, one.read]), rate: fit.rate, longest: longestContext(machine) })";
    let all = format!(
        "JSON.stringify({}.flatMap(machine => {contexts:?}.map(context => {{ const fit = fitOn(machine, context); return {one}; }})))",
        serde_json::to_string(&planned).unwrap()
    );
    let document = page.document("", &ask("fits", &all));
    let found: Vec<serde_json::Value> = serde_json::from_str(answer(&document, "fits")).unwrap();
    let mut refused = 0;
    let cases = planned.iter().flat_map(|machine| contexts.map(|context| (machine, context)));
    for ((machine, context), found) in cases.zip(&found) {
        let longest = fit::longest_context(most + 1, |tokens| fit::on(plan, machine, tokens).is_ok());
        let what = format!("{} with {context} tokens: {found}", machine.name);
        assert_eq!(found["longest"], longest, "{what}");
        match fit::on(plan, machine, context) {
            Err(missing) => {
                refused += 1;
                assert_eq!(found["missing"], missing, "{what}");
            }
            Ok(fitted) => {
                let account = Account::of(&fitted);
                let of_gpu = account.tiers.iter().filter(|tier| machine.gpu_tiers().any(|one| one.tier == tier.tier));
                let tiers: Vec<_> = of_gpu
                    .map(|tier| serde_json::json!([tier.tier, tier.bytes(), tier.bytes_read_per_token]))
                    .collect();
                assert_eq!((&found["missing"], &found["tiers"]), (&serde_json::Value::Null, &tiers.into()), "{what}");
                match account.estimated_tokens_per_s() {
                    Some(rate) => {
                        assert!((found["rate"].as_f64().unwrap() / rate - 1.0).abs() < 1e-9, "{what}, {rate}")
                    }
                    None => assert!(found["rate"].is_null(), "{what}"),
                }
            }
        }
    }
    assert!(found.len() == machines.len() * contexts.len() && refused > 3, "{refused} of {} refused", found.len());
}

#[test]
#[ignore = "needs Chromium: cargo xtask browser"]
fn choices_change_what_is_shown() {
    let page = Page::new();
    let choose = |id: &str, value: &str| {
        format!("at(\"{id}\").value = \"{value}\"; at(\"{id}\").dispatchEvent(new Event(\"input\"));")
    };
    let verdict = |choices: &str| {
        let document = page.document("", &format!("{choices} {}", ask("verdict-text", "at(\"verdict\").textContent")));
        answer(&document, "verdict-text").to_owned()
    };
    assert!(verdict("").starts_with("Yes: "), "{}", verdict(""));
    let own = choose("machine", "my own") + &choose("own-vram", "0") + &choose("own-gtt", "0.0001");
    assert!(verdict(&own).starts_with("No: "), "{}", verdict(&own));
    // Weights, KV cache, activations and buffers have colours of their own.
    let colours = "[\"attention\", \"feed-forward\", \"experts\", \"kv\", \"activations\", \"buffers\"].map(kind => \
                   getComputedStyle(document.documentElement).getPropertyValue(\"--\" + kind)).join(\" \")";
    let filter = "const field = document.querySelector(\"#weights input\"); field.value = \"down_proj\"; \
                  field.dispatchEvent(new Event(\"input\"));";
    let rows =
        "[...document.querySelectorAll(\"#weights tbody tr\")].map(row => row.children[1].textContent).join(\" \")";
    let document = page.document("", &format!("{} {filter} {}", ask("colours", colours), ask("names", rows)));
    let colours: BTreeSet<&str> = answer(&document, "colours").split(' ').filter(|colour| !colour.is_empty()).collect();
    assert_eq!(colours.len(), 6, "{colours:?}");
    let names: Vec<&str> = answer(&document, "names").split(' ').collect();
    assert!(names.len() == 3 && names.iter().all(|name| name.contains("down_proj")), "{names:?}");
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
    let click = "const heading = [...document.querySelectorAll(\"#weights th button\")][3]; heading.click();";
    let bytes =
        "[...document.querySelectorAll(\"#weights tbody tr\")].map(row => row.children[3].dataset.value).join(\" \")";
    let numbers = |document: &str| -> Vec<u64> {
        answer(document, "bytes").split(' ').map(|number| number.parse().unwrap()).collect()
    };
    let falling = numbers(&page.document("", &format!("{click} {}", ask("bytes", bytes))));
    assert!(falling.len() > 10 && falling.is_sorted_by(|one, next| one >= next), "{falling:?}");
    let rising = numbers(&page.document("", &format!("{click} heading.click(); {}", ask("bytes", bytes))));
    assert!(rising.is_sorted(), "{rising:?}");
}

#[test]
#[ignore = "needs Chromium: cargo xtask browser"]
fn screenshots_show_something() {
    let page = Page::new();
    for (name, size, arguments) in [
        ("light", (1200, 1600), &[][..]),
        ("dark", (1200, 1600), &["--force-dark-mode", "--blink-settings=preferredColorScheme=0"]),
        ("narrow", (500, 1600), &[]),
    ] {
        let found = page.screenshot(name, size, arguments);
        assert_eq!((found.width, found.height), size, "{name}");
        assert!(found.colours > 100, "{name}: a page with text and a map has more than {} colours", found.colours);
        assert_eq!(found.first_pixel == 0xffff_ffff, name != "dark", "{name}: {:x}", found.first_pixel);
    }
    let wide = ask("wide", "document.documentElement.scrollWidth - window.innerWidth");
    let narrow = page.sized_document((500, 900), &wide);
    assert!(answer(&narrow, "wide").parse::<i32>().unwrap() <= 0, "nothing is wider than a narrow window");
}

/// What another page counts in a screenshot: a blank one has one colour.
struct Screenshot {
    width: u32,
    height: u32,
    colours: u32,
    first_pixel: u32,
}

impl Page {
    fn screenshot(&self, name: &str, (width, height): (u32, u32), arguments: &[&str]) -> Screenshot {
        let picture = self.path(&format!("{name}.png"));
        let screenshot = format!("--screenshot={}", picture.display());
        let size = format!("--window-size={width},{height}");
        let arguments: Vec<&str> = [&["--hide-scrollbars", &screenshot, &size], arguments].concat();
        self.chromium(&arguments, &self.path("page.html"), "");
        let png = std::fs::read(&picture).unwrap();
        let count = "const counted = document.createElement('counted'); const image = new Image(); image.onload = () => { \
                     const canvas = document.createElement('canvas'); canvas.width = image.width; canvas.height = image.height; \
                     const context = canvas.getContext('2d'); context.drawImage(image, 0, 0); \
                     const words = new Uint32Array(context.getImageData(0, 0, image.width, image.height).data.buffer); \
                     counted.textContent = `${image.width} ${image.height} ${new Set(words).size} ${words[0]}`; \
                     document.body.append(counted); };";
        let source = format!("image.src = 'data:image/png;base64,{}';", base64(&png));
        let counter = self.path("counter.html");
        std::fs::write(&counter, format!("<body><script>{count} {source}</script></body>")).unwrap();
        let document = self.dump(&counter, "");
        let counted = answer(&document, "counted").split(' ').map(|number| number.parse().unwrap());
        let [width, height, colours, first_pixel] = counted.collect::<Vec<u32>>()[..] else { panic!("four numbers") };
        Screenshot { width, height, colours, first_pixel }
    }
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
