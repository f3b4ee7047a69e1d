//! A chat on a terminal: what a person types, and what the screen shows.

use std::num::NonZeroU16;
use std::path::Path;
use std::process::Command;

use tests::compiled::{Compiled, options};
use tests::models::models;
use tests::programs::program;
use tests::terminal::Terminal;

use crate::{MODEL, SCHEMA, device, targets};

const COLUMNS: NonZeroU16 = NonZeroU16::new(100).unwrap();
/// Shown in an empty line.
const PLACEHOLDER: &str = "Send a message (/? for help)";

/// A chat whose answers have at most ten tokens, with what is kept from one start to the next in `state`.
struct Typed {
    terminal: Terminal,
}

impl Typed {
    fn start(state: &Path, options: &[&str]) -> Typed {
        let mut terminal = Terminal::start(&command(state, options), COLUMNS);
        terminal.wait_until("the first prompt", |screen| screen.ends_with(&format!("> {PLACEHOLDER}")));
        Typed { terminal }
    }

    /// Types a line and returns what is shown between it and the next prompt.
    #[track_caller]
    fn line(&mut self, line: &str) -> String {
        let before = prompts(&self.terminal.screen());
        self.terminal.press(&format!("{line}\r"));
        let screen = self.terminal.wait_until("the next prompt", |screen| {
            prompts(screen) > before && screen.ends_with(&format!("> {PLACEHOLDER}"))
        });
        let shown: Vec<&str> = screen.lines().collect();
        let typed = shown[..shown.len() - 1].iter().rposition(|shown| shown.starts_with("> ")).unwrap();
        shown[typed + 1..shown.len() - 1].join("\n")
    }

    /// Presses keys and returns the line that they made.
    #[track_caller]
    fn keys(&mut self, keys: &str, expected: &str) {
        self.terminal.press(keys);
        self.terminal.wait_until(expected, |screen| screen.ends_with(expected));
    }

    #[track_caller]
    fn bye(mut self) {
        self.terminal.press("/bye\r");
        assert_eq!(self.terminal.wait().code(), Some(0), "{}", self.terminal.screen());
    }
}

fn command(state: &Path, options: &[&str]) -> Command {
    let mut command = program("unicorn-run");
    command.arg(MODEL.artifact_path()).args(["-n", "10", "--temp", "0", "-s", "7"]).args(options);
    command.env("UNICORN_DEVICE", device()).env("XDG_STATE_HOME", state).env_remove("NO_COLOR");
    command
}

/// Prompts on the screen, with what was typed at them.
fn prompts(screen: &str) -> usize {
    screen.lines().filter(|line| line.starts_with("> ")).count()
}

#[test]
fn questions_are_answered_retried_and_edited() {
    let state = tempfile::tempdir().unwrap();
    let mut chat = Typed::start(state.path(), &[]);
    let greeting = chat.terminal.screen();
    assert!(greeting.contains("gemma3-2m-draft · seed 7 · /? lists the commands"), "{greeting}");
    let answer = chat.line("Who lives on the island?");
    assert!(!answer.trim().is_empty());

    // Greedy, so that it is the same again.
    let again = chat.line("/retry");
    assert!(again.starts_with("(temp is 0") && again.ends_with(&answer), "{again}");
    assert_eq!(chat.line("/set parameter temperature 1.5"), "temp is 1.5");
    let others: Vec<String> = (0..3).map(|_| chat.line("/retry")).collect();
    assert!(others.iter().any(|other| *other != answer), "another seed each time: {others:?}");
    assert!(chat.line("/show info").contains("conversation  1 question"), "a retry replaces the answer");
    assert_eq!(chat.line("/set temp 0"), "temp is 0");

    chat.keys("/edit\r", "> Who lives on the island?");
    chat.line(" Tell me");
    chat.line("/save edited");
    let saved = std::fs::read_to_string(state.path().join("unicorn/chats/edited.json")).unwrap();
    let saved: serde_json::Value = serde_json::from_str(&saved).unwrap();
    assert_eq!(saved["messages"][0]["content"], "Who lives on the island? Tell me");
    assert_eq!(saved["messages"].as_array().map(Vec::len), Some(2), "{saved}");
    // Ctrl-C gives up the edit, and the next message is one of its own.
    chat.keys("/edit\r", "> Who lives on the island? Tell me");
    chat.keys("\x03", &format!("> {PLACEHOLDER}"));
    chat.line("And who else?");
    assert!(chat.line("/show info").contains("conversation  2 questions"));
    chat.bye();
}

#[test]
fn each_command_answers() {
    let state = tempfile::tempdir().unwrap();
    let mut chat = Typed::start(state.path(), &["--system", "Be brief."]);
    let help = chat.line("/?");
    for command in
        ["/set", "/show", "/think", "/retry", "/edit", "/save", "/load", "/list", "/clear", "/system", "/help", "/bye"]
    {
        assert!(help.lines().any(|line| line.split(' ').next() == Some(command)), "{command} in {help}");
    }
    assert!(chat.line("/? shortcuts").contains("Ctrl-G"));
    assert_eq!(chat.line("/show system"), "Be brief.");
    assert!(chat.line("/system \"\"\"Be\rvery brief.\"\"\"").ends_with("\nsystem message is set"));
    assert_eq!(chat.line("/show system"), "Be\nvery brief.");
    assert!(chat.line("/show template").contains("<start_of_turn>"));
    assert!(chat.line("/show info").contains("gemma3-2m-draft"));
    assert_eq!(chat.line("/show license"), "apache-2.0");
    assert_eq!(chat.line("/set seed 99"), "seed is 99");
    assert_eq!(chat.line("/set stop </s> User:"), "stop is \"</s>\" \"User:\"");
    let parameters = chat.line("/show parameters");
    for row in ["temp            0", "seed            99", "n-predict       10"] {
        assert!(parameters.contains(row), "{row} in {parameters}");
    }
    assert!(chat.line("/set num_ctx 9000000").contains("ctx: expected 1 to"));
    assert!(chat.line("/set top_p 9").contains("expected a number above 0 and at most 1"));
    assert!(chat.line("/think off").contains("no switch for reasoning"));
    assert!(chat.line("/retry").contains("nothing was asked yet"));
    assert!(chat.line("/frobnicate").contains("unknown command /frobnicate"));
    assert!(chat.line("/shw").contains("did you mean /show?"));
    assert!(chat.line("/set parameter").contains("/set top-p NUMBER"));
    assert!(chat.line("/? retry").starts_with("/retry   answer the last question again"));
    let command = chat.line("/show modelfile");
    for option in ["unicorn-run ", "--seed 99", "--system 'Be", "then: /set stop </s> User:"] {
        assert!(command.contains(option), "{option} in {command}");
    }
    assert!(chat.line("/set format xml").contains("expected a JSON schema"));
    // What cannot be matched changes nothing.
    assert!(chat.line("/set --format {\"type\": \"nothing\"}").contains("structure of the answer"));
    assert!(chat.line("/show parameters").contains("format          none"));
    assert_eq!(chat.line("/set verbose"), "figures follow an answer");
    let figures = chat.line("Who are you?");
    assert!(figures.contains("\nprefill  ") && figures.contains("\ndecode   "), "{figures}");
    assert_eq!(chat.line("/set quiet"), "no figures follow an answer");

    assert_eq!(chat.line("/set nowordwrap"), "answers are not wrapped between words");

    // A path is a message, and so is a block of lines.
    assert!(!chat.line("/usr/bin is what?").contains("unknown command"));
    chat.line("\"\"\"One\r\rtwo\"\"\"");
    assert!(chat.line("/save islands").contains("/load islands continues it"));
    assert_eq!(chat.line("/clear"), "new conversation");
    assert_eq!(chat.line("/system"), "no system message");
    assert_eq!(chat.line("/load"), "islands");
    let loaded = chat.line("/load islands");
    // With its last turn: the block, whose first line looks like a prompt.
    assert!(loaded.starts_with("\ntwo\n"), "{loaded}");
    let info = chat.line("/show info");
    assert!(info.contains("conversation  3 questions"), "{info}");
    assert_eq!(chat.line("/show system"), "Be\nvery brief.");
    assert!(chat.line("/load ships").contains("no conversation is saved as \"ships\": found islands"));
    assert!(chat.line("/save ../ships").contains("expected letters, digits"));
    chat.bye();
}

/// A template as Qwen 3's, with text where that has an empty block of thoughts.
const SWITCHED: &str = "{{ bos_token }}{% for message in messages %}{{ '<start_of_turn>' + message['role'] + '\n' + message['content'] + '<end_of_turn>\n' }}{% endfor %}{{ '<start_of_turn>model\n' }}{% if enable_thinking is defined and enable_thinking is false %}{{ 'Without a thought:' }}{% endif %}";

#[test]
fn think_switches_what_the_template_reads() {
    let (state, whole) = (tempfile::tempdir().unwrap(), models().join("gemma3-2m-draft"));
    let folder = state.path().join("thinker");
    std::fs::create_dir(&folder).unwrap();
    for file in ["config.json", "model.safetensors", "tokenizer.json"] {
        std::fs::copy(whole.join(file), folder.join(file)).unwrap();
    }
    std::fs::write(folder.join("chat_template.jinja"), SWITCHED).unwrap();
    let thinker = Compiled::of_folder(&folder, &options(targets(), vec![]));

    let mut chat = Typed::start(state.path(), &[]);
    assert!(chat.line(&format!("/load {}", thinker.artifact_path().display())).ends_with("new conversation"));
    chat.line("/set verbose");
    let plain = prompt_tokens(&mut chat);
    assert_eq!(chat.line("/think"), "enable_thinking is left to the template");
    for (typed, answered, is_longer) in [
        ("/think off", "enable_thinking is false", true),
        ("/think on", "enable_thinking is true", false),
        ("/set nothink", "enable_thinking is false", true),
        ("/set think", "enable_thinking is true", false),
    ] {
        assert_eq!(chat.line(typed), answered);
        assert_eq!(prompt_tokens(&mut chat) > plain, is_longer, "{typed}");
    }
    chat.bye();
}

/// Tokens of the prompt of a question in a new conversation, those that were cached included; after `/set verbose`.
#[track_caller]
fn prompt_tokens(chat: &mut Typed) -> u32 {
    chat.line("/clear");
    let figures = chat.line("Who lives there?");
    let prefill = figures.lines().find(|line| line.starts_with("prefill ")).unwrap_or_else(|| panic!("{figures}"));
    prefill.split(' ').filter_map(|word| word.parse::<u32>().ok()).sum()
}

#[test]
fn answers_match_a_format_until_it_is_taken_back() {
    let state = tempfile::tempdir().unwrap();
    let mut chat = Typed::start(state.path(), &["--format", SCHEMA]);
    chat.line("/set n-predict 100");
    let answer = chat.line("Is it an island?");
    let json: serde_json::Value =
        serde_json::from_str(answer.trim()).unwrap_or_else(|error| panic!("{answer}: {error}"));
    assert!(json["a"].is_boolean(), "{answer}");
    assert!(chat.line("/show command").contains("--json-schema '{\"type\""));
    assert_eq!(chat.line("/set noformat"), "format is none");
    let answer = chat.line("Is it an island?");
    assert!(serde_json::from_str::<serde_json::Value>(answer.trim()).is_err(), "{answer}");
    chat.bye();
}

#[test]
fn another_context_keeps_the_conversation_and_another_model_begins_one() {
    let state = tempfile::tempdir().unwrap();
    let mut chat = Typed::start(state.path(), &[]);
    chat.line("Who lives on the island?");
    assert!(chat.line("/set parameter num_ctx 96").ends_with("ctx is 96"));
    let info = chat.line("/show info");
    assert!(info.contains("context       96 of") && info.contains("conversation  1 question"), "{info}");
    // A model that cannot be loaded leaves the one that is there.
    assert!(chat.line("/load nowhere.gguf").contains("nowhere.gguf"));
    assert!(chat.line("/show info").contains("conversation  1 question"));
    let model = MODEL.artifact_path();
    assert!(chat.line(&format!("/load {}", model.display())).ends_with("new conversation"));
    let info = chat.line("/show info");
    assert!(info.contains("conversation  0 questions") && !info.contains("context       96 of"), "{info}");
    chat.bye();
}

#[test]
fn a_model_that_cannot_match_the_format_leaves_the_chat_as_it_was() {
    let state = tempfile::tempdir().unwrap();
    let (whole, folder) = (models().join("gemma3-2m-draft"), state.path().join("endless"));
    std::fs::create_dir(&folder).unwrap();
    for file in ["chat_template.jinja", "model.safetensors", "tokenizer.json"] {
        std::fs::copy(whole.join(file), folder.join(file)).unwrap();
    }
    // Without a stop token.
    let config = std::fs::read_to_string(whole.join("config.json")).unwrap();
    let endless = config.replace("\"eos_token_id\": 2,", "");
    assert_ne!(config, endless);
    std::fs::write(folder.join("config.json"), endless).unwrap();
    let endless = Compiled::of_folder(&folder, &options(targets(), vec![]));

    let mut chat = Typed::start(state.path(), &["--format", SCHEMA]);
    chat.line("/set n-predict 100");
    chat.line("Who lives on the island?");
    let refused = chat.line(&format!("/load {}", endless.artifact_path().display()));
    assert!(refused.contains("no stop token"), "{refused}");
    assert!(chat.line("/show info").contains("conversation  1 question"));
    let answer = chat.line("Is it an island?");
    assert!(serde_json::from_str::<serde_json::Value>(answer.trim()).is_ok(), "{answer}");
    chat.bye();
}

#[test]
fn lines_are_kept_for_the_next_start_and_tab_completes() {
    let state = tempfile::tempdir().unwrap();
    let mut chat = Typed::start(state.path(), &[]);
    chat.line("/show info");
    chat.line("/set nohistory");
    chat.line("/show system");
    chat.bye();

    let mut chat = Typed::start(state.path(), &[]);
    const UP: &str = "\x1b[A";
    chat.keys(UP, "> /set nohistory");
    chat.keys(UP, "> /show info");
    // Ctrl-U deletes the line.
    chat.keys("\x15", PLACEHOLDER);
    chat.keys("/tem\t", "> /tem");
    chat.keys("\x15", PLACEHOLDER);
    chat.keys("/show p\t", "> /show parameters");
    chat.keys("\x15", PLACEHOLDER);
    chat.keys("/set repeat-l\t", "> /set repeat-last-n");
    chat.keys("\x15", PLACEHOLDER);
    chat.terminal.press("\x04");
    assert_eq!(chat.terminal.wait().code(), Some(0));
}

#[test]
fn a_narrow_terminal_breaks_no_word() {
    let state = tempfile::tempdir().unwrap();
    let narrow = NonZeroU16::new(50).unwrap();
    let mut chat = Typed { terminal: Terminal::start(&command(state.path(), &[]), narrow) };
    chat.keys("", PLACEHOLDER);
    for line in ["/?", "/? set", "/? parameters", "/? shortcuts", "/set foo 1", "/frobnicate"] {
        let shown = chat.line(line);
        // The terminal itself breaks lines at the last column alone.
        assert!(shown.lines().all(|line| line.chars().count() < 50), "{shown}");
        assert!(shown.lines().count() > 1, "{shown}");
    }
    chat.bye();
}

#[test]
fn ctrl_g_opens_the_line_in_the_editor() {
    let state = tempfile::tempdir().unwrap();
    let editor = state.path().join("editor");
    std::fs::write(&editor, "#!/bin/sh\nprintf ' with two\\nlines' >> \"$1\"\n").unwrap();
    let mut command = command(state.path(), &[]);
    // Its options are part of the variable.
    command.env("EDITOR", format!("sh {}", editor.display())).env_remove("VISUAL");
    let mut chat = Typed { terminal: Terminal::start(&command, COLUMNS) };
    chat.keys("", PLACEHOLDER);
    chat.keys("/system A text\x07", "> /system A text with two\nlines");
    assert_eq!(chat.line(""), "lines\nsystem message is set");
    assert_eq!(chat.line("/show system"), "A text with two\nlines");
    chat.bye();
}

#[test]
fn ctrl_c_ends_an_answer_and_not_the_chat() {
    let state = tempfile::tempdir().unwrap();
    let mut chat = Typed::start(state.path(), &["-n", "100000", "--temp", "3", "-c", "4096"]);
    chat.terminal.press("Tell me everything\r");
    chat.terminal.wait_until("an answer", |screen| screen.lines().rev().take(2).all(|line| line.len() > 20));
    chat.keys("\x03", &format!("> {PLACEHOLDER}"));
    let hint = chat.terminal.wait_until("hint", |_| true);
    assert!(!hint.contains("/bye"), "{hint}");
    chat.keys("\x03", &format!("(/bye or Ctrl-D ends the chat)\n> {PLACEHOLDER}"));
    let screen = chat.terminal.screen();
    assert_eq!(screen.matches(PLACEHOLDER).count(), 1, "it is no part of an interrupted line: {screen}");
    assert!(chat.line("/show info").contains("conversation  1 question"));
    chat.bye();
}

#[test]
fn a_model_that_a_chat_compiles_leaves_ctrl_c_to_its_answers() {
    let state = tempfile::tempdir().unwrap();
    let mut command = command(state.path(), &["-n", "100000", "--temp", "3", "-c", "4096"]);
    command.env("XDG_CACHE_HOME", state.path());
    let mut chat = Typed { terminal: Terminal::start(&command, COLUMNS) };
    chat.keys("", PLACEHOLDER);
    let loaded = chat.line(&format!("/load {}", models().join("gemma3-2m-draft.Q8_0.gguf").display()));
    assert!(loaded.contains("compiled in ") && loaded.ends_with("new conversation"), "{loaded}");
    chat.terminal.press("Tell me everything\r");
    chat.terminal.wait_until("an answer", |screen| screen.lines().rev().take(2).all(|line| line.len() > 20));
    chat.keys("\x03", &format!("> {PLACEHOLDER}"));
    chat.bye();
}

#[test]
fn a_full_context_is_reported_once_with_the_remedy() {
    let state = tempfile::tempdir().unwrap();
    let mut chat = Typed::start(state.path(), &["-c", "128", "-n", "30"]);
    let question = "What happened on the island after the storm?";
    let answers: Vec<String> = (0..8).map(|_| chat.line(question)).collect();
    let notes: Vec<&String> = answers.iter().filter(|answer| answer.contains("are left out from now on")).collect();
    let expected = "context of 128 tokens is full; -c 4096 gives the model's longest)";
    assert!(matches!(&notes[..], [note] if note.replace('\n', " ").contains(expected)), "{answers:#?}");
    assert!(answers.iter().all(|answer| !answer.contains("error")), "{answers:#?}");
    assert!(chat.line("/show info").contains("the oldest "));
    let error = chat.line(&question.repeat(20)).replace('\n', " ");
    assert!(error.contains("is too long for the context of 128; -c 4096 gives the model's longest"), "{error}");
    assert!(chat.line("/show info").contains("8 questions"), "the question that failed is not one of them");
    chat.bye();
}

#[test]
fn colours_are_for_terminals_without_no_color() {
    const DIMMED: &str = "\x1b[2m";
    let state = tempfile::tempdir().unwrap();
    let written = |no_color: &str| {
        let mut command = command(state.path(), &[]);
        command.env("NO_COLOR", no_color);
        let mut chat = Typed { terminal: Terminal::start(&command, COLUMNS) };
        chat.terminal
            .wait_until("the first prompt", |screen| screen.lines().last().is_some_and(|line| line.starts_with('>')));
        chat.terminal.press("\x04");
        chat.terminal.wait();
        chat.terminal.written()
    };
    let (colours, plain) = (written(""), written("1"));
    assert!(colours.contains(DIMMED), "{colours:?}");
    assert!(!plain.contains("\x1b[2m") && !plain.contains("loading ░") && !plain.contains("loading █"), "{plain:?}");
}
