//! Tools of the responses API in a namespace, as Codex groups those of an MCP server. A chat template has plain functions alone: to the model,
//! each is called `NAMESPACE__NAME`, and to the client it has both parts again.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

/// Namespace and name of each tool in one, by its name for the model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Namespaces(BTreeMap<String, (String, String)>);

/// The name for the model.
pub(crate) fn joined(namespace: &str, name: &str) -> String {
    format!("{namespace}__{name}")
}

impl Namespaces {
    /// Replaces the namespaces in the tools of a request by their functions. Other tools in them are left out, as elsewhere.
    pub(crate) fn flatten(fields: &mut Map<String, Value>) -> Namespaces {
        let mut namespaces = Namespaces::default();
        if let Some(Value::Array(tools)) = fields.get_mut("tools") {
            *tools = std::mem::take(tools).into_iter().flat_map(|tool| namespaces.functions(tool)).collect();
        }
        // A choice may have the last part alone.
        if let Some(choice) = fields.get_mut("tool_choice").filter(|choice| choice["type"] == "function")
            && let Some(name) =
                namespaces.0.iter().find(|(_, (_, name))| choice["name"] == **name).map(|(name, _)| name)
        {
            choice["name"] = name.as_str().into();
        }
        namespaces
    }

    fn functions(&mut self, tool: Value) -> Vec<Value> {
        let (Some(namespace), true) = (tool["name"].as_str(), tool["type"] == "namespace") else { return vec![tool] };
        let mut function = |member: &Value| {
            let name = member["name"].as_str().filter(|_| member["type"] == "function")?;
            let mut function = member.clone();
            function["name"] = joined(namespace, name).into();
            self.0.insert(joined(namespace, name), (namespace.to_owned(), name.to_owned()));
            Some(function)
        };
        tool["tools"].as_array().into_iter().flatten().filter_map(&mut function).collect()
    }

    /// The fields that name the tool of a call, which has this name for the model.
    pub(crate) fn fields_of(&self, name: &str) -> Value {
        match self.0.get(name) {
            Some((namespace, name)) => json!({"namespace": namespace, "name": name}),
            None => json!({"name": name}),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tools_in_a_namespace_are_functions_that_have_it_in_their_name() {
        let function = |name: &str| json!({"type": "function", "name": name, "parameters": {"type": "object"}});
        let members = json!([function("list"), {"type": "custom", "name": "patch"}]);
        let tools = json!([{"type": "namespace", "name": "files", "description": "d", "tools": members}, function("add"), {"type": "web_search"}]);
        let choice = json!({"type": "function", "name": "list"});
        let mut fields = Map::from_iter([("tools".to_owned(), tools), ("tool_choice".to_owned(), choice)]);
        let namespaces = Namespaces::flatten(&mut fields);
        assert_eq!(fields["tools"], json!([function("files__list"), function("add"), {"type": "web_search"}]));
        assert_eq!(fields["tool_choice"]["name"], "files__list");
        assert_eq!(namespaces.fields_of("files__list"), json!({"namespace": "files", "name": "list"}));
        assert_eq!(namespaces.fields_of("add"), json!({"name": "add"}));
    }
}
