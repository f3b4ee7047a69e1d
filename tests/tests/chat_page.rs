//! The chat page of `unicorn-run serve`, used in a headless Chromium by keys and pointer, with a real server of a small model.
//! `cargo xtask browser` installs Chromium and runs these tests; with `UNICORN_SCREENSHOTS=FOLDER`, the pictures are kept.

use std::sync::LazyLock;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tests::browser::Browser;
use tests::compiled::{Compiled, options};
use tests::http::{exchange, get};
use tests::models::models;
use tests::programs::program;
use tests::server::Server;

static MODEL: LazyLock<Compiled> = LazyLock::new(|| {
    let targets = ["llvmpipe", "generic"].into_iter().filter_map(unicorn_spirv::target::by_name).collect();
    Compiled::of_folder(&models().join("gemma3-2m-draft"), &options(targets, vec![]))
});

const QUESTION: &str = "Who lives on the island?";
const SIZE: (u32, u32) = (1280, 900);

fn start(arguments: &[&str]) -> Server {
    start_with_context("512", arguments)
}

fn start_with_context(tokens: &str, arguments: &[&str]) -> Server {
    let mut command = program("unicorn-run");
    command.env("UNICORN_DEVICE", std::env::var("UNICORN_DEVICE").unwrap_or("llvmpipe".into()));
    Server::start(command, &MODEL.artifact_path(), &[&["--temp", "0", "--ctx", tokens], arguments].concat())
}

/// The page, with the model's name at its top.
fn open(server: &Server) -> Browser {
    let mut browser = Browser::open(SIZE.0, SIZE.1);
    browser.visit(&format!("http://{}/", server.address));
    browser
}

fn ask(browser: &mut Browser, text: &str) {
    browser.wait_for("document.activeElement.id === 'prompt'");
    browser.write(text);
    browser.press("Enter", "Enter", false);
}

fn wait_for_the_answer(browser: &mut Browser) {
    browser.wait_for("document.getElementById('stop').hidden && document.querySelector('.assistant footer')");
}

/// Waits until the model's name is shown, and limits answers, as a person does in the settings.
fn limit_answers(browser: &mut Browser, tokens: u32) {
    browser.wait_for("document.getElementById('model').textContent === 'gemma3-2m-draft'");
    browser.click("#toggle-panel");
    browser.click("[name=maxTokens]");
    browser.write(&tokens.to_string());
    browser.click("#toggle-panel");
    browser.click("#prompt");
}

/// Role and text of each message.
fn messages(browser: &mut Browser) -> Value {
    browser.eval("[...document.querySelectorAll('.message')].map(one => [one.classList[1], one.querySelector(':scope > .text').innerText])")
}

#[test]
#[ignore = "needs Chromium: cargo xtask browser"]
fn a_conversation_is_held_and_kept() {
    let server = start(&["--parallel", "1"]);
    let answer = |question: &str| {
        let request = json!({"messages": [{"role": "user", "content": question}], "max_tokens": 16});
        let answer = server.whole("/v1/chat/completions", &request);
        answer["choices"][0]["message"]["content"].as_str().unwrap().trim().to_owned()
    };
    let mut browser = open(&server);
    limit_answers(&mut browser, 16);
    // How long the answer's text is each time that it changes.
    browser.eval(
        "window.lengths = new Set(); new MutationObserver(() => { const text = document.querySelector('.assistant > .text'); \
         if (text) lengths.add(text.innerText.length); }).observe(document.getElementById('messages'), \
         { childList: true, subtree: true, characterData: true })",
    );
    ask(&mut browser, QUESTION);
    wait_for_the_answer(&mut browser);
    let first = answer(QUESTION);
    assert_eq!(messages(&mut browser), json!([["user", QUESTION], ["assistant", first]]));
    let lengths = browser.eval("lengths.size").as_u64().unwrap();
    assert!(lengths > 5, "the answer of 16 tokens came in {lengths} parts");
    let about = browser.eval("document.querySelector('.stats').textContent");
    assert!(about.as_str().unwrap().starts_with("16 tokens at "), "{about}");
    assert_eq!(
        browser.eval("document.querySelector('.note').textContent").as_str().unwrap(),
        "The answer was cut: the limit of tokens, or of the context."
    );

    // Again: the same words, since the temperature is 0. Edited: another question's.
    browser.press("r", "KeyR", true);
    wait_for_the_answer(&mut browser);
    assert_eq!(messages(&mut browser), json!([["user", QUESTION], ["assistant", first]]));
    browser.click("#prompt");
    browser.press("ArrowUp", "ArrowUp", false);
    browser.wait_for("document.activeElement.value === 'Who lives on the island?'");
    browser.eval("document.activeElement.select()");
    browser.write("What is the dog's name?");
    browser.press("Enter", "Enter", false);
    wait_for_the_answer(&mut browser);
    let second = answer("What is the dog's name?");
    assert_eq!(messages(&mut browser), json!([["user", "What is the dog's name?"], ["assistant", second]]));

    // Kept over a reload, beside another one, and deleted when that is confirmed.
    browser.press("n", "KeyN", true);
    browser.wait_for("document.querySelectorAll('.message').length === 0");
    ask(&mut browser, "<b>Hello</b>");
    wait_for_the_answer(&mut browser);
    browser.eval("location.reload()");
    browser.wait_for("document.querySelectorAll('#chats li').length === 2 && !document.querySelector('.message')");
    let titles =
        browser.eval("[...document.querySelectorAll('#chats button:first-child')].map(one => one.textContent)");
    assert_eq!(titles, json!(["<b>Hello</b>", "What is the dog's name?"]));
    browser.click("#chats li:last-child button");
    browser.wait_for("document.querySelector('.message')");
    assert_eq!(messages(&mut browser), json!([["user", "What is the dog's name?"], ["assistant", second]]));
    browser.click("#chats li:last-child button:last-child");
    browser.wait_for("document.querySelectorAll('#chats li').length === 1 && Object.keys(localStorage).filter(key => key.startsWith('unicorn.chat')).length === 1");
    assert_eq!(browser.troubles(), Vec::<String>::new());
}

#[test]
#[ignore = "needs Chromium: cargo xtask browser"]
fn an_answer_is_stopped_and_its_work_too() {
    // Its answer does not end by itself before a browser on a busy machine stops it.
    let server = start_with_context("4096", &["--parallel", "1", "--metrics"]);
    let mut browser = open(&server);
    browser.wait_for("document.getElementById('model').textContent === 'gemma3-2m-draft'");
    ask(&mut browser, "Tell a long story.");
    browser.wait_for("document.querySelector('.assistant > .text')?.innerText.length > 20");
    browser.press("Escape", "Escape", false);
    wait_for_the_answer(&mut browser);
    assert_eq!(browser.eval("document.querySelector('.note').textContent"), "Stopped.");
    assert_eq!(browser.eval("document.getElementById('status').textContent"), "Stopped");
    // The server has noticed: nothing runs, and less was generated than a whole context.
    browser.wait_for("fetch('props').then(one => one.json()).then(one => one.unicorn.running === 0)");
    let metrics = get(&server.address, "/metrics").1;
    let usage = metrics.lines().find_map(|line| line.strip_prefix("vllm:kv_cache_usage_perc ")).unwrap();
    assert_eq!(usage.parse::<f64>().unwrap(), 0.0);
    // What was written until then is part of the conversation.
    let kept = messages(&mut browser);
    assert!(kept[1][1].as_str().unwrap().len() > 20, "{kept}");
    assert_eq!(browser.troubles(), Vec::<String>::new());
}

#[test]
#[ignore = "needs Chromium: cargo xtask browser"]
fn calls_and_reasoning_are_shown() {
    let server = start(&["--parallel", "1"]);
    let mut browser = open(&server);
    limit_answers(&mut browser, 8);
    browser.click("#toggle-panel");
    browser.click("[name=tools]");
    browser.write("[{]");
    browser.wait_for("!document.getElementById('tools-error').hidden");
    browser.eval("document.querySelector('[name=tools]').select()");
    browser.write("[{\"name\": \"look\", \"parameters\": {\"type\": \"object\"}}]");
    browser.wait_for("document.getElementById('tools-error').hidden");
    // A model of stories calls a tool only if it must; this one request requires a call.
    browser.eval(
        "{ const own = window.fetch; window.fetch = (path, options) => { if (options.body) { window.fetch = own; window.sent = []; \
         options.body = JSON.stringify({ ...JSON.parse(options.body), tool_choice: { type: 'function', function: { name: 'look' } } }); } return own(path, options); }; 0 }",
    );
    browser.click("#prompt");
    ask(&mut browser, QUESTION);
    wait_for_the_answer(&mut browser);
    assert_eq!(browser.eval("document.querySelector('.call figcaption').textContent"), "Call of look");
    assert!(!browser.eval("document.querySelector('.call pre').textContent").as_str().unwrap().is_empty());
    // The result goes back as a tool's message, which the model answers.
    browser.eval("{ const own = window.fetch; window.fetch = (path, options) => { if (options.body) sent.push(JSON.parse(options.body)); return own(path, options); }; 0 }");
    browser.click(".results textarea");
    browser.write("A goat.");
    browser.click(".results button");
    browser.wait_for("document.getElementById('stop').hidden && document.querySelectorAll('.message').length === 4");
    let sent = browser.eval("sent[0].messages");
    assert_eq!(
        (&sent[1]["tool_calls"][0]["function"]["name"], &sent[2]["content"]),
        (&json!("look"), &json!("A goat.")),
        "{sent}"
    );
    assert_eq!(sent[1]["tool_calls"][0]["id"], sent[2]["tool_call_id"]);

    // Reasoning, which this model has not: a stream as the server writes it for others.
    let chunk = |delta: Value| {
        format!("data: {}\n\n", json!({"choices": [{"index": 0, "delta": delta, "finish_reason": null}]}))
    };
    let stream = [
        chunk(json!({"role": "assistant", "content": null})),
        chunk(json!({"reasoning_content": "Goats **eat**"})),
        chunk(json!({"reasoning_content": " roses."})),
        chunk(json!({"content": "A goat ate it."})),
        "data: [DONE]\n\n".into(),
    ];
    let stream = Value::from(stream.concat());
    browser.eval(&format!("{{ const own = window.fetch; window.fetch = (path, options) => options.body ? Promise.resolve(new Response({stream})) : own(path, options); 0 }}"));
    browser.click("#prompt");
    ask(&mut browser, "Why?");
    wait_for_the_answer(&mut browser);
    let reasoning = "document.querySelector('.message:last-child .reasoning')";
    assert_eq!(
        browser.eval(&format!("[{reasoning}.open, {reasoning}.hidden, {reasoning}.firstChild.textContent]")),
        json!([false, false, "Reasoning (3 words)"])
    );
    browser.click(".message:last-child summary");
    assert_eq!(browser.eval(&format!("{reasoning}.querySelector('.text').innerText")), "Goats eat roses.");
    assert_eq!(messages(&mut browser)[5], json!(["assistant", "A goat ate it."]));
    assert_eq!(browser.troubles(), Vec::<String>::new());
}

#[test]
#[ignore = "needs Chromium: cargo xtask browser"]
fn a_server_with_a_key_asks_for_it() {
    let server = start(&["--parallel", "1", "--api-key", "sesame"]);
    let mut browser = open(&server);
    browser.wait_for("document.getElementById('ask-key').open");
    browser.write("sesamo");
    browser.press("Enter", "Enter", false);
    browser.wait_for("document.getElementById('ask-key').open");
    browser.eval("document.getElementById('key').select()");
    browser.write("sesame");
    browser.press("Enter", "Enter", false);
    limit_answers(&mut browser, 4);
    ask(&mut browser, QUESTION);
    wait_for_the_answer(&mut browser);
    assert_eq!(messages(&mut browser).as_array().unwrap().len(), 2);
    assert_eq!(browser.eval("Object.values(localStorage).join().includes('sesame')"), false);
    // The page and its files are open, the APIs are not; other sites cannot show the page.
    let head = |path: &str| exchange(&server.address, &format!("GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n")).0;
    for path in ["/", "/page/main.js", "/page/style.css"] {
        let head = head(path);
        assert!(head.starts_with("HTTP/1.0 200 ") && head.contains("default-src 'none'; script-src 'self'"), "{head}");
        assert!(head.contains("frame-ancestors 'none'; require-trusted-types-for 'script'"), "{head}");
    }
    assert!(head("/props").starts_with("HTTP/1.0 401 ") && head("/page/nothing.js").starts_with("HTTP/1.0 401 "));
    let without = start(&["--parallel", "1", "--no-webui"]);
    for path in ["/", "/page/main.js"] {
        assert!(get(&without.address, path).0.starts_with("HTTP/1.0 404 "), "{path}");
    }
}

/// Text and what it is shown as, the tags without attributes.
const MARKDOWN: [(&str, &str); 22] = [
    ("a **b** *c* `d` ~~e~~", "<p>a <strong>b</strong> <em>c</em> <code>d</code> <del>e</del></p>"),
    ("***a** b*", "<p><em><strong>a</strong> b</em></p>"),
    ("2 * 3 * 4, snake_case_name, a\\*b", "<p>2 * 3 * 4, snake_case_name, a*b</p>"),
    ("`` a`b `` and `c", "<p><code>a`b</code> and `c</p>"),
    ("# Title #\ntext\nmore", "<h3>Title</h3><p>text<br>more</p>"),
    ("- a\n  - b\n- c\n\nend", "<ul><li>a<ul><li>b</li></ul></li><li>c</li></ul><p>end</p>"),
    ("3. a\n4. b\n\n   c", "<ol><li>a</li><li>b<p>c</p></li></ol>"),
    ("- [x] done\n- [ ] open", "<ul><li><input> done</li><li><input> open</li></ul>"),
    ("> a\n> > b", "<blockquote><p>a</p><blockquote><p>b</p></blockquote></blockquote>"),
    (
        "| a | b |\n|---|--:|\n| `x` | 1 |",
        "<div><table><thead><tr><th>a</th><th>b</th></tr></thead><tbody><tr><td><code>x</code></td><td>1</td></tr></tbody></table></div>",
    ),
    ("---", "<hr>"),
    (
        "```rust\nlet a = \"<b>\";\n```\nend",
        "<figure><figcaption><span>rust</span><button>Copy</button></figcaption><pre><code>let a = \"&lt;b&gt;\";</code></pre></figure><p>end</p>",
    ),
    (
        "```\nnot closed",
        "<figure><figcaption><span>text</span><button>Copy</button></figcaption><pre><code>not closed</code></pre></figure>",
    ),
    ("[a](https://a.example/b_(c))", "<p><a>a</a></p>"),
    ("see https://a.example/x.", "<p>see <a>https://a.example/x</a>.</p>"),
    ("<https://a.example>", "<p><a>https://a.example</a></p>"),
    // What would run, or fetch, in a page that trusted the text.
    ("<img src=x onerror=alert(1)>", "<p>&lt;img src=x onerror=alert(1)&gt;</p>"),
    ("<script>alert(1)</script>", "<p>&lt;script&gt;alert(1)&lt;/script&gt;</p>"),
    ("[a](javascript:alert(1))", "<p>[a](javascript:alert(1))</p>"),
    ("[a](JaVaScRiPt:alert(1)) [b](data:text/html,x)", "<p>[a](JaVaScRiPt:alert(1)) [b](data:text/html,x)</p>"),
    ("![a](https://a.example/pixel.png)", "<p><a>a</a></p>"),
    ("[a](/v1/models)", "<p>[a](/v1/models)</p>"),
];

#[test]
#[ignore = "needs Chromium: cargo xtask browser"]
fn text_of_the_model_is_no_html() {
    let server = start(&["--parallel", "1"]);
    let mut browser = open(&server);
    browser.eval("import('/page/markdown.js').then(module => { window.markdown = module; })");
    for (text, expected) in MARKDOWN {
        let shown = browser.eval(&format!("(() => {{ const box = document.createElement('div'); markdown.render(box, {}); return box.innerHTML; }})()", Value::from(text)));
        let shown = shown.as_str().unwrap();
        // Tags without attributes.
        let tags = shown.split('<').enumerate().map(|(index, piece)| match (index, piece.split_once('>')) {
            (0, _) | (_, None) => piece.to_owned(),
            (_, Some((tag, rest))) => format!("<{}>{rest}", tag.split(' ').next().unwrap()),
        });
        assert_eq!(tags.collect::<String>(), expected, "{text}");
    }
    // A text that grows is the same as one that comes whole, and keeps the elements of finished blocks.
    let all = Value::from(MARKDOWN.map(|(text, _)| text).join("\n\n"));
    let grown = browser.eval(&format!(
        "(() => {{ const all = {all}, [whole, grown] = [1, 2].map(() => document.createElement('div')); markdown.render(whole, all); let first; \
         for (let end = 1; end <= all.length; end += 3) {{ markdown.render(grown, all.slice(0, end)); if (end > 40) first ??= grown.firstChild; }} \
         markdown.render(grown, all); return [whole.innerHTML === grown.innerHTML, first === grown.firstChild]; }})()"
    ));
    assert_eq!(grown, json!([true, true]));
    // Texts that a careless parser takes quadratic time or deep recursion for.
    let hostile = "['*', '**', '_a', '[', '](', '[a](', '![', '`', '` ``', '~~', '> ', '- ', '  - ', '|', '|-', '\\\\', '<', '#', '*a **b ', '1. ', 'http://', '\\n>', '\\n* ']";
    let slowest = browser.eval(&format!(
        "Math.max(...{hostile}.map(piece => {{ const text = piece.repeat(100000 / piece.length), begun = performance.now(); \
         markdown.render(document.createElement('div'), text); return performance.now() - begun; }}))"
    ));
    assert!(slowest.as_f64().unwrap() < 20_000.0, "{slowest} ms for 100,000 characters");
    // The policy forbids what the page does not do.
    let refused = browser.eval(
        "(() => { try { document.body.innerHTML = '<b>'; return 'set'; } catch (error) { return error.name; } })()",
    );
    assert_eq!(refused, "TypeError");
    let troubles = browser.troubles();
    assert!(troubles.iter().all(|trouble| trouble.contains("TrustedHTML")), "{troubles:?}");
}

/// A conversation with everything that the page draws.
fn example() -> Value {
    let answer = "A short list:\n\n1. **Goats** eat roses.\n2. Dogs *guard* the garden.\n\n```rust\nfn eats(animal: &str) -> bool {\n    animal == \"goat\"\n}\n```\n\n| animal | eats |\n|---|---|\n| goat | roses |\n| dog | bones |\n\nSee [the garden](https://garden.example/).";
    let stats =
        json!({"prompt_n": 12, "cache_n": 20, "prompt_ms": 41.0, "predicted_n": 96, "predicted_per_second": 31.5});
    let call = json!({"id": "call_1", "name": "weather", "arguments": "{\"city\": \"Lisbon\"}"});
    json!({"id": "1-2-3", "title": "Who ate the roses?", "changed": 1, "messages": [
        {"role": "user", "content": "How is the weather in Lisbon?"},
        {"role": "assistant", "content": "", "reasoning": "", "calls": [call]},
        {"role": "tool", "callId": "call_1", "name": "weather", "content": "{\"sky\": \"clear\", \"celsius\": 21}"},
        {"role": "assistant", "content": "Clear, 21 °C.", "reasoning": "", "calls": []},
        {"role": "user", "content": "Who ate the roses?"},
        {"role": "assistant", "content": answer, "reasoning": "The roses are gone. A goat was seen.", "calls": [], "stats": stats},
    ]})
}

#[test]
#[ignore = "needs Chromium: cargo xtask browser"]
fn screenshots_show_something() {
    let server = start(&["--parallel", "2"]);
    let mut browser = open(&server);
    let kept = Value::from(example().to_string());
    browser.eval(&format!("localStorage.setItem('unicorn.chat.1-2-3', {kept})"));
    let page = format!("http://{}/", server.address);
    for (name, (width, height), scheme) in
        [("chat", SIZE, "light"), ("chat-dark", SIZE, "dark"), ("chat-narrow", (420, 900), "light")]
    {
        browser.resize(width, height);
        browser.prefer(scheme);
        browser.visit(&page);
        browser.wait_for("document.getElementById('model').textContent === 'gemma3-2m-draft'");
        let is_narrow = width < 500;
        if is_narrow {
            browser.wait_for("document.body.classList.contains('without-side')");
            browser.click("#toggle-side");
        } else {
            browser.click("#toggle-panel");
            browser.wait_for("document.getElementById('memory').textContent.includes('KV cache')");
        }
        browser.click("#chats button");
        browser.wait_for("document.querySelectorAll('.message').length === 6");
        let too_wide = browser.eval("document.documentElement.scrollWidth - window.innerWidth");
        assert!(too_wide.as_i64().unwrap() <= 0, "{name} is {too_wide} pixels too wide");
        let nameless: Vec<_> = browser
            .accessible()
            .into_iter()
            .filter(|(role, name)| {
                [
                    "button",
                    "textbox",
                    "combobox",
                    "spinbutton",
                    "navigation",
                    "complementary",
                    "meter",
                    "log",
                    "article",
                    "link",
                ]
                .contains(&&role[..])
                    && name.is_empty()
            })
            .collect();
        assert!(nameless.is_empty(), "{name}: no name for {nameless:?}");
        let picture = browser.screenshot();
        if let Some(folder) = std::env::var_os("UNICORN_SCREENSHOTS") {
            std::fs::write(std::path::Path::new(&folder).join(format!("{name}.png")), &picture).unwrap();
        }
        let (colours, first) = colours(&mut Browser::open(100, 100), &picture);
        assert!(colours > 100, "{name}: a page with text has more than {colours} colours");
        assert_eq!(first.iter().sum::<u64>() > 600, scheme == "light", "{name}: {first:?}");
    }
    assert_eq!(browser.troubles(), Vec::<String>::new());
}

/// How many colours a picture has, and red, green and blue of its first pixel. A blank one has one colour.
fn colours(browser: &mut Browser, png: &[u8]) -> (u64, Vec<u64>) {
    let counted = browser.eval(&format!(
        "fetch('data:image/png;base64,{}').then(found => found.blob()).then(createImageBitmap).then(image => {{ \
         const context = new OffscreenCanvas(image.width, image.height).getContext('2d'); context.drawImage(image, 0, 0); \
         const bytes = context.getImageData(0, 0, image.width, image.height).data; \
         return [new Set(new Uint32Array(bytes.buffer)).size, [...bytes.slice(0, 3)]]; }})",
        STANDARD.encode(png)
    ));
    (counted[0].as_u64().unwrap(), counted[1].as_array().unwrap().iter().filter_map(Value::as_u64).collect())
}

/// Everything is reached by Tab, and what has the focus is marked.
#[test]
#[ignore = "needs Chromium: cargo xtask browser"]
fn the_keyboard_is_enough() {
    let server = start(&["--parallel", "1"]);
    let mut browser = open(&server);
    browser.wait_for("document.getElementById('model').textContent === 'gemma3-2m-draft'");
    browser.eval("document.activeElement.blur()");
    let mut reached = Vec::new();
    for _ in 0..12 {
        browser.press("Tab", "Tab", false);
        let at = browser.eval("[document.activeElement.id || document.activeElement.className, getComputedStyle(document.activeElement).outlineStyle]");
        if at[0] != "messages" && !at[0].as_str().unwrap().is_empty() {
            assert_ne!(at[1], "none", "{at}: the focus is not seen");
        }
        reached.push(at[0].as_str().unwrap().to_owned());
    }
    for expected in ["skip", "new", "toggle-side", "toggle-panel", "prompt", "send"] {
        assert!(reached.iter().any(|one| one == expected), "{expected} is not among {reached:?}");
    }
}
