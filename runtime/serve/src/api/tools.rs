//! The tools of a request, and which of them the model has to call.

use serde_json::{Value, json};

use super::error::ApiError;
use super::fields::{Fields, unexpected};

/// Which tool the model has to call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToolChoice {
    /// Any or none.
    Auto,
    /// None.
    None,
    /// One at least.
    Required,
    /// The one of this name.
    Named(String),
}

impl ToolChoice {
    /// The choice among `tools`, of which those stay that it permits.
    pub(super) fn of(fields: &mut Fields, tools: &mut Vec<Value>) -> Result<ToolChoice, ApiError> {
        let Some(choice) = fields.take::<Value>("tool_choice", CHOICE)? else { return Ok(ToolChoice::Auto) };
        if choice.get("type").is_some_and(|kind| kind == "allowed_tools") {
            return allowed(&choice, tools).ok_or_else(|| unexpected("tool_choice", CHOICE, &choice));
        }
        let parsed = match choice.as_str() {
            Some("auto") => return Ok(ToolChoice::Auto),
            Some("none") => return Ok(ToolChoice::None),
            Some("required" | "any") => Some(ToolChoice::Required),
            Some(_) => None,
            None => {
                let name = choice.pointer("/function/name").or(choice.get("name")).and_then(Value::as_str);
                name.map(|name| ToolChoice::Named(name.to_owned()))
            }
        };
        let is_there = |choice: &ToolChoice| match choice {
            ToolChoice::Named(wanted) => tools.iter().any(|tool| name(tool) == wanted),
            _ => !tools.is_empty(),
        };
        parsed.filter(is_there).ok_or_else(|| unexpected("tool_choice", CHOICE, &choice))
    }
}

/// OpenAI's `allowed_tools`: some of the tools, by name, and whether one of them has to be called. Tools that are no functions are not
/// here, as elsewhere. `None`: it is something else, or names a function that is not there.
fn allowed(choice: &Value, tools: &mut Vec<Value>) -> Option<ToolChoice> {
    // Chats have an object within, responses its fields.
    let fields = choice.get("allowed_tools").unwrap_or(choice);
    let mode = match fields.get("mode")?.as_str()? {
        "auto" => ToolChoice::Auto,
        "required" => ToolChoice::Required,
        _ => return None,
    };
    let listed =
        fields.get("tools")?.as_array()?.iter().filter(|tool| tool.get("type").is_none_or(|kind| kind == "function"));
    let names: Vec<&str> =
        listed.map(|tool| tool.pointer("/function/name").or(tool.get("name"))?.as_str()).collect::<Option<_>>()?;
    if names.iter().any(|&allowed| !tools.iter().any(|tool| name(tool) == allowed)) {
        return None;
    }
    tools.retain(|tool| names.contains(&name(tool)));
    (mode == ToolChoice::Auto || !tools.is_empty()).then_some(mode)
}

const CHOICE: &str =
    "auto, none, required, one of the tools by its name, or allowed_tools with a mode and some of them";
const TOOL: &str = "an object with a type, and a function with a name";

/// The tools that are functions. Others belong to servers that run them themselves, and are left out.
pub(super) fn tools(fields: &mut Fields) -> Result<Vec<Value>, ApiError> {
    let tools: Vec<Value> = fields.take("tools", "a list of tools")?.unwrap_or_default();
    let mut functions = Vec::new();
    for (index, tool) in tools.into_iter().enumerate() {
        let function = match tool.get("type").and_then(Value::as_str) {
            // The responses API has a function's fields beside its type.
            Some("function") if tool.get("function").is_none() && tool.get("name").is_some() => {
                let mut function = tool.clone();
                function.as_object_mut().expect("it has fields").remove("type");
                json!({"type": "function", "function": function})
            }
            Some("function") => tool,
            Some(_) => continue,
            None => return Err(unexpected(&format!("tools[{index}]"), TOOL, &tool)),
        };
        if name(&function).is_empty() {
            return Err(unexpected(&format!("tools[{index}]"), TOOL, &function));
        }
        functions.push(function);
    }
    Ok(functions)
}

/// Name of a tool in OpenAI's form.
pub(crate) fn name(tool: &Value) -> &str {
    tool.pointer("/function/name").and_then(Value::as_str).unwrap_or_default()
}
