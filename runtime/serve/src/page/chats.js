// Conversations, as they are kept in the browser, and as they are sent.
//
//   conversation = { id, title, changed, messages: [message] }
//   message      = { role: "user", content }
//                | { role: "assistant", content, reasoning, calls: [{ id, name, arguments }], stats, note }
//                | { role: "tool", callId, name, content }

const PREFIX = "unicorn.chat.";
const SETTINGS = "unicorn.settings";
const TITLE_LENGTH = 60;

export const newChat = () => ({ id: crypto.getRandomValues(new Uint32Array(3)).join("-"), title: "", changed: 0, messages: [] });

/** All that are kept, newest first. What cannot be read is left out. */
export function chats() {
  const found = Object.keys(localStorage).filter(key => key.startsWith(PREFIX)).map(key => read(key)).filter(isChat);
  return found.sort((one, other) => other.changed - one.changed);
}

/** Keeps a conversation. An error means that the browser has no space left. */
export function keep(chat) {
  const first = chat.messages.find(message => message.role === "user");
  chat.title = (first?.content ?? "").trim().split("\n")[0].slice(0, TITLE_LENGTH) || "New conversation";
  chat.changed = Date.now();
  try {
    localStorage.setItem(PREFIX + chat.id, JSON.stringify(chat));
  } catch {
    throw new Error("This browser keeps no more conversations: delete one.");
  }
}

export const forget = chat => localStorage.removeItem(PREFIX + chat.id);

/** Calls `action` when another tab has changed a conversation. */
export const onChange = action => window.addEventListener("storage", event => {
  if (event.key === null || event.key.startsWith(PREFIX)) action();
});

export const settings = () => ({ system: "", temperature: "", maxTokens: "", thinking: "", tools: "", theme: "", ...read(SETTINGS) });

export const keepSettings = all => localStorage.setItem(SETTINGS, JSON.stringify(all));

function read(key) {
  try {
    return JSON.parse(localStorage.getItem(key)) ?? undefined;
  } catch {
    return undefined;
  }
}

function isChat(chat) {
  const isMessage = message => ["user", "assistant", "tool"].includes(message?.role) && typeof message.content === "string";
  return typeof chat?.id === "string" && typeof chat.title === "string" && Array.isArray(chat.messages) && chat.messages.every(isMessage);
}

/** The request for the next answer. */
export function request(chat, { system, temperature, maxTokens, thinking, tools }) {
  const messages = chat.messages.map(sent);
  if (system.trim()) messages.unshift({ role: "system", content: system });
  const made = { messages };
  if (temperature !== "") made.temperature = Number(temperature);
  if (maxTokens !== "") made.max_tokens = Number(maxTokens);
  if (thinking) made.chat_template_kwargs = { enable_thinking: thinking === "on" };
  const functions = toolsOf(tools);
  if (functions.length > 0) made.tools = functions;
  return made;
}

function sent(message) {
  if (message.role === "tool") return { role: "tool", tool_call_id: message.callId, content: message.content };
  if (message.role === "user" || !message.calls?.length) return { role: message.role, content: message.content };
  // A call that was cut has no whole arguments, and a server refuses the conversation for it.
  const calls = message.calls.map(({ id, name, arguments: given }) =>
    ({ id, type: "function", function: { name, arguments: isJson(given) ? given : "{}" } }));
  return { role: "assistant", content: message.content, tool_calls: calls };
}

function isJson(text) {
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
}

/** The functions of a text of JSON, in OpenAI's form. */
export function toolsOf(text) {
  if (!text.trim()) return [];
  const list = JSON.parse(text);
  if (!Array.isArray(list)) throw new Error("expected a list: [{\"name\": …}]");
  return list.map(tool => {
    const described = tool.function ?? tool;
    if (typeof described.name !== "string") throw new Error("expected a name in each tool");
    return { type: "function", function: described };
  });
}

/** Adds a chunk of a stream to an answer. */
export function apply(message, chunk) {
  const delta = chunk.choices?.[0]?.delta ?? {};
  message.content += delta.content ?? "";
  message.reasoning += delta.reasoning_content ?? "";
  for (const call of delta.tool_calls ?? []) {
    const known = (message.calls[call.index] ??= { id: "", name: "", arguments: "" });
    known.id ||= call.id ?? "";
    known.name += call.function?.name ?? "";
    known.arguments += call.function?.arguments ?? "";
  }
  if (chunk.choices?.[0]?.finish_reason === "length") message.note = "The answer was cut: the limit of tokens, or of the context.";
  if (chunk.timings) {
    const { prompt_n, cache_n, prompt_ms, predicted_n, predicted_per_second } = chunk.timings;
    message.stats = { prompt_n, cache_n, prompt_ms, predicted_n, predicted_per_second };
  }
}
