//! `/v1/responses`, without state: the client sends the whole conversation each time, as Codex does.

use serde_json::{Map, Value, json};
use unicorn_text::unicorn_runtime::HostSampled;
use unicorn_text::{Delta, EndReason};

use crate::api::error::ApiError;
use crate::api::fields::unexpected;
use crate::api::namespaces::{Namespaces, joined};
use crate::api::prompt::is_content;
use crate::api::request::Request;
use crate::probabilities::Probabilities;
use crate::reply::{Reply, Usage, new_id};
use crate::writer::{ResponseWriter, Stream, prompt_progress, timings};

/// The request as one for chat completions, and the namespaces of its tools.
///
/// # Errors
/// For parameters that need state, and for items that are neither messages, reasoning, nor calls of tools and their results.
pub(crate) fn chat_request(mut fields: Map<String, Value>) -> Result<(Map<String, Value>, Namespaces), ApiError> {
    if fields.get("previous_response_id").is_some_and(|id| !id.is_null()) {
        let message = "not supported here: this server keeps no responses; expected the whole conversation in input";
        return Err(ApiError::parameter("previous_response_id", message));
    }
    let mut messages = Vec::new();
    if let Some(instructions) = fields.remove("instructions").filter(|value| !value.is_null()) {
        messages.push(json!({"role": "system", "content": instructions}));
    }
    match fields.remove("input") {
        Some(Value::String(text)) => messages.push(json!({"role": "user", "content": text})),
        Some(Value::Array(items)) => {
            let mut reasoning = String::new();
            for (index, item) in items.iter().enumerate() {
                add_item(item, &mut messages, &mut reasoning)
                    .ok_or_else(|| unexpected(&format!("input[{index}]"), ITEM, item))?;
            }
        }
        other => return Err(unexpected("input", "a text or a list of items", &other.unwrap_or_default())),
    }
    fields.insert("messages".into(), messages.into());
    if let Some(limit) = fields.remove("max_output_tokens") {
        fields.insert("max_tokens".into(), limit);
    }
    if let Some(effort) = fields.remove("reasoning").as_ref().and_then(|reasoning| reasoning.get("effort")) {
        fields.insert("reasoning_effort".into(), effort.clone());
    }
    if let Some(format) = fields.remove("text").as_ref().and_then(|text| text.get("format")) {
        fields.insert("response_format".into(), format.clone());
    }
    // They are requested by a number, or by a word in a list.
    let wants =
        |list: &Value| list.as_array().is_some_and(|list| list.contains(&"message.output_text.logprobs".into()));
    let top = fields.get("top_logprobs").is_some_and(|top| !top.is_null() && *top != 0);
    if top || fields.get("include").is_some_and(wants) {
        fields.insert("logprobs".into(), true.into());
    }
    let namespaces = Namespaces::flatten(&mut fields);
    Ok((fields, namespaces))
}

const ITEM: &str = "a message of text and images, reasoning, a function_call or custom_tool_call, or the output of one";

/// Adds an item to the messages. `reasoning`: what precedes the next message of the assistant, of which it becomes a part; templates leave
/// out that of earlier turns.
fn add_item(item: &Value, messages: &mut Vec<Value>, reasoning: &mut String) -> Option<()> {
    match item.get("type").and_then(Value::as_str).unwrap_or("message") {
        "message" => {
            let content = item.get("content").filter(|content| is_content(content))?;
            let role = item.get("role")?;
            let mut message = json!({"role": role, "content": content});
            let reasoning = std::mem::take(reasoning);
            if role == "assistant" && !reasoning.is_empty() {
                message["reasoning_content"] = reasoning.into();
            }
            messages.push(message);
        }
        "reasoning" => {
            let texts = |name: &str| -> Option<String> {
                item.get(name)?.as_array()?.iter().map(|part| part.get("text")?.as_str()).collect()
            };
            // What is encrypted can be read by its vendor alone.
            *reasoning += &texts("content").filter(|text| !text.is_empty()).or(texts("summary")).unwrap_or_default();
        }
        kind @ ("function_call" | "custom_tool_call") => {
            // The input of a custom tool is a text.
            let arguments = match kind {
                "function_call" => item.get("arguments")?.clone(),
                _ => json!({"input": item.get("input")?.as_str()?}),
            };
            let name = item.get("name")?;
            let namespace = item.get("namespace").and_then(Value::as_str);
            let name = namespace.zip(name.as_str()).map_or_else(|| name.clone(), |(of, name)| joined(of, name).into());
            let function = json!({"name": name, "arguments": arguments});
            let call = json!({"id": item.get("call_id")?, "type": "function", "function": function});
            // Calls that were made together are one message.
            if messages.last().is_none_or(|last| last["role"] != "assistant") {
                messages.push(json!({"role": "assistant", "content": null}));
            }
            let last = messages.last_mut()?;
            match last.get_mut("tool_calls").and_then(Value::as_array_mut) {
                Some(calls) => calls.push(call),
                None => last["tool_calls"] = json!([call]),
            }
            if !reasoning.is_empty() {
                let before = last["reasoning_content"].as_str().unwrap_or_default();
                last["reasoning_content"] = format!("{before}{}", std::mem::take(reasoning)).into();
            }
        }
        "function_call_output" | "custom_tool_call_output" => {
            let output = item.get("output")?;
            let output = match is_content(output) {
                true => output.clone(),
                false => output.to_string().into(),
            };
            messages.push(json!({"role": "tool", "tool_call_id": item.get("call_id")?, "content": output}));
        }
        // Its vendor ran the tool, whose answer follows as a message.
        "web_search_call" => {}
        _ => return None,
    }
    Some(())
}

/// Writes the response, of one choice, as items.
pub(crate) struct Responses {
    id: String,
    created: u64,
    model: String,
    namespaces: Namespaces,
    /// Items that have begun; the last of them may go on.
    items: Vec<Item>,
    /// `None`: they were not requested.
    probabilities: Option<Probabilities>,
    timings_per_token: bool,
    return_progress: bool,
    /// Number of the next event.
    sequence: u32,
}

struct Item {
    id: String,
    kind: Kind,
    /// Text of reasoning or of a message: of several, each has its own.
    text: String,
    is_done: bool,
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Reasoning,
    Message,
    /// The call of this number.
    Call(usize),
}

impl Responses {
    /// The response to `request`.
    pub(crate) fn new(created: u64, model: &str, request: &Request, probabilities: Option<Probabilities>) -> Responses {
        let &Request { timings_per_token, return_progress, .. } = request;
        let (id, model, namespaces) = (new_id("resp_"), model.to_owned(), request.namespaces.clone());
        let items = Vec::new();
        Responses {
            id,
            created,
            model,
            namespaces,
            items,
            probabilities,
            timings_per_token,
            return_progress,
            sequence: 0,
        }
    }

    fn object(&self, status: &str, output: &[Value], reply: &Reply) -> Value {
        let usage = Usage::of(std::slice::from_ref(reply), 1);
        let is_cut = status == "incomplete";
        json!({
            "id": self.id, "object": "response", "created_at": self.created, "status": status, "model": self.model,
            "error": null, "incomplete_details": is_cut.then(|| json!({"reason": "max_output_tokens"})),
            "output": output, "parallel_tool_calls": true, "tool_choice": "auto", "tools": [],
            "usage": {
                "input_tokens": usage.prompt_tokens, "input_tokens_details": {"cached_tokens": usage.cached_tokens},
                "output_tokens": usage.completion_tokens,
                "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
                "total_tokens": usage.prompt_tokens + usage.completion_tokens,
            },
        })
    }

    fn item(&self, item: &Item, reply: &Reply) -> Value {
        let status = if item.is_done { "completed" } else { "in_progress" };
        // What an item that has just begun holds comes with its own events.
        let now = |text: &str| if item.is_done { text.to_owned() } else { String::new() };
        match item.kind {
            Kind::Reasoning => {
                let content = json!([{"type": "reasoning_text", "text": now(&item.text)}]);
                json!({"type": "reasoning", "id": item.id, "summary": [], "content": content, "status": status})
            }
            Kind::Message => {
                let content = if item.is_done { json!([self.text_part(item, reply)]) } else { json!([]) };
                json!({"type": "message", "id": item.id, "role": "assistant", "content": content, "status": status})
            }
            Kind::Call(index) => {
                let call = &reply.calls[index];
                let mut object = self.namespaces.fields_of(&call.name);
                object["type"] = "function_call".into();
                (object["id"], object["call_id"]) = (json!(item.id), json!(call.id));
                (object["arguments"], object["status"]) = (now(&call.arguments).into(), status.into());
                object
            }
        }
    }

    /// The whole text of a message.
    fn text_part(&self, item: &Item, reply: &Reply) -> Value {
        text_part(&item.text, self.logprobs(reply.answer_probabilities()))
    }

    fn logprobs(&self, tokens: &[HostSampled]) -> Value {
        self.probabilities.as_ref().map_or(json!([]), |probabilities| probabilities.list(tokens))
    }

    fn event(&mut self, mut event: Value, out: &mut Stream) {
        event["sequence_number"] = self.sequence.into();
        self.sequence += 1;
        out.typed(&event);
    }

    /// Makes the last item one of this kind.
    fn go_on(&mut self, kind: Kind, reply: &Reply, out: &mut Stream) {
        if self.items.last().is_some_and(|last| last.kind == kind && !last.is_done) {
            return;
        }
        self.end_item(reply, out);
        let prefix = match kind {
            Kind::Reasoning => "rs_",
            Kind::Message => "msg_",
            Kind::Call(_) => "fc_",
        };
        let item = Item { id: new_id(prefix), kind, text: String::new(), is_done: false };
        let (index, id, value) = (self.items.len(), item.id.clone(), self.item(&item, reply));
        self.items.push(item);
        self.event(json!({"type": "response.output_item.added", "output_index": index, "item": value}), out);
        if kind == Kind::Message {
            let part = json!({
                "type": "response.content_part.added", "item_id": id, "output_index": index, "content_index": 0,
                "part": text_part("", json!([])),
            });
            self.event(part, out);
        }
    }

    /// Ends the last item.
    fn end_item(&mut self, reply: &Reply, out: &mut Stream) {
        let Some(index) = self.items.len().checked_sub(1).filter(|&last| !self.items[last].is_done) else { return };
        self.items[index].is_done = true;
        let (id, kind, text) = (self.items[index].id.clone(), self.items[index].kind, self.items[index].text.clone());
        let at = json!({"item_id": id, "output_index": index, "content_index": 0});
        let with = |kind: &str, name: &str, value: Value| {
            let mut event = at.clone();
            event["type"] = kind.into();
            event[name] = value;
            event
        };
        match kind {
            Kind::Reasoning => self.event(with("response.reasoning_text.done", "text", json!(text)), out),
            Kind::Message => {
                self.event(with("response.output_text.done", "text", json!(text)), out);
                let part = self.text_part(&self.items[index], reply);
                self.event(with("response.content_part.done", "part", part), out);
            }
            Kind::Call(call) => {
                let arguments = json!(reply.calls[call].arguments);
                self.event(with("response.function_call_arguments.done", "arguments", arguments), out);
            }
        }
        let item = self.item(&self.items[index], reply);
        self.event(json!({"type": "response.output_item.done", "output_index": index, "item": item}), out);
    }

    fn output(&self, reply: &Reply) -> Vec<Value> {
        self.items.iter().map(|item| self.item(item, reply)).collect()
    }
}

fn text_part(text: &str, logprobs: Value) -> Value {
    json!({"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs})
}

fn status(reply: &Reply) -> &'static str {
    match reply.reason() {
        EndReason::StopToken | EndReason::StopString => "completed",
        _ => "incomplete",
    }
}

impl ResponseWriter for Responses {
    fn whole(&mut self, replies: &[Reply]) -> Value {
        let reply = &replies[0];
        let kinds = [(Kind::Reasoning, !reply.reasoning.is_empty()), (Kind::Message, !reply.content.is_empty())];
        let mut kinds: Vec<Kind> = kinds.into_iter().filter(|(_, is_there)| *is_there).map(|(kind, _)| kind).collect();
        kinds.extend((0..reply.calls.len()).map(Kind::Call));
        if kinds.is_empty() {
            kinds.push(Kind::Message);
        }
        for kind in kinds {
            self.go_on(kind, reply, &mut Stream::default());
            let text = match kind {
                Kind::Reasoning => reply.reasoning.as_str(),
                Kind::Message => reply.content.as_str(),
                Kind::Call(_) => "",
            };
            self.items.iter_mut().next_back().expect("it has begun").text.push_str(text);
        }
        self.end_item(reply, &mut Stream::default());
        self.object(status(reply), &self.output(reply), reply)
    }

    fn begin(&mut self, choice: usize, replies: &[Reply], out: &mut Stream) {
        let response = self.object("in_progress", &[], &replies[choice]);
        self.event(json!({"type": "response.created", "response": response}), out);
        self.event(json!({"type": "response.in_progress", "response": response}), out);
    }

    fn progress(&mut self, choice: usize, replies: &[Reply], out: &mut Stream) {
        if !self.return_progress {
            return;
        }
        let reply = &replies[choice];
        let response = self.object("in_progress", &[], reply);
        let mut event = json!({
            "type": "response.in_progress", "response": response, "prompt_progress": prompt_progress(reply),
        });
        if self.timings_per_token {
            event["timings"] = timings(reply);
        }
        self.event(event, out);
    }

    fn add(&mut self, choice: usize, deltas: &[Delta], tokens: &[u32], replies: &[Reply], out: &mut Stream) {
        let reply = &replies[choice];
        for delta in deltas {
            let (kind, name, text) = match delta {
                Delta::Reasoning(text) => (Kind::Reasoning, "response.reasoning_text.delta", text.as_str()),
                Delta::Content(text) => (Kind::Message, "response.output_text.delta", text.as_str()),
                Delta::CallBegin { index, .. } => (Kind::Call(*index as usize), "", ""),
                Delta::CallArguments { index, json } => {
                    (Kind::Call(*index as usize), "response.function_call_arguments.delta", json.as_str())
                }
            };
            self.go_on(kind, reply, out);
            if !name.is_empty() {
                let index = self.items.len() - 1;
                let id = self.items[index].id.clone();
                if !matches!(kind, Kind::Call(_)) {
                    self.items[index].text.push_str(text);
                }
                let new = if kind == Kind::Message { reply.last_probabilities(tokens.len()) } else { &[] };
                let mut event = json!({
                    "type": name, "item_id": id, "output_index": index, "content_index": 0, "delta": text,
                    "logprobs": self.logprobs(new),
                });
                if self.timings_per_token {
                    event["timings"] = timings(reply);
                }
                self.event(event, out);
            }
        }
    }

    fn end(&mut self, choice: usize, replies: &[Reply], out: &mut Stream) {
        self.end_item(&replies[choice], out);
    }

    fn finish(&mut self, replies: &[Reply], out: &mut Stream) {
        let reply = &replies[0];
        let status = status(reply);
        let response = self.object(status, &self.output(reply), reply);
        // Clients wait for this event, also where a limit ended the text.
        let kind = format!("response.{status}");
        self.event(json!({"type": kind, "response": response, "timings": timings(reply)}), out);
    }

    fn fail(&mut self, error: &ApiError, out: &mut Stream) {
        let error = &error.json()["error"];
        let (kind, message) = (&error["type"], &error["message"]);
        self.event(json!({"type": "error", "code": kind, "message": message, "param": error["param"]}), out);
        // OpenAI's libraries raise an error at that event; Codex reads this one alone.
        let response = json!({
            "id": self.id, "object": "response", "created_at": self.created, "status": "failed", "model": self.model,
            "error": {"code": kind, "message": message}, "incomplete_details": null, "output": [],
            "parallel_tool_calls": true, "tool_choice": "auto", "tools": [], "usage": null,
        });
        self.event(json!({"type": "response.failed", "response": response}), out);
    }
}

#[cfg(test)]
mod tests {
    use unicorn_text::{ReplyFormat, ReplyParser, ToolFormat, default_sampling};

    use super::*;
    use crate::api::request::Endpoint;

    fn chat(body: Value) -> Result<Value, String> {
        let Value::Object(fields) = body else { panic!("an object") };
        chat_request(fields).map(|(fields, _)| Value::Object(fields)).map_err(|error| error.message)
    }

    #[test]
    fn messages_on_both_sides_of_a_call_have_their_own_text() {
        let mut format = ReplyFormat::default();
        format.tools = Some(ToolFormat::Hermes);
        let body = json!({"messages": [{"role": "user", "content": "a"}]}).to_string();
        let request = Request::parse(Endpoint::ChatCompletions, body.as_bytes(), &default_sampling()).unwrap();
        let mut writer = Responses::new(0, "m", &request, None);
        let mut replies = [Reply::new(1, Some(ReplyParser::new(&format, ["f"])), false)];
        for text in ["I look.", "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>", "Done."] {
            let deltas = replies[0].push(text.to_owned(), &[1], Vec::new());
            writer.add(0, &deltas, &[1], &replies, &mut Stream::default());
        }
        writer.end_item(&replies[0], &mut Stream::default());
        let texts: Vec<Value> =
            writer.output(&replies[0]).iter().map(|item| item["content"][0]["text"].clone()).collect();
        assert_eq!(texts, [json!("I look."), Value::Null, json!("\nDone.")]);
    }

    #[test]
    fn reasoning_belongs_to_the_message_or_call_behind_it() {
        let reasoning = |text: &str| json!({"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": text}]});
        let call = |id: &str| json!({"type": "function_call", "call_id": id, "name": "f", "arguments": "{}"});
        let output = |id: &str| json!({"type": "function_call_output", "call_id": id, "output": "b"});
        let summary = json!({"type": "reasoning", "summary": [{"type": "summary_text", "text": "In short."}]});
        let messages = chat(json!({"input": [
            {"role": "user", "content": "a"}, reasoning("One."), {"type": "web_search_call", "id": "w"}, call("1"), call("2"), output("1"), output("2"),
            reasoning("Two."), {"role": "assistant", "content": "c"}, summary, call("3"),
        ]}))
        .unwrap()["messages"]
            .take();
        let called = |id: &str| json!({"id": id, "type": "function", "function": {"name": "f", "arguments": "{}"}});
        assert_eq!(
            messages[1],
            json!({"role": "assistant", "content": null, "tool_calls": [called("1"), called("2")], "reasoning_content": "One."})
        );
        assert_eq!(
            messages[4],
            json!({"role": "assistant", "content": "c", "tool_calls": [called("3")], "reasoning_content": "Two.In short."})
        );
    }

    #[test]
    fn calls_of_custom_tools_and_images_of_results_are_messages() {
        let image = json!({"type": "input_image", "image_url": "data:image/png;base64,QUI="});
        let items = json!([
            {"type": "custom_tool_call", "call_id": "1", "name": "patch", "input": "*** Begin"},
            {"type": "custom_tool_call_output", "call_id": "1", "output": [{"type": "input_text", "text": "done"}, image]},
        ]);
        let messages = chat(json!({"input": items})).unwrap()["messages"].take();
        let function = &messages[0]["tool_calls"][0]["function"];
        assert_eq!(function, &json!({"name": "patch", "arguments": {"input": "*** Begin"}}));
        assert_eq!((&messages[1]["role"], &messages[1]["content"][1]), (&json!("tool"), &image));
        for wrong in
            [json!({"type": "custom_tool_call", "call_id": "1", "name": "p"}), json!({"type": "item_reference"})]
        {
            assert!(chat(json!({"input": [wrong]})).unwrap_err().starts_with("input[0]: expected a message"));
        }
    }

    #[test]
    fn probabilities_are_requested_by_a_number_or_a_word() {
        let logprobs = |mut body: Value| {
            body["input"] = "a".into();
            chat(body).unwrap()["logprobs"].take()
        };
        assert_eq!(logprobs(json!({"top_logprobs": 2})), json!(true));
        assert_eq!(logprobs(json!({"include": ["message.output_text.logprobs"]})), json!(true));
        assert_eq!(logprobs(json!({"top_logprobs": 0, "include": ["reasoning.encrypted_content"]})), Value::Null);
    }
}
