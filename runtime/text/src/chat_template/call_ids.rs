//! Ids of calls for Mistral's chat templates, which refuse a conversation unless each has nine letters or digits. Clients return what
//! a server gave them, which is longer, or have none.

use std::collections::{BTreeMap, VecDeque};

use serde_json::Value;

use super::message::Message;

const ID_BYTES: usize = 9;

/// The same conversation with such ids: a call's is kept where it is one, and else its number, and a result has that of its call.
pub(super) fn with_short_ids(messages: &[Message]) -> Vec<Message> {
    let mut ids = ShortIds::default();
    let mut messages = messages.to_vec();
    for message in &mut messages {
        if let Some(Value::Array(calls)) = message.fields.get_mut("tool_calls") {
            calls.iter_mut().filter(|call| call.is_object()).for_each(|call| call["id"] = ids.of_call(&call["id"]));
        }
        if message.role == "tool" {
            let id = ids.of_result(message.fields.get("tool_call_id").unwrap_or(&Value::Null));
            message.fields.insert("tool_call_id".to_owned(), id);
        }
    }
    messages
}

#[derive(Default)]
struct ShortIds {
    count: usize,
    /// Short id of each that a client gave.
    known: BTreeMap<String, String>,
    /// Short ids of calls whose results are still to come.
    open: VecDeque<String>,
}

impl ShortIds {
    fn of_call(&mut self, id: &Value) -> Value {
        let short = self.short(id);
        self.open.push_back(short.clone());
        short.into()
    }

    /// A result without an id belongs to the first call that has no result.
    fn of_result(&mut self, id: &Value) -> Value {
        let known = id.as_str().and_then(|id| self.known.get(id)).cloned();
        let short = known.or_else(|| self.open.front().filter(|_| id.is_null()).cloned());
        let short = short.unwrap_or_else(|| self.short(id));
        self.open.retain(|open| *open != short);
        short.into()
    }

    fn short(&mut self, id: &Value) -> String {
        self.count += 1;
        let given = id.as_str();
        let is_short = |id: &&str| id.len() == ID_BYTES && id.bytes().all(|byte| byte.is_ascii_alphanumeric());
        let short = given.filter(is_short).map_or_else(|| format!("{:0ID_BYTES$}", self.count), str::to_owned);
        self.known.extend(given.map(|given| (given.to_owned(), short.clone())));
        short
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn call(id: &Value) -> Message {
        let mut message = Message::new("assistant", "");
        let call = json!({"id": id, "type": "function", "function": {"name": "add", "arguments": {}}});
        message.fields.insert("tool_calls".to_owned(), json!([call, call]));
        if let Some(Value::Array(calls)) = message.fields.get_mut("tool_calls") {
            calls[1]["id"] = id.as_str().map(|id| id.to_uppercase()).into();
        }
        message
    }

    fn result(id: &Value) -> Message {
        let mut message = Message::new("tool", "3");
        if !id.is_null() {
            message.fields.insert("tool_call_id".to_owned(), id.clone());
        }
        message
    }

    /// Ids of two calls, and of the results of the second and of the first.
    fn ids(id: Value) -> [String; 4] {
        let other: Value = id.as_str().map(|id| id.to_uppercase()).into();
        let messages = with_short_ids(&[call(&id), result(&other), result(&id)]);
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let calls = &messages[0].fields["tool_calls"];
        let results = [1, 2].map(|at| text(&messages[at].fields["tool_call_id"]));
        [text(&calls[0]["id"]), text(&calls[1]["id"]), results[0].clone(), results[1].clone()]
    }

    #[test]
    fn an_id_has_nine_letters_or_digits_and_a_result_that_of_its_call() {
        assert_eq!(ids(json!("call_8f3a")), ["000000001", "000000002", "000000002", "000000001"]);
        assert_eq!(ids(json!("a1b2c3d4e")), ["a1b2c3d4e", "A1B2C3D4E", "A1B2C3D4E", "a1b2c3d4e"]);
        assert_eq!(ids(Value::Null), ["000000001", "000000002", "000000001", "000000002"]);
        let alone = with_short_ids(&[result(&json!("unknown"))]);
        assert_eq!(alone[0].fields["tool_call_id"], "000000001");
    }
}
