// The messages of a conversation, as elements.

import { button, copyButton, make } from "./dom.js";
import { render } from "./markdown.js";

const NAMES = { user: "You", assistant: "Model", tool: "Result" };

/**
 * Shows all messages of `chat`. `actions`: edit(index, text), again(), answerCalls(results), and `isBusy`, while the last message
 * is being written.
 */
export function showAll(container, chat, actions) {
  const last = chat.messages.length - 1;
  container.replaceChildren(...chat.messages.map((message, index) => {
    const element = make("article", { className: `message ${message.role}`, "aria-label": NAMES[message.role] });
    element.append(make("h2", {}, message.role === "tool" ? `Result of ${message.name}` : NAMES[message.role]));
    if (message.role === "assistant") element.append(...answerParts());
    else element.append(make("div", { className: "text plain" }, message.content));
    show(element, message, actions.isBusy && index === last);
    if (!(actions.isBusy && index === last)) element.append(footer(element, message, index, index === last, actions));
    return element;
  }));
  const answer = chat.messages[last];
  if (answer?.role === "assistant" && answer.calls?.length && !actions.isBusy) container.lastChild.append(resultForm(answer.calls, actions));
  if (last < 0) container.append(make("p", { className: "welcome" }, "Ask the model something."));
}

/** Shows what was added to the answer that is being written. */
export const showLast = (container, message) => show(container.lastChild, message, true);

/** The field of a message's edit. */
export function beginEdit(container, index, text, save) {
  const element = container.children[index];
  const field = make("textarea", { value: text, rows: Math.min(text.split("\n").length + 1, 12), "aria-label": "Edit the message" });
  const shown = element.querySelector(".text");
  const buttons = element.querySelector("footer");
  const leave = () => { form.replaceWith(shown); buttons.hidden = false; };
  const form = make("form", { className: "edit" }, field, make("button", { type: "submit" }, "Send"), button("Cancel", "", leave));
  form.addEventListener("submit", event => { event.preventDefault(); if (field.value.trim()) save(field.value); });
  field.addEventListener("keydown", event => {
    if (event.key === "Escape") { event.stopPropagation(); leave(); }
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); form.requestSubmit(); }
  });
  shown.replaceWith(form);
  buttons.hidden = true;
  field.focus();
}

function answerParts() {
  const reasoning = make("details", { className: "reasoning", hidden: true }, make("summary"), make("div", { className: "text" }));
  return [reasoning, make("div", { className: "text" }), make("div", { className: "calls" })];
}

function show(element, message, isWritten) {
  element.setAttribute("aria-busy", String(isWritten));
  if (message.role !== "assistant") return;
  const [reasoning, text, calls] = [".reasoning", ":scope > .text", ".calls"].map(selector => element.querySelector(selector));
  reasoning.hidden = !message.reasoning;
  if (message.reasoning) {
    const isThinking = isWritten && !message.content && !message.calls?.length;
    reasoning.firstChild.textContent = `${isThinking ? "Reasoning…" : "Reasoning"} (${message.reasoning.split(/\s+/).length} words)`;
    render(reasoning.lastChild, message.reasoning);
  }
  render(text, message.content);
  const made = (message.calls ?? []).filter(Boolean);
  while (calls.children.length < made.length) calls.append(make("figure", { className: "call" }, make("figcaption"), make("pre", { tabIndex: 0 })));
  made.forEach((call, index) => {
    const [caption, given] = calls.children[index].children;
    caption.textContent = `Call of ${call.name}`;
    given.textContent = isWritten ? call.arguments : indented(call.arguments);
  });
}

function indented(json) {
  try {
    return JSON.stringify(JSON.parse(json), null, 2);
  } catch {
    return json;
  }
}

function footer(element, message, index, isLast, actions) {
  const parts = [];
  if (message.note) parts.push(make("p", { className: "note" }, message.note));
  if (message.stats) parts.push(make("span", { className: "stats" }, statsText(message.stats)));
  parts.push(copyButton("Copy the message", () => message.content));
  if (message.role === "user") parts.push(button("Edit", "Edit the message", () => actions.edit(index)));
  if (message.role === "assistant" && isLast) parts.push(button("Again", "Answer again", actions.again));
  return make("footer", {}, ...parts);
}

function statsText({ prompt_n, cache_n, prompt_ms, predicted_n, predicted_per_second }) {
  const rate = predicted_per_second > 0 ? ` at ${predicted_per_second.toFixed(1)}/s` : "";
  const cached = cache_n > 0 ? `, ${cache_n} from the cache` : "";
  return `${predicted_n} tokens${rate} · prompt of ${prompt_n + (cache_n ?? 0)} in ${(prompt_ms / 1000).toFixed(2)} s${cached}`;
}

/** Fields for what the calls return: the page runs nothing. */
function resultForm(calls, actions) {
  const fields = calls.map(call => make("textarea", { rows: 2, required: true, "aria-label": `Result of ${call.name}` }));
  const labels = calls.map((call, index) => make("label", {}, `Result of ${call.name}`, fields[index]));
  const form = make("form", { className: "results" }, ...labels, make("button", { type: "submit" }, "Send results"));
  form.addEventListener("submit", event => {
    event.preventDefault();
    actions.answerCalls(calls.map((call, index) => ({ role: "tool", callId: call.id, name: call.name, content: fields[index].value })));
  });
  return form;
}
