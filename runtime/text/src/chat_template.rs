//! The model's chat template: Jinja as transformers runs it, with Python's methods on strings and dictionaries.

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Kwargs;
use minijinja::{Environment, Error, ErrorKind, Value, context};
use unicorn_artifact::TokenizerSection;

use crate::error::TextError;
use crate::strftime::strftime_now;

/// One message of a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// `system`, `user`, `assistant`, or another role that the template has.
    pub role: String,
    /// The text.
    pub content: String,
}

/// A model's chat template, parsed. May be used by several threads at once.
pub struct ChatTemplate {
    environment: Environment<'static>,
    bos_token: Option<String>,
    eos_token: Option<String>,
}

impl ChatTemplate {
    /// Parses the template of an artifact's tokenizer section.
    ///
    /// # Errors
    /// [`TextError::NoChatTemplate`] or [`TextError::ChatTemplate`].
    pub fn new(section: &TokenizerSection) -> Result<ChatTemplate, TextError> {
        let source = section.chat_template.as_ref().ok_or(TextError::NoChatTemplate)?;
        let mut environment = environment();
        environment
            .add_template_owned(TEMPLATE_NAME, without_generation_tags(source))
            .map_err(|error| TextError::ChatTemplate { detail: error.to_string() })?;
        Ok(ChatTemplate { environment, bos_token: section.bos_token.clone(), eos_token: section.eos_token.clone() })
    }

    /// The conversation as the text that the model was trained on, up to where its next answer begins. Special tokens are written
    /// out: encode it with [`Tokenizer::encode`](crate::Tokenizer::encode), which adds none.
    ///
    /// # Errors
    /// [`TextError::Conversation`], with the template's message if it rejects the conversation (`raise_exception`).
    pub fn render(&self, messages: &[Message]) -> Result<String, TextError> {
        let template = self.environment.get_template(TEMPLATE_NAME).expect("added in new");
        template
            .render(context! {
                messages => messages.iter().map(Message::value).collect::<Vec<_>>(),
                bos_token => self.bos_token.as_deref(),
                eos_token => self.eos_token.as_deref(),
                add_generation_prompt => true,
                tools => (),
                documents => (),
            })
            .map_err(|error| TextError::Conversation { detail: error.to_string() })
    }
}

impl Message {
    /// A message of `role` with the text `content`.
    pub fn new(role: &str, content: impl Into<String>) -> Message {
        Message { role: role.to_owned(), content: content.into() }
    }

    /// A dictionary, as templates expect it.
    fn value(&self) -> Value {
        context! { role => self.role.as_str(), content => self.content.as_str() }
    }
}

/// Without a file extension, so that nothing is escaped as HTML.
const TEMPLATE_NAME: &str = "chat";

fn environment() -> Environment<'static> {
    let syntax =
        SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build().expect("constant settings are valid");
    let mut environment = Environment::new();
    environment.set_syntax(syntax);
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.add_function("raise_exception", raise_exception);
    environment.add_function("strftime_now", |format: &str| strftime_now(format));
    environment.add_filter("tojson", tojson);
    environment
}

fn raise_exception(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message))
}

/// Python's `json.dumps(value, ensure_ascii=False, indent=indent)`. Other options that templates pass are the default here.
fn tojson(value: &Value, options: Kwargs) -> Result<String, Error> {
    let json = minijinja::filters::tojson(value, options.get("indent")?, Kwargs::from_iter::<[(&str, Value); 0]>([]))?;
    Ok(without_html_escapes(json.as_str().unwrap_or_default()))
}

/// The engine's own filter escapes `<`, `>`, `&` and `'` for HTML; transformers does not.
fn without_html_escapes(json: &str) -> String {
    let mut result = String::with_capacity(json.len());
    let mut rest = json;
    while let Some(start) = rest.find('\\') {
        result += &rest[..start];
        rest = &rest[start..];
        let html = [(r"\u003c", '<'), (r"\u003e", '>'), (r"\u0026", '&'), (r"\u0027", '\'')];
        match html.into_iter().find(|(escape, _)| rest.starts_with(escape)) {
            Some((escape, letter)) => {
                result.push(letter);
                rest = &rest[escape.len()..];
            }
            // An escape of JSON's own: its second character may be a backslash that begins nothing.
            None => {
                result += &rest[..2];
                rest = &rest[2..];
            }
        }
    }
    result + rest
}

/// Transformers marks the assistant's text with `{% generation %}` for training. Jinja has no such block, so it becomes
/// `if true`.
fn without_generation_tags(source: &str) -> String {
    let mut result = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let Some(len) = rest[start..].find("%}") else { break };
        let (before, tag) = (&rest[..start], &rest[start..start + len]);
        result += before;
        result += &match tag.trim_matches(|letter: char| "{%-+ \n".contains(letter)) {
            "generation" => tag.replace("generation", "if true"),
            "endgeneration" => tag.replace("endgeneration", "endif"),
            _ => tag.to_owned(),
        };
        rest = &rest[start + len..];
    }
    result + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    const GEMMA: &str = "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'assistant' %}\
        {% set role = 'model' %}{% else %}{% set role = message['role'] %}{% endif %}\
        {{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}{% endfor %}\
        {% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}";

    const CHATML: &str = "{%- if messages[0]['role'] == 'system' %}\n    {{- '<|im_start|>system\\n' + \
        messages[0].content + '<|im_end|>\\n' }}\n{%- endif %}\n{%- for message in messages %}\n    \
        {%- if (message.role == \"user\") or (message.role == \"system\" and not loop.first) or \
        message.role.startswith('assist') %}\n        {{- '<|im_start|>' + message.role + '\\n' + message.content + \
        '<|im_end|>' + '\\n' }}\n    {%- endif %}\n{%- endfor %}\n{%- if add_generation_prompt %}\n    \
        {{- '<|im_start|>assistant\\n' }}\n{%- endif %}\n";

    const LLAMA3: &str = "{{- bos_token }}\n{%- if not tools is defined %}\n    {%- set tools = none %}\n{%- endif %}\n\
        {%- if messages[0]['role'] == 'system' %}\n    {%- set system_message = messages[0]['content']|trim %}\n    \
        {%- set messages = messages[1:] %}\n{%- else %}\n    {%- set system_message = \"\" %}\n{%- endif %}\n\
        {{- \"<|start_header_id|>system<|end_header_id|>\\n\\n\" }}\n{%- if tools is not none %}\n    \
        {{- \"Environment: ipython\\n\" }}\n{%- endif %}\n{{- system_message }}\n{{- \"<|eot_id|>\" }}\n\
        {%- for message in messages %}\n    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ \
        message['content'] | trim + '<|eot_id|>' }}\n{%- endfor %}\n{%- if add_generation_prompt %}\n    \
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}\n{%- endif %}\n";

    fn template(source: &str) -> Result<ChatTemplate, TextError> {
        ChatTemplate::new(&TokenizerSection {
            chat_template: Some(source.into()),
            bos_token: Some("<bos>".into()),
            eos_token: Some("<eos>".into()),
            ..TokenizerSection::default()
        })
    }

    fn render(source: &str, turns: &[(&'static str, &str)]) -> String {
        let messages: Vec<Message> = turns.iter().map(|&(role, content)| Message::new(role, content)).collect();
        template(source).unwrap().render(&messages).unwrap()
    }

    #[test]
    fn gemma() {
        assert_eq!(
            render(GEMMA, &[("user", " Hi <b> "), ("assistant", "Hello"), ("user", "Bye")]),
            "<bos><start_of_turn>user\nHi <b><end_of_turn>\n<start_of_turn>model\nHello<end_of_turn>\n\
             <start_of_turn>user\nBye<end_of_turn>\n<start_of_turn>model\n"
        );
    }

    #[test]
    fn chatml() {
        assert_eq!(
            render(CHATML, &[("system", "Be brief."), ("user", "Hi"), ("assistant", "Ho"), ("user", "1 & 2")]),
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHo<|im_end|>\n\
             <|im_start|>user\n1 & 2<|im_end|>\n<|im_start|>assistant\n"
        );
    }

    #[test]
    fn llama3() {
        assert_eq!(
            render(LLAMA3, &[("system", " Be brief. "), ("user", "Hi")]),
            "<bos><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|><|start_header_id|>user<|end_header_id|>\
             \n\nHi<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
        );
    }

    #[test]
    fn blocks_leave_no_line_of_their_own() {
        let source =
            "{% for message in messages %}\n  {% if true %}\n{{ message.content }}\n  {% endif %}\n{% endfor %}\n";
        assert_eq!(render(source, &[("user", "a"), ("user", "b")]), "a\nb\n");
    }

    #[test]
    fn functions_and_blocks_of_transformers_are_supported() {
        assert_eq!(
            render("{{ messages[0] | tojson }}", &[("user", r"<a>\u003cé")]),
            r#"{"role": "user", "content": "<a>\\u003cé"}"#
        );
        assert_eq!(render("{{ [1, 2] | tojson(indent=1, ensure_ascii=false) }}", &[]), "[\n 1,\n 2\n]");
        assert_eq!(render("{{ strftime_now('%Y') | length }}", &[]), "4");
        assert_eq!(render("a{%- generation -%} b {%- endgeneration %}c", &[]), "abc");
        assert_eq!(
            render("{% for x in [1, 2, 3] %}{% if x == 2 %}{% break %}{% endif %}{{ x }}{% endfor %}", &[]),
            "1"
        );
    }

    #[test]
    fn a_template_s_own_error_is_quoted() {
        let error = template("{{ raise_exception('roles must alternate') }}").unwrap().render(&[]).unwrap_err();
        assert!(matches!(error, TextError::Conversation { detail } if detail.contains("roles must alternate")));
        assert!(template("{% for %}").is_err());
    }
}
