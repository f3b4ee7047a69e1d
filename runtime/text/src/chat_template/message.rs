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
}

impl Message {
    /// A message of `role` with the text `content`.
    pub fn new(role: &str, content: impl Into<String>) -> Message {
        Message { role: role.to_owned(), content: content.into(), fields: serde_json::Map::new(), images: Vec::new() }
    }

    /// The same with these images before the text.
    #[must_use]
    pub fn with_images(mut self, images: Vec<Image>) -> Message {
        self.content.insert_str(0, &IMAGE_MARK.to_string().repeat(images.len()));
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

    /// A dictionary, as templates expect it.
    pub(super) fn value(&self) -> Value {
        let texts = [("role", &self.role), ("content", &self.content)];
        let texts = texts.into_iter().map(|(name, text)| (name, Value::from(text.as_str())));
        let fields = self.fields.iter().map(|(name, value)| (name.as_str(), from_json(value)));
        texts.chain(fields).collect::<Dictionary>().into()
    }
}
