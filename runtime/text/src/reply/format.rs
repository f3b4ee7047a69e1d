//! Which format a model writes its reasoning and its calls in, found in its chat template.

/// How a reply is to be read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReplyFormat {
    /// `Some`: text between the marks is reasoning. `Some(true)`: the prompt ends within it.
    pub thinks: Option<bool>,
    /// The prompt ends behind reasoning, as where a request wants none: an answer that has to match something follows at once.
    pub has_thought: bool,
    /// The marks around reasoning.
    pub marks: ReasoningMarks,
    /// `Some`: the reply may call tools, in this format.
    pub tools: Option<ToolFormat>,
    /// The reply is made of harmony's channels, whatever else is set.
    pub harmony: bool,
}

/// What stands around reasoning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReasoningMarks {
    /// `<think>` and `</think>`.
    #[default]
    Think,
    /// Gemma 4: `<|channel>thought`, with a line break, and `<channel|>`.
    ThoughtChannel,
    /// Ministral 3 and Magistral: `[THINK]` and `[/THINK]`.
    Brackets,
    /// Granite 3.3: `<think>` and `</think>`, with the answer behind them between `<response>` and `</response>`.
    ThinkAndResponse,
}

impl ReasoningMarks {
    /// The text that reasoning begins with.
    pub fn opener(self) -> &'static str {
        match self {
            ReasoningMarks::Think | ReasoningMarks::ThinkAndResponse => "<think>",
            ReasoningMarks::ThoughtChannel => "<|channel>thought\n",
            ReasoningMarks::Brackets => "[THINK]",
        }
    }

    /// The text that it ends with.
    pub fn closer(self) -> &'static str {
        match self {
            ReasoningMarks::Think | ReasoningMarks::ThinkAndResponse => "</think>",
            ReasoningMarks::ThoughtChannel => "<channel|>",
            ReasoningMarks::Brackets => "[/THINK]",
        }
    }

    /// Whether reasoning may begin again within the answer, and its end stand where it did not begin.
    pub fn recur(self) -> bool {
        self == ReasoningMarks::ThoughtChannel
    }

    /// The texts before and behind an answer, if it has marks as well.
    pub(crate) fn of_answer(self) -> Option<(&'static str, &'static str)> {
        (self == ReasoningMarks::ThinkAndResponse).then_some(("<response>", "</response>"))
    }
}

/// How a family of models writes its calls of tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ToolFormat {
    /// Qwen, Hermes: `<tool_call>{"name": …, "arguments": {…}}</tool_call>`. Tags inside, as of the next format, are read too.
    Hermes,
    /// Qwen 3.5 and the coders: `<tool_call><function=NAME><parameter=KEY>value</parameter></function></tool_call>`. JSON is read too.
    Tagged,
    /// GLM-4.5, 4.6, 4.7: `<tool_call>NAME<arg_key>KEY</arg_key><arg_value>value</arg_value></tool_call>`, before GLM-4.7 with line breaks
    /// between the tags. JSON is read too.
    Glm,
    /// GLM-4-0414: the tool's name and, on the next line, `{…}`, as the whole reply or behind `<|assistant|>`. JSON as of the last format is
    /// read too.
    Glm4,
    /// Llama 3, 4: `{"name": …, "parameters": {…}}` as the whole reply, or behind `<|python_tag|>`. A list of Python's calls is read too.
    Llama,
    /// Llama 4 and others whose template asks for it: `[name(key=value)]`, a list of Python's calls. JSON is read too.
    Pythonic,
    /// LFM2: `<|tool_call_start|>[name(key=value)]<|tool_call_end|>`, a list of Python's calls. JSON in the list is read too.
    Lfm2,
    /// OLMo 3: `<function_calls>name(key=value)</function_calls>`, Python's calls on lines of their own, with JSON's literals as well.
    Olmo3,
    /// Mistral: `[TOOL_CALLS][{"name": …, "arguments": {…}}]`, or `[TOOL_CALLS]name[CALL_ID]id[ARGS]{…}`, mostly without an id.
    Mistral,
    /// Granite 3: `<|tool_call|>[{"name": …, "arguments": {…}}]`. Before Granite 3.2, the text `<tool_call>` may take the token's place.
    Granite,
    /// FunctionGemma: `<start_function_call>call:name{key:<escape>text<escape>}<end_function_call>`.
    Gemma,
    /// Gemma 4: `<|tool_call>call:name{key:<|"|>text<|"|>}<tool_call|>`.
    Gemma4,
    /// DeepSeek: `<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>name<｜tool▁sep｜>{…}<｜tool▁call▁end｜><｜tool▁calls▁end｜>`, before V3.1 with
    /// `function` before the separator and name and JSON in Markdown behind it. JSON as of the next format is read too.
    DeepSeek,
    /// For a model whose template has no tools: the system message requests `{"name": …, "arguments": {…}}`.
    Json,
}

/// What LFM2.5's templates write before the tools; some of them have no calls.
const LFM2_TOOLS: &str = "List of tools: [";

impl ReplyFormat {
    /// The format that `template`, a chat template, was made for. `has_tools`: the request offers tools.
    pub(crate) fn of_template(template: &str, reads_tools: bool, has_tools: bool) -> ReplyFormat {
        let has = |text: &str| template.contains(text);
        let has_role = |role: &str| has(&format!("'{role}'")) || has(&format!("\"{role}\""));
        if has("<|channel|>") {
            let tools = has_tools.then_some(ToolFormat::Json);
            return ReplyFormat { tools, harmony: true, ..ReplyFormat::default() };
        }
        let format = match () {
            // Templates that describe no tools have their calls all the same.
            () if has("<｜tool▁call▁begin｜>") => ToolFormat::DeepSeek,
            () if !reads_tools => ToolFormat::Json,
            () if has("[TOOL_CALLS]") => ToolFormat::Mistral,
            () if has("<arg_key>") => ToolFormat::Glm,
            () if has("<tool_call>") && has("<function=") => ToolFormat::Tagged,
            () if has("<|tool_call|>") => ToolFormat::Granite,
            () if has("<tool_call>") => ToolFormat::Hermes,
            () if has("<|tool_call_start|>") || has("<|tool_list_start|>") || has(LFM2_TOOLS) => ToolFormat::Lfm2,
            () if has("<function_calls>") => ToolFormat::Olmo3,
            () if has("<start_function_call>") => ToolFormat::Gemma,
            () if has("<|tool_call>") => ToolFormat::Gemma4,
            // Templates for such calls say so in these words.
            () if has("[func_name1(") => ToolFormat::Pythonic,
            () if has_role("observation") && !has_role("tool") => ToolFormat::Glm4,
            () if has("<|python_tag|>") || has("ipython") || has("<|python_start|>") => ToolFormat::Llama,
            () => ToolFormat::Json,
        };
        let think = if has("<response>") { ReasoningMarks::ThinkAndResponse } else { ReasoningMarks::Think };
        let all = [think, ReasoningMarks::ThoughtChannel, ReasoningMarks::Brackets];
        // Of a model that always reasons, the template may have nothing but the beginning: it ends the prompt.
        let found = all.into_iter().find(|marks| has(marks.closer()) || has(marks.opener().trim_end()));
        ReplyFormat {
            thinks: found.map(|_| false),
            has_thought: false,
            marks: found.unwrap_or_default(),
            tools: has_tools.then_some(format),
            harmony: false,
        }
    }

    /// The format of a reply behind `prompt`, which may end within the reasoning.
    pub fn behind(self, prompt: &str) -> ReplyFormat {
        let thinks = self.thinks.map(|thinks| thinks || self.ends_within_reasoning(prompt));
        let has_thought = thinks == Some(false) && prompt.trim_end().ends_with(self.marks.closer());
        ReplyFormat { thinks, has_thought, ..self }
    }

    /// Whether `prompt` ends where reasoning has begun.
    pub fn ends_within_reasoning(&self, prompt: &str) -> bool {
        prompt.trim_end().ends_with(self.marks.opener().trim_end())
    }

    /// The text that a call begins with, up to the first of the arguments of the tool `name`, or without one, up to the name: a reply
    /// that begins so has to be a call.
    pub fn call_beginning(&self, name: Option<&str>) -> Option<String> {
        let arguments = |key: &str| name.map(|name| format!("{name}\", \"{key}\": {{")).unwrap_or_default();
        let thought = if self.thinks == Some(true) { self.end_of_thought() } else { "" };
        let call = match (self.harmony, self.tools?) {
            (true, _) => {
                let behind = name.map(|name| format!("{name} <|constrain|>json<|message|>{{")).unwrap_or_default();
                format!("<|channel|>commentary to=functions.{behind}")
            }
            (_, ToolFormat::Hermes) => format!("<tool_call>\n{{\"name\": \"{}", arguments("arguments")),
            (_, ToolFormat::Tagged) => {
                let behind = name.map(|name| format!("{name}>\n")).unwrap_or_default();
                format!("<tool_call>\n<function={behind}")
            }
            (_, format @ (ToolFormat::Pythonic | ToolFormat::Lfm2 | ToolFormat::Olmo3)) => {
                let opener = match format {
                    ToolFormat::Lfm2 => "<|tool_call_start|>[",
                    ToolFormat::Olmo3 => "<function_calls>",
                    _ => "[",
                };
                opener.to_owned() + &name.map(|name| format!("{name}(")).unwrap_or_default()
            }
            // Whether a line break follows the name depends on the model.
            (_, ToolFormat::Glm) => format!("<tool_call>{}", name.unwrap_or_default()),
            (_, ToolFormat::Glm4) => name.map_or("{\"name\": \"".to_owned(), |name| format!("{name}\n{{")),
            (_, ToolFormat::Llama) => format!("{{\"name\": \"{}", arguments("parameters")),
            (_, format @ (ToolFormat::Mistral | ToolFormat::Granite)) => {
                format!("{}[{{\"name\": \"{}", format.openers()[0], arguments("arguments"))
            }
            (_, format @ (ToolFormat::Gemma | ToolFormat::Gemma4)) => {
                let behind = name.map(|name| format!("{name}{{")).unwrap_or_default();
                format!("{}call:{behind}", format.openers()[0])
            }
            (_, ToolFormat::DeepSeek | ToolFormat::Json) => format!("{{\"name\": \"{}", arguments("arguments")),
        };
        Some(thought.to_owned() + &call)
    }

    /// Whether the markers of the format may be special tokens, which are not text otherwise.
    pub fn needs_special_tokens(&self) -> bool {
        self.harmony || self.thinks.is_some() || self.tools.is_some_and(|format| format != ToolFormat::Json)
    }
}

impl ToolFormat {
    /// Texts that a call begins with, anywhere in the reply.
    pub fn openers(self) -> &'static [&'static str] {
        match self {
            ToolFormat::Hermes | ToolFormat::Tagged | ToolFormat::Glm => &["<tool_call>"],
            ToolFormat::Llama | ToolFormat::Pythonic => &["<|python_tag|>", "<|python_start|>"],
            ToolFormat::Lfm2 => &["<|tool_call_start|>"],
            ToolFormat::Olmo3 => &["<function_calls>"],
            ToolFormat::Mistral => &["[TOOL_CALLS]"],
            ToolFormat::Granite => &["<|tool_call|>", "<tool_call>"],
            ToolFormat::Glm4 => &["<|assistant|>"],
            ToolFormat::Gemma => &["<start_function_call>"],
            ToolFormat::Gemma4 => &["<|tool_call>"],
            ToolFormat::DeepSeek => &["<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>"],
            ToolFormat::Json => &[],
        }
    }

    /// Texts after a call that have no other meaning.
    pub fn closers(self) -> &'static [&'static str] {
        match self {
            ToolFormat::Hermes | ToolFormat::Tagged => &["</function>", "</tool_call>"],
            ToolFormat::Glm => &["</tool_call>"],
            ToolFormat::Llama | ToolFormat::Pythonic => &["<|python_end|>", "<|eom_id|>"],
            ToolFormat::Lfm2 => &["<|tool_call_end|>"],
            ToolFormat::Olmo3 => &["</function_calls>"],
            ToolFormat::Gemma => &["<end_function_call>"],
            ToolFormat::Gemma4 => &["<tool_call|>", "<|tool_response>"],
            // The arguments may stand in Markdown.
            ToolFormat::DeepSeek => &["```", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"],
            ToolFormat::Mistral | ToolFormat::Granite | ToolFormat::Glm4 | ToolFormat::Json => &[],
        }
    }

    /// Text that begins a call, and is a part of it, where a model leaves out the opener: Qwen's coders do.
    pub fn bare_opener(self) -> Option<&'static str> {
        (self == ToolFormat::Tagged).then_some("<function=")
    }

    /// Texts of calls that end reasoning, whose closer Qwen 3.5 may leave out before them.
    pub fn ends_reasoning(self) -> &'static [&'static str] {
        match self {
            ToolFormat::Tagged => &["<tool_call>\n<function=", "<tool_call><function="],
            _ => &[],
        }
    }

    /// The text on both sides of a text in Gemma's calls; `None`: arguments are written otherwise.
    pub fn text_mark(self) -> Option<&'static str> {
        match self {
            ToolFormat::Gemma => Some("<escape>"),
            ToolFormat::Gemma4 => Some("<|\"|>"),
            _ => None,
        }
    }

    /// Whether calls may be a list of Python's.
    pub(super) fn reads_python(self) -> bool {
        matches!(self, ToolFormat::Llama | ToolFormat::Pythonic | ToolFormat::Lfm2)
    }

    /// Whether calls in JSON may be in a list.
    pub(super) fn reads_lists(self) -> bool {
        let has_lists =
            matches!(self, ToolFormat::Mistral | ToolFormat::Granite | ToolFormat::DeepSeek | ToolFormat::Json);
        has_lists || self.reads_python()
    }

    /// Whether a reply that begins as JSON, or as a list of calls, may be one.
    pub fn is_bare(self) -> bool {
        use ToolFormat::{DeepSeek, Glm4, Json, Llama, Pythonic};
        matches!(self, Llama | Pythonic | Glm4 | DeepSeek | Json)
    }

    /// Whether the name of a tool may stand before its arguments, which are JSON.
    pub fn has_names_before_json(self) -> bool {
        matches!(self, ToolFormat::Mistral | ToolFormat::Glm4 | ToolFormat::DeepSeek)
    }
}
