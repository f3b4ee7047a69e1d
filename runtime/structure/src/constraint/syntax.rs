//! How the calls of a format are written.

use unicorn_text::ToolFormat;

use super::search::end_of;
use crate::call_head::{Head, keyed_head, python_call_head, python_head, tagged_head};

/// How calls are written that are neither JSON nor Gemma's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Syntax {
    /// Qwen's tags.
    Tags,
    /// GLM's name and tags.
    Keyed,
    /// A list of Python's calls.
    Python,
    /// The same with JSON's literals beside Python's, as LFM2's chat template writes them within objects.
    PythonOrJson,
    /// Such calls one by one, without a list around them.
    Lines,
}

impl Syntax {
    pub(super) fn of(kind: ToolFormat) -> Option<Syntax> {
        match kind {
            ToolFormat::Hermes | ToolFormat::Tagged => Some(Syntax::Tags),
            ToolFormat::Glm => Some(Syntax::Keyed),
            ToolFormat::Llama | ToolFormat::Pythonic => Some(Syntax::Python),
            ToolFormat::Lfm2 => Some(Syntax::PythonOrJson),
            ToolFormat::Olmo3 => Some(Syntax::Lines),
            _ => None,
        }
    }

    /// The format whose calls are always written so.
    pub(super) fn format(self) -> ToolFormat {
        match self {
            Syntax::Tags => ToolFormat::Tagged,
            Syntax::Keyed => ToolFormat::Glm,
            Syntax::Python => ToolFormat::Pythonic,
            Syntax::PythonOrJson => ToolFormat::Lfm2,
            Syntax::Lines => ToolFormat::Olmo3,
        }
    }

    /// Where the grammar of calls begins in the beginning of one.
    pub(super) fn begins(self, beginning: &str) -> Option<usize> {
        match self {
            Syntax::Tags => beginning.find("<function="),
            Syntax::Keyed => end_of(beginning.as_bytes(), "<tool_call>"),
            Syntax::Python | Syntax::PythonOrJson => beginning.find('['),
            Syntax::Lines => end_of(beginning.as_bytes(), "<function_calls>"),
        }
    }

    /// Whether a call may follow another one at once.
    pub(super) fn is_listed(self) -> bool {
        self != Syntax::Keyed
    }

    pub(super) fn head(self, text: &str) -> Head<'_> {
        match self {
            Syntax::Tags => tagged_head(text),
            Syntax::Keyed => keyed_head(text),
            Syntax::Python | Syntax::PythonOrJson => python_head(text),
            Syntax::Lines => python_call_head(text),
        }
    }
}
