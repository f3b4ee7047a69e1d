//! One message of a conversation.

use minijinja::Value;
use unicorn_runtime::Image;

use super::dictionary::{Dictionary, from_json};
use crate::images::{IMAGE_MARK, without_marks};

/// One message of a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// `system`, `developer` (another name of `system`), `user`, `assistant`, or another role that the template has.
    pub role: String,
    /// The text, with [`IMAGE_MARK`](crate::IMAGE_MARK) in the place of each image.
    pub content: String,
    /// Further fields of the message that a template may read: `tool_calls` of the assistant, as OpenAI's API has them but with
    /// arguments as an object; `tool_call_id` and `name` of a tool's result; `reasoning_content`.
    pub fields: serde_json::Map<String, serde_json::Value>,
    /// Images in the content, in order.
    pub images: Vec<Image>,
    /// The content in parts, if it came in several: for templates that go through them.
    parts: Vec<String>,
}

impl Message {
    /// A message of `role` with the text `content`.
    pub fn new(role: &str, content: impl Into<String>) -> Message {
        Message {
            role: role.to_owned(),
            content: content.into(),
            fields: serde_json::Map::new(),
            images: Vec::new(),
            parts: Vec::new(),
        }
    }

    /// A message whose content came in parts: texts, and an [`IMAGE_MARK`](crate::IMAGE_MARK) for each image. A template that goes through
    /// parts gets those of a user; otherwise two texts are two lines, as in llama-server and vLLM.
    pub fn of_parts(role: &str, parts: Vec<String>) -> Message {
        let mut content = String::new();
        for part in &parts {
            if !content.is_empty() && !content.ends_with(IMAGE_MARK) && !part.starts_with(IMAGE_MARK) {
                content.push('\n');
            }
            content.push_str(part);
        }
        let parts = if parts.len() > 1 { parts } else { Vec::new() };
        Message { parts, ..Message::new(role, content) }
    }

    /// The same with another content, in one part.
    #[must_use]
    pub(super) fn with_content(&self, content: String) -> Message {
        Message { content, parts: Vec::new(), ..self.clone() }
    }

    /// Adds what a later message of the same role has; `between`: what separates their texts.
    pub(super) fn append(&mut self, later: Message, between: &str) {
        if self.has_parts() || later.has_parts() {
            let of = |message: &Message| {
                if message.has_parts() { message.parts.clone() } else { vec![message.content.clone()] }
            };
            self.parts = [of(self), of(&later)].concat();
        }
        join(&mut self.content, &later.content, between);
        self.images.extend(later.images);
        for (name, value) in later.fields {
            match (self.fields.get_mut(&name), value) {
                (Some(serde_json::Value::Array(list)), serde_json::Value::Array(more)) => list.extend(more),
                (Some(serde_json::Value::String(text)), serde_json::Value::String(more)) => join(text, &more, between),
                (Some(_), _) => {}
                (None, value) => {
                    self.fields.insert(name, value);
                }
            }
        }
    }

    /// The same with these images before the text.
    #[must_use]
    pub fn with_images(mut self, images: Vec<Image>) -> Message {
        self.content.insert_str(0, &IMAGE_MARK.to_string().repeat(images.len()));
        self.parts.clear();
        self.images = images;
        self
    }

    /// The content without the marks of images.
    pub fn text(&self) -> String {
        without_marks(&self.content)
    }

    /// The assistant's calls of tools.
    pub(super) fn calls(&self) -> impl Iterator<Item = &serde_json::Value> {
        self.fields.get("tool_calls").and_then(serde_json::Value::as_array).into_iter().flatten()
    }

    /// Whether it is about tools, so that a template without them has no place for it.
    pub(super) fn uses_tools(&self) -> bool {
        self.role == "tool" || self.calls().next().is_some()
    }

    /// Whether the content came in several parts.
    pub(super) fn has_parts(&self) -> bool {
        !self.parts.is_empty()
    }

    /// A dictionary, as templates expect it; `in_parts`: with the parts of a user's content, where it has several. A template that goes
    /// through those may not do so with others: Gemma 3's takes the first part of a system message alone. `thinks_in_parts`: the
    /// assistant's reasoning is a part of its content.
    pub(super) fn value(&self, in_parts: bool, thinks_in_parts: bool) -> Value {
        let reasoning = self.fields.get("reasoning_content").and_then(serde_json::Value::as_str);
        let content = match (self.role.as_str(), reasoning) {
            ("user", _) if in_parts && self.has_parts() => text_parts(&self.parts),
            ("assistant", Some(reasoning)) if thinks_in_parts && !reasoning.is_empty() => {
                let text = Some(("text", self.content.as_str())).filter(|(_, text)| !text.is_empty());
                [("thinking", reasoning)].into_iter().chain(text).map(|(kind, text)| part(kind, text)).collect()
            }
            _ => self.content.as_str().into(),
        };
        let own = [("role", self.role.as_str().into()), ("content", content)];
        let fields = self.fields.iter().map(|(name, value)| (name.as_str(), from_json(value)));
        own.into_iter().chain(fields).collect::<Dictionary>().into()
    }
}

/// Adds `later` to a text, behind `between` if both have text.
fn join(text: &mut String, later: &str, between: &str) {
    if !text.is_empty() && !later.is_empty() {
        text.push_str(between);
    }
    text.push_str(later);
}

/// A list of parts, as OpenAI's API has them and transformers gives them to templates.
pub(super) fn text_parts(texts: &[impl AsRef<str>]) -> Value {
    texts.iter().map(|text| part("text", text.as_ref())).collect()
}

/// One of them, whose text has the name of its kind.
fn part(kind: &str, text: &str) -> Value {
    [("type", kind.into()), (kind, text.into())].into_iter().collect::<Dictionary>().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_lines_and_images_are_beside_them() {
        let content =
            |parts: &[&str]| Message::of_parts("user", parts.iter().map(|part| part.to_string()).collect()).content;
        let mark = IMAGE_MARK.to_string();
        assert_eq!(content(&["a", "b"]), "a\nb");
        assert_eq!(content(&["a", &mark, &mark, "b", "c"]), format!("a{mark}{mark}b\nc"));
        assert_eq!((content(&[]), content(&["", "a"])), (String::new(), "a".to_owned()));
        assert!(!Message::of_parts("user", vec!["a".to_owned()]).has_parts());
    }
}
