//! A headless Chromium that a test drives as a person would, with keys and a pointer, and reads what it shows. It listens on no
//! port: commands and answers of the Chrome DevTools Protocol go through pipes, as messages of JSON that end with a zero byte.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tempfile::TempDir;

/// Maximum wait: longer than a busy machine needs.
const PATIENCE: Duration = Duration::from_secs(120);

/// One tab of a browser of its own, which ends when the value is dropped.
pub struct Browser {
    child: Child,
    commands: ChildStdin,
    answers: BufReader<ChildStdout>,
    /// Session id of the tab in the protocol.
    session: String,
    newest_id: u64,
    /// Problems of the page: uncaught errors, and what its policy or the browser refused.
    troubles: Vec<String>,
    _profile: TempDir,
}

impl Browser {
    /// A tab of this size, in pixels of CSS. No name is resolved: the page has this machine's addresses alone.
    ///
    /// # Panics
    /// If Chromium does not start.
    pub fn open(width: u32, height: u32) -> Browser {
        let profile = tempfile::tempdir().expect("a folder for the profile");
        // Chromium reads commands from descriptor 3 and answers on 4.
        let mut shell = Command::new("sh");
        shell.args(["-c", "exec chromium \"$@\" 3<&0 4>&1 </dev/null >/dev/null", "sh", "--headless", "--no-sandbox"]);
        shell.args(["--disable-gpu", "--no-first-run", "--remote-debugging-pipe", "--force-color-profile=srgb"]);
        shell.args(["--hide-scrollbars", "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1"]);
        shell.arg(format!("--user-data-dir={}", profile.path().display()));
        shell.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = shell.spawn().expect("a shell");
        let commands = child.stdin.take().expect("stdin is a pipe");
        let answers = BufReader::new(child.stdout.take().expect("stdout is a pipe"));
        let (session, troubles) = (String::new(), Vec::new());
        let mut browser = Browser { child, commands, answers, session, newest_id: 0, troubles, _profile: profile };
        let target = browser.call("Target.createTarget", json!({"url": "about:blank"}));
        let attached = json!({"targetId": target["targetId"], "flatten": true});
        let attached = browser.call("Target.attachToTarget", attached);
        browser.session = attached["sessionId"].as_str().expect("a session").to_owned();
        for domain in ["Page", "Runtime", "Log"] {
            browser.call(&format!("{domain}.enable"), json!({}));
        }
        browser.resize(width, height);
        browser
    }

    /// Changes the window's size, in pixels of CSS.
    pub fn resize(&mut self, width: u32, height: u32) {
        let size = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        self.call("Emulation.setDeviceMetricsOverride", size);
    }

    /// Sets `prefers-color-scheme`: `light` or `dark`.
    pub fn prefer(&mut self, scheme: &str) {
        let features = json!([{"name": "prefers-color-scheme", "value": scheme}]);
        self.call("Emulation.setEmulatedMedia", json!({"features": features}));
    }

    /// Goes to an address and waits until the page and its modules have run.
    pub fn visit(&mut self, address: &str) {
        self.call("Page.navigate", json!({"url": address}));
        self.wait_for("document.readyState === 'complete' && location.href !== 'about:blank'");
    }

    /// The value of an expression of JavaScript; for a promise, the value that it resolves to.
    ///
    /// # Panics
    /// With the error that the expression throws.
    pub fn eval(&mut self, expression: &str) -> Value {
        let asked = json!({"expression": expression, "returnByValue": true, "awaitPromise": true, "userGesture": true});
        let found = self.call("Runtime.evaluate", asked);
        let thrown = &found["exceptionDetails"];
        assert!(thrown.is_null(), "{expression}: {thrown}");
        found["result"]["value"].clone()
    }

    /// Waits until an expression is true.
    ///
    /// # Panics
    /// If it stays false.
    pub fn wait_for(&mut self, expression: &str) {
        let begun = Instant::now();
        while self.eval(&format!("Boolean({expression})")) != true {
            let page = || "document.body.innerText";
            assert!(begun.elapsed() < PATIENCE, "never: {expression}\n{}\n{:?}", self.eval(page()), self.troubles);
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Types text into the focused element.
    pub fn write(&mut self, text: &str) {
        self.call("Input.insertText", json!({"text": text}));
    }

    /// Presses a key: its name, such as `Enter`, its code, such as `KeyN`, and whether Alt is held.
    pub fn press(&mut self, key: &str, code: &str, is_alt: bool) {
        let number = match key {
            "Enter" => 13,
            "Escape" => 27,
            "ArrowUp" => 38,
            "Tab" => 9,
            letter => letter.bytes().next().map_or(0, |byte| byte.to_ascii_uppercase().into()),
        };
        let modifiers = u8::from(is_alt);
        let mut event = json!({"type": "keyDown", "key": key, "code": code, "windowsVirtualKeyCode": number, "modifiers": modifiers});
        if key == "Enter" {
            event["text"] = "\r".into();
        }
        self.call("Input.dispatchKeyEvent", event.clone());
        event["type"] = "keyUp".into();
        self.call("Input.dispatchKeyEvent", event);
    }

    /// Clicks the middle of the first element that a selector finds.
    pub fn click(&mut self, selector: &str) {
        let middle =
            "const box = found.getBoundingClientRect(); return [box.x + box.width / 2, box.y + box.height / 2];";
        let find =
            format!("const found = document.querySelector({selector:?}); found.scrollIntoView({{block: 'nearest'}});");
        let at = self.eval(&format!("(() => {{ {find} {middle} }})()"));
        for kind in ["mousePressed", "mouseReleased"] {
            let event = json!({"type": kind, "x": at[0], "y": at[1], "button": "left", "clickCount": 1});
            self.call("Input.dispatchMouseEvent", event);
        }
    }

    /// Roles and names of what assistive technology finds in the page.
    pub fn accessible(&mut self) -> Vec<(String, String)> {
        let tree = self.call("Accessibility.getFullAXTree", json!({}));
        let nodes = tree["nodes"].as_array().expect("nodes").iter().filter(|node| node["ignored"] != true);
        let text = |value: &Value| value["value"].as_str().unwrap_or_default().to_owned();
        nodes.map(|node| (text(&node["role"]), text(&node["name"]))).collect()
    }

    /// The visible part of the page, as a PNG.
    pub fn screenshot(&mut self) -> Vec<u8> {
        let picture = self.call("Page.captureScreenshot", json!({"format": "png"}));
        STANDARD.decode(picture["data"].as_str().expect("a picture")).expect("base64")
    }

    /// Uncaught errors of the page, and what was refused to it, since the last call.
    pub fn troubles(&mut self) -> Vec<String> {
        // Events before an answer were read with it.
        self.eval("0");
        std::mem::take(&mut self.troubles)
    }

    fn call(&mut self, method: &str, parameters: Value) -> Value {
        let id = self.send(method, parameters);
        let begun = Instant::now();
        loop {
            assert!(begun.elapsed() < PATIENCE, "{method} has no answer");
            let mut message = Vec::new();
            self.answers.read_until(0, &mut message).expect("the browser's answers");
            assert!(message.pop().is_some(), "chromium ended before it answered {method}; does it start here?");
            let mut message: Value = serde_json::from_slice(&message).expect("JSON");
            if message["id"] == id {
                assert!(message["error"].is_null(), "{method}: {}", message["error"]);
                return message["result"].take();
            }
            self.note(&message);
        }
    }

    /// Records problems that an event reports.
    fn note(&mut self, event: &Value) {
        let parameters = &event["params"];
        match event["method"].as_str() {
            Some("Runtime.exceptionThrown") => self.troubles.push(parameters["exceptionDetails"].to_string()),
            Some("Log.entryAdded") if parameters["entry"]["level"] == "error" => {
                self.troubles.push(parameters["entry"]["text"].to_string());
            }
            // A dialog blocks the page until it is answered.
            Some("Page.javascriptDialogOpening") => {
                self.send("Page.handleJavaScriptDialog", json!({"accept": true}));
            }
            _ => {}
        }
    }

    fn send(&mut self, method: &str, parameters: Value) -> u64 {
        self.newest_id += 1;
        let mut message = json!({"id": self.newest_id, "method": method, "params": parameters});
        if !self.session.is_empty() {
            message["sessionId"] = self.session.clone().into();
        }
        self.commands.write_all(format!("{message}\0").as_bytes()).expect("chromium reads commands");
        self.newest_id
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
