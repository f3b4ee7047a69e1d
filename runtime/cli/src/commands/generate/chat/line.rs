//! What a typed line means: a message, or a command. Pure.

use strsim::osa_distance;
use unicorn_terminal::wrapped;

/// A line typed in a chat.
#[derive(Debug, PartialEq, Eq)]
pub enum Line<'l> {
    Nothing,
    Message(&'l str),
    Help(Help),
    Show(Subject),
    Save(&'l str),
    /// A saved conversation, or a model. Without a name, the names of conversations are listed.
    Load(Option<&'l str>),
    /// Lists the artifacts that were fetched.
    List,
    Retry,
    Edit,
    Clear,
    /// Without a text, there is no system message from now on.
    System(&'l str),
    Set(Setting<'l>),
    Think(Option<&'l str>),
    Bye,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Help {
    Commands,
    Set,
    Parameters,
    Show,
    Shortcuts,
    /// Help for the command of this name in [`COMMANDS`].
    One(&'static str),
}

/// What `/show` shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    Info,
    Template,
    Parameters,
    System,
    /// The command that starts the same chat.
    Command,
    License,
}

#[derive(Debug, PartialEq, Eq)]
pub enum Setting<'l> {
    /// Name and value.
    Parameter(&'l str, &'l str),
    History(bool),
    Verbose(bool),
    Wordwrap(bool),
}

/// A command: its name, what follows it, and what it does.
pub struct Command {
    pub name: &'static str,
    pub rest: &'static str,
    pub help: &'static str,
}

/// Commands in the order of `/help`. Their other names are in [`Line::parse`].
pub const COMMANDS: [Command; 12] = [
    command("/set", "…", "set a parameter or the system message: /? set"),
    command("/show", "…", "show the model, its template or license, the parameters or the system message: /? show"),
    command("/think", "on|off|low|medium|high", "let the model reason before it answers, if its template can"),
    command("/retry", "", "answer the last question again, with another seed"),
    command("/edit", "", "edit the last question and ask it instead; Ctrl-G opens it in $EDITOR"),
    command("/save", "NAME", "save the conversation"),
    command(
        "/load",
        "[NAME|MODEL]",
        "continue a saved conversation, or load another model; without NAME, list conversations",
    ),
    command("/list", "", "list the models that were fetched"),
    command("/clear", "", "start a new conversation; the system message stays"),
    command("/system", "[TEXT]", "set the system message; without TEXT, none"),
    command("/help", "", "this list, also as /?; /? shortcuts lists the keys"),
    command("/bye", "", "end, as do Ctrl-D, /exit and /quit"),
];

const fn command(name: &'static str, rest: &'static str, help: &'static str) -> Command {
    Command { name, rest, help }
}

/// Begins and ends a text of several lines.
pub const BLOCK: &str = "\"\"\"";

impl Line<'_> {
    /// The meaning of a line. One that begins with `/` is a message if its first word is no command and looks like a path: it
    /// has another `/`, or `exists` is true for it. A space before it always makes it a message.
    ///
    /// # Errors
    /// What was expected, for a command that is unknown or incomplete.
    pub fn parse(line: &str, exists: impl Fn(&str) -> bool) -> Result<Line<'_>, String> {
        let text = line.trim();
        if text.is_empty() {
            return Ok(Line::Nothing);
        }
        if !line.starts_with('/') {
            return Ok(Line::Message(without_block(text)));
        }
        let (name, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
        let rest = rest.trim();
        match name {
            "/bye" | "/exit" | "/quit" => nothing_more(name, rest, Line::Bye),
            "/clear" => nothing_more(name, rest, Line::Clear),
            "/retry" => nothing_more(name, rest, Line::Retry),
            "/edit" => nothing_more(name, rest, Line::Edit),
            "/help" | "/?" => help(rest),
            "/show" => show(rest),
            "/save" => match rest {
                "" => Err("/save needs a name, as in: /save islands".into()),
                name => Ok(Line::Save(name)),
            },
            "/list" => nothing_more(name, rest, Line::List),
            "/load" => Ok(Line::Load((!rest.is_empty()).then_some(rest))),
            "/system" => Ok(Line::System(without_block(rest))),
            "/think" => Ok(Line::Think((!rest.is_empty()).then_some(rest))),
            "/set" => set(rest),
            path if path[1..].contains('/') || exists(path) => Ok(Line::Message(text)),
            unknown => Err(unknown_command(unknown)),
        }
    }

    /// Whether a typed text continues: it has begun a block of several lines and not ended it.
    pub fn is_incomplete(line: &str) -> bool {
        let text = line.trim();
        let body = ["/system", "/set system"].iter().find_map(|command| text.strip_prefix(command)).unwrap_or(text);
        let Some(begun) = body.trim_start().strip_prefix(BLOCK) else { return false };
        !begun.ends_with(BLOCK)
    }
}

/// The lines between two [`BLOCK`]s, or a text without them.
fn without_block(text: &str) -> &str {
    match text.strip_prefix(BLOCK) {
        Some(begun) => begun.strip_suffix(BLOCK).unwrap_or(begun).trim_matches('\n'),
        None => text,
    }
}

fn nothing_more<'l>(name: &str, rest: &str, line: Line<'l>) -> Result<Line<'l>, String> {
    if rest.is_empty() { Ok(line) } else { Err(format!("{name} takes no text, found {rest:?} after it")) }
}

fn help(topic: &str) -> Result<Line<'_>, String> {
    Ok(Line::Help(match topic.trim_start_matches('/') {
        "" => Help::Commands,
        "set" => Help::Set,
        "parameter" | "parameters" | "set parameter" => Help::Parameters,
        "show" => Help::Show,
        "shortcut" | "shortcuts" => Help::Shortcuts,
        name => match COMMANDS.iter().find(|command| &command.name[1..] == name) {
            Some(command) => Help::One(command.name),
            None => return Err(format!("no help on {topic:?}: expected a command, parameters or shortcuts behind /?")),
        },
    }))
}

fn show(subject: &str) -> Result<Line<'_>, String> {
    Ok(match subject {
        "" => Line::Help(Help::Show),
        "info" => Line::Show(Subject::Info),
        "template" => Line::Show(Subject::Template),
        "parameters" => Line::Show(Subject::Parameters),
        "system" => Line::Show(Subject::System),
        "license" => Line::Show(Subject::License),
        // Ollama's name: its modelfile starts the same chat.
        "command" | "modelfile" => Line::Show(Subject::Command),
        other => {
            return Err(format!("nothing to show by {other:?}: expected {}", SUBJECTS.join(", ")));
        }
    })
}

fn set(setting: &str) -> Result<Line<'_>, String> {
    let (name, rest) = setting.split_once(char::is_whitespace).unwrap_or((setting, ""));
    let rest = rest.trim();
    Ok(match (name, rest) {
        ("", _) => Line::Help(Help::Set),
        ("system", text) => Line::System(without_block(text)),
        ("history", "") => Line::Set(Setting::History(true)),
        ("nohistory", "") => Line::Set(Setting::History(false)),
        ("verbose", "") => Line::Set(Setting::Verbose(true)),
        ("quiet", "") => Line::Set(Setting::Verbose(false)),
        ("wordwrap", "") => Line::Set(Setting::Wordwrap(true)),
        ("nowordwrap", "") => Line::Set(Setting::Wordwrap(false)),
        ("think", "") => Line::Think(Some("on")),
        ("think", mode) => Line::Think(Some(mode)),
        ("nothink", "") => Line::Think(Some("off")),
        ("parameter", "") => Line::Help(Help::Parameters),
        ("parameter", rest) => match rest.split_once(char::is_whitespace) {
            Some((name, value)) => Line::Set(Setting::Parameter(name, value.trim())),
            None => return Err(format!("/set parameter {rest} needs a value; /? parameters lists what each may be")),
        },
        ("noformat", "") => Line::Set(Setting::Parameter("format", "none")),
        (name, "") if PARAMETERS.contains(&parameter_name(name).as_str()) => {
            return Err(format!("/set {name} needs a value; /? parameters lists what each may be"));
        }
        (name, "") => return Err(format!("nothing to set is called {name}: /? set and /? parameters list the names")),
        (name, value) => Line::Set(Setting::Parameter(name, value)),
    })
}

fn unknown_command(name: &str) -> String {
    let all = || COMMANDS.iter().map(|command| command.name);
    let mut begun = all().filter(|known| known.starts_with(name) || name.starts_with(known));
    let mut mistyped = all().filter(|known| osa_distance(known, name) <= 1);
    let one = |similar: &mut dyn Iterator<Item = &'static str>| similar.next().filter(|_| similar.next().is_none());
    match one(&mut begun).or_else(|| one(&mut mistyped)) {
        Some(known) if name.len() > 1 => format!("unknown command {name}: did you mean {known}?"),
        _ => format!("unknown command {name}: /? lists the commands; a space before it makes it a message"),
    }
}

/// The line that [`Line::parse`] reads as the message `text`.
pub fn as_message(text: &str) -> String {
    if text.starts_with('/') || text.starts_with(BLOCK) { format!(" {text}") } else { text.to_owned() }
}

/// What `/?` prints on a terminal of `columns` columns.
pub fn help_text(topic: Help, columns: usize) -> String {
    let rows: Vec<(String, &str)> = match topic {
        Help::Commands => {
            COMMANDS.iter().map(|command| (format!("{} {}", command.name, command.rest), command.help)).collect()
        }
        Help::One(name) => {
            let one = COMMANDS.iter().filter(|command| command.name == name);
            one.map(|command| (format!("{name} {}", command.rest), command.help)).collect()
        }
        Help::Set => SET_HELP.map(|(name, help)| (name.to_owned(), help)).into(),
        Help::Parameters => PARAMETER_HELP.map(|(name, help)| (format!("/set {name}"), help)).into(),
        Help::Show => SHOW_HELP.map(|(name, help)| (name.to_owned(), help)).into(),
        Help::Shortcuts => SHORTCUTS.map(|(keys, help)| (keys.to_owned(), help)).into(),
    };
    let mut text = table(&rows, columns);
    if topic == Help::Commands {
        let more = "Text between two \"\"\" may have several lines. A line that begins with a path is a message.";
        text += &format!("\n{}\n", lines_of(more, columns).join("\n"));
    }
    text
}

/// Two columns; the right one is broken between words, so that no terminal breaks it within one.
fn table(rows: &[(String, &str)], columns: usize) -> String {
    let width = rows.iter().map(|(name, _)| name.chars().count()).max().unwrap_or_default();
    let mut text = String::new();
    for (name, help) in rows {
        let mut name = name.as_str();
        for line in lines_of(help, columns.saturating_sub(width + 2)) {
            text += &format!("{name:<width$}  {line}\n");
            name = "";
        }
    }
    text
}

/// Narrower than this, text is left as it is.
const MIN_COLUMNS: usize = 15;

fn lines_of(text: &str, columns: usize) -> Vec<String> {
    if columns < MIN_COLUMNS {
        return vec![text.to_owned()];
    }
    wrapped(text, columns).lines().map(str::to_owned).collect()
}

const SET_HELP: [(&str, &str); 10] = [
    ("/set [parameter] NAME VALUE", "how answers are sampled and when they end: /? parameters"),
    ("/set system TEXT", "the system message, as /system TEXT"),
    ("/set think [MODE]", "as /think on, or /think MODE"),
    ("/set nothink", "as /think off"),
    ("/set history", "keep lines for the next start"),
    ("/set nohistory", "do not keep them"),
    ("/set verbose", "figures after each answer"),
    ("/set quiet", "no figures"),
    ("/set wordwrap", "break lines of answers between words"),
    ("/set nowordwrap", "leave that to the terminal"),
];

/// Help for each of [`PARAMETERS`], by name.
const PARAMETER_HELP: [(&str, &str); 11] = [
    ("temp NUMBER", "randomness, from 0: the likeliest token always"),
    ("top-k N", "sample from the N likeliest tokens; 0: from all"),
    ("top-p NUMBER", "sample from the likeliest tokens that have this share together, up to 1"),
    ("min-p NUMBER", "sample from tokens that have this share of the likeliest one's probability, 0 to 1"),
    ("repeat-penalty NUMBER", "make earlier tokens less likely, from 1: no penalty"),
    ("repeat-last-n N", "how many earlier tokens that are, up to 256"),
    ("seed N", "equal seeds give equal answers"),
    ("n-predict N", "longest answer in tokens; -1: no limit"),
    ("stop TEXT ...", "end an answer before any of these texts"),
    ("format json|SCHEMA", "answers are JSON, or match a JSON schema; none: any answer"),
    ("ctx N", "context in tokens; the model is loaded again, the conversation stays"),
];

const SHOW_HELP: [(&str, &str); 6] = [
    ("/show info", "model, device, memory and context"),
    ("/show parameters", "what /set parameter changes, with the values"),
    ("/show system", "the system message"),
    ("/show template", "the model's chat template"),
    ("/show command", "the command that starts this chat with these settings"),
    ("/show license", "the model's license"),
];

/// What `/show` takes.
const SUBJECTS: [&str; 6] = ["info", "template", "parameters", "system", "command", "license"];

const SHORTCUTS: [(&str, &str); 10] = [
    ("Ctrl-C", "stop the answer; at the prompt, discard the line"),
    ("Ctrl-D", "end the chat, if the line is empty"),
    ("Ctrl-G", "continue the line in $VISUAL or $EDITOR"),
    ("Ctrl-R", "search the lines of this chat and earlier ones"),
    ("Up, Down", "lines of this chat and earlier ones"),
    ("Tab", "complete a command"),
    ("Ctrl-A, Ctrl-E", "to the beginning or the end of the line"),
    ("Alt-B, Alt-F", "a word back or forward"),
    ("Ctrl-K, Ctrl-U, Ctrl-W", "delete to the end, to the beginning, or the word before the cursor"),
    ("Ctrl-L", "clear the screen"),
];

/// Completions of the end of `line`: where it begins, and its possible texts. `saved` are names of conversations.
pub fn completions(line: &str, saved: impl Fn() -> Vec<String>) -> (usize, Vec<String>) {
    if !line.starts_with('/') {
        return (0, Vec::new());
    }
    let start = line.rfind(char::is_whitespace).map_or(0, |at| at + 1);
    let (before, begun) = line.split_at(start);
    let words: Vec<&str> = before.split_whitespace().collect();
    let names: Vec<String> = match words.as_slice() {
        [] => COMMANDS.iter().map(|command| command.name.to_owned()).collect(),
        ["/show"] => SUBJECTS.map(str::to_owned).into(),
        ["/think"] => ["on", "off", "low", "medium", "high"].map(str::to_owned).into(),
        ["/?" | "/help"] => ["set", "parameters", "show", "shortcuts"].map(str::to_owned).into(),
        ["/save" | "/load"] => saved(),
        ["/set"] => {
            let others = [
                "system",
                "parameter",
                "think",
                "nothink",
                "history",
                "nohistory",
                "verbose",
                "quiet",
                "wordwrap",
                "nowordwrap",
            ];
            others.iter().chain(&PARAMETERS).map(|name| (*name).to_owned()).collect()
        }
        ["/set", "parameter"] => PARAMETERS.map(str::to_owned).into(),
        _ => Vec::new(),
    };
    (start, names.into_iter().filter(|name| name.starts_with(begun)).collect())
}

/// Names of `/set parameter`, those of the command line.
pub const PARAMETERS: [&str; 11] = [
    "temp",
    "top-k",
    "top-p",
    "min-p",
    "repeat-penalty",
    "repeat-last-n",
    "seed",
    "n-predict",
    "stop",
    "format",
    "ctx",
];

/// A parameter's name among [`PARAMETERS`], if it has one: Ollama's names and those of options mean the same.
pub fn parameter_name(name: &str) -> String {
    match name.trim_start_matches('-').replace('_', "-").as_str() {
        "temperature" => "temp".to_owned(),
        "num-predict" => "n-predict".to_owned(),
        "num-ctx" | "ctx-size" => "ctx".to_owned(),
        name => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Line<'_>, String> {
        Line::parse(line, |path| path == "/etc")
    }

    #[test]
    fn lines_are_messages_or_commands() {
        assert_eq!(parse("  hello there "), Ok(Line::Message("hello there")));
        assert_eq!(parse(" "), Ok(Line::Nothing));
        for bye in ["/bye", "/exit", "/quit"] {
            assert_eq!(parse(bye), Ok(Line::Bye));
        }
        assert_eq!(parse("/system Be brief. "), Ok(Line::System("Be brief.")));
        assert_eq!(parse("/set system Be brief."), Ok(Line::System("Be brief.")));
        assert_eq!(parse("/system"), Ok(Line::System("")));
        assert_eq!(parse("/show template"), Ok(Line::Show(Subject::Template)));
        assert_eq!(parse("/show"), Ok(Line::Help(Help::Show)));
        assert_eq!(parse("/? /set"), Ok(Line::Help(Help::Set)));
        assert_eq!(parse("/help shortcuts"), Ok(Line::Help(Help::Shortcuts)));
        assert_eq!(parse("/? clear"), Ok(Line::Help(Help::One("/clear"))));
        assert_eq!(help_text(Help::One("/clear"), 80), "/clear   start a new conversation; the system message stays\n");
        assert!(parse("/? me").unwrap_err().starts_with("no help on \"me\": expected a command"));
        assert_eq!(parse("/save islands"), Ok(Line::Save("islands")));
        assert_eq!(parse("/load"), Ok(Line::Load(None)));
        assert_eq!(parse("/think"), Ok(Line::Think(None)));
        assert!(parse("/clear all").unwrap_err().contains("takes no text"));
        assert!(parse("/save").unwrap_err().contains("/save islands"));
        assert!(parse("/show all").unwrap_err().contains("expected info, template"));
    }

    #[test]
    fn settings_have_ollamas_names_and_short_ones() {
        let temp = Ok(Line::Set(Setting::Parameter("temp", "0.7")));
        assert_eq!(parse("/set  temp 0.7"), temp);
        assert_eq!(parse("/set parameter temp  0.7"), temp);
        assert_eq!(parse("/set nothink"), Ok(Line::Think(Some("off"))));
        assert_eq!(parse("/set think low"), Ok(Line::Think(Some("low"))));
        assert_eq!(parse("/set nohistory"), Ok(Line::Set(Setting::History(false))));
        assert_eq!(parse("/set verbose"), Ok(Line::Set(Setting::Verbose(true))));
        assert_eq!(parse("/set"), Ok(Line::Help(Help::Set)));
        assert!(parse("/set temp").unwrap_err().starts_with("/set temp needs a value"));
        assert!(parse("/set parameter temp").unwrap_err().starts_with("/set parameter temp needs a value"));
        assert_eq!(parse("/set parameter"), Ok(Line::Help(Help::Parameters)));
        assert!(parse("/set top_k").unwrap_err().contains("needs a value"));
        assert!(parse("/set foo").unwrap_err().starts_with("nothing to set is called foo"));
        assert_eq!(parse("/set format json"), Ok(Line::Set(Setting::Parameter("format", "json"))));
        assert_eq!(parse("/set noformat"), Ok(Line::Set(Setting::Parameter("format", "none"))));
        assert_eq!(parse("/show modelfile"), Ok(Line::Show(Subject::Command)));
    }

    #[test]
    fn a_path_is_a_message_unless_a_command_has_its_name() {
        assert_eq!(parse("/usr/bin is what?"), Ok(Line::Message("/usr/bin is what?")));
        assert_eq!(parse("/etc"), Ok(Line::Message("/etc")));
        assert_eq!(parse(" /clear"), Ok(Line::Message("/clear")));
        assert_eq!(parse("/sho").unwrap_err(), "unknown command /sho: did you mean /show?");
        let error = parse("/frobnicate").unwrap_err();
        assert_eq!(error, "unknown command /frobnicate: /? lists the commands; a space before it makes it a message");
    }

    #[test]
    fn each_command_has_help_that_parses() {
        for Command { name, .. } in &COMMANDS {
            assert!(help_text(Help::Commands, 80).contains(name));
            let unknown = parse(name).is_err_and(|error| error.starts_with("unknown"));
            assert!(!unknown, "{name}");
        }
        for (line, _) in SHOW_HELP {
            assert!(matches!(parse(line), Ok(Line::Show(_))), "{line}");
        }
        for (line, _) in SET_HELP {
            let line = line.replace("[parameter] NAME VALUE", "seed 7").replace("[MODE]", "");
            assert!(!matches!(parse(&line), Err(_) | Ok(Line::Help(_))), "{line}");
        }
    }

    #[test]
    fn help_breaks_between_words() {
        for topic in [Help::Commands, Help::Set, Help::Parameters, Help::Show, Help::Shortcuts] {
            for columns in [60, 80, 200] {
                let text = help_text(topic, columns);
                assert!(text.lines().all(|line| line.chars().count() < columns), "{text}");
                let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
                assert_eq!(words(&text).len(), words(&help_text(topic, 1000)).len(), "no word is lost");
            }
        }
        let help = help_text(Help::Commands, 60);
        assert!(help.contains("\n/retry                         answer the last question\n"), "{help}");
    }

    #[test]
    fn help_names_every_parameter_that_can_be_set() {
        let named: Vec<&str> = PARAMETER_HELP.iter().filter_map(|(line, _)| line.split(' ').next()).collect();
        assert_eq!(named, PARAMETERS);
    }

    #[test]
    fn a_mistyped_command_is_recognised() {
        for (typed, meant) in
            [("/shw", "/show"), ("/hlep", "/help"), ("/cleer", "/clear"), ("/byee", "/bye"), ("/thik", "/think")]
        {
            assert_eq!(parse(typed).unwrap_err(), format!("unknown command {typed}: did you mean {meant}?"));
        }
        assert!(parse("/shame").unwrap_err().contains("/? lists"));
    }

    #[test]
    fn a_message_stays_one_when_it_is_edited() {
        for text in ["/usr/bin is what?", "/clear", "plain", "One\ntwo"] {
            assert_eq!(parse(&as_message(text)), Ok(Line::Message(text)));
        }
    }

    #[test]
    fn three_quotes_hold_several_lines() {
        assert!(
            Line::is_incomplete("\"\"\"One") && Line::is_incomplete("\"\"\"One\ntwo") && Line::is_incomplete("\"\"\"")
        );
        assert!(Line::is_incomplete("/set system \"\"\"Be"));
        assert!(!Line::is_incomplete("\"\"\"One\ntwo\"\"\"") && !Line::is_incomplete("One \"\"\" two"));
        assert_eq!(parse("\"\"\"\nOne\n two\n\"\"\""), Ok(Line::Message("One\n two")));
        assert_eq!(parse("/system \"\"\"Be\nbrief.\"\"\""), Ok(Line::System("Be\nbrief.")));
    }

    #[test]
    fn tab_completes_commands_and_what_follows_them() {
        let complete = |line| completions(line, || vec!["islands".into(), "ships".into()]);
        assert_eq!(complete("/s"), (0, vec!["/set".into(), "/show".into(), "/save".into(), "/system".into()]));
        assert_eq!(complete("/show p"), (6, vec!["parameters".into()]));
        assert_eq!(complete("/load i"), (6, vec!["islands".into()]));
        assert_eq!(complete("/set parameter top"), (15, vec!["top-k".into(), "top-p".into()]));
        assert_eq!(complete("/set top-k 1"), (11, Vec::new()));
        assert_eq!(complete("hello"), (0, Vec::new()));
    }
}
