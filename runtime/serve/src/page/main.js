// The chat page: what the person does, and what follows. Texts of the model are shown by `messages`, kept by `chats`.

import { complete, setKey } from "./api.js";
import { apply, chats, forget, keep, newChat, onChange, request, settings } from "./chats.js";
import { at, button, make } from "./dom.js";
import { beginEdit, showAll, showLast } from "./messages.js";
import { beginSettings, showFigures, togglePanel } from "./panel.js";

/** Narrower windows show the conversations over the messages. */
const narrow = window.matchMedia("(max-width: 48rem)");
/** How far from the end one may have scrolled for the page to follow the answer. */
const FOLLOW_PX = 80;

let chat = newChat();
/** What stops the answer of a conversation that is being written, by its id. */
const running = new Map();

function showChat() {
  const isBusy = running.has(chat.id);
  showAll(at("messages"), chat, { edit, again, answerCalls, isBusy });
  at("send").hidden = isBusy;
  at("stop").hidden = !isBusy;
  scrollToEnd();
}

function showList() {
  const items = chats().map(one => {
    const open = button(one.title, "", () => choose(one));
    open.setAttribute("aria-current", String(one.id === chat.id));
    const remove = button("×", `Delete ${one.title}`, () => {
      if (!window.confirm(`Delete “${one.title}”?`)) return;
      running.get(one.id)?.abort();
      forget(one);
      if (one.id === chat.id) choose(newChat());
      else showList();
    });
    return make("li", {}, open, remove);
  });
  at("chats").replaceChildren(...items);
}

function choose(one) {
  if (running.has(one.id) && one.id === chat.id) return;
  // The conversation that is being written is the one in memory.
  chat = running.get(one.id)?.chat ?? one;
  showError("");
  showStatus("");
  showList();
  showChat();
  if (narrow.matches) toggleSide(false);
  at("prompt").focus();
}

function send(text) {
  if (running.has(chat.id) || !text.trim()) return;
  at("prompt").value = "";
  fitPrompt();
  chat.messages.push({ role: "user", content: text });
  generate();
}

function edit(index) {
  if (running.has(chat.id)) return;
  beginEdit(at("messages"), index, chat.messages[index].content, text => {
    chat.messages.splice(index, Infinity, { role: "user", content: text });
    generate();
  });
}

function again() {
  if (running.has(chat.id) || chat.messages.at(-1)?.role !== "assistant") return;
  chat.messages.pop();
  generate();
}

function answerCalls(results) {
  chat.messages.push(...results);
  generate();
}

/** Lets the model answer the conversation as it is. */
async function generate() {
  const own = chat;
  const stopper = new AbortController();
  const message = { role: "assistant", content: "", reasoning: "", calls: [] };
  let asked;
  showError("");
  try {
    asked = request(own, settings());
  } catch (error) {
    showChat();
    return showError(`Tools: ${error.message}`);
  }
  own.messages.push(message);
  running.set(own.id, Object.assign(stopper, { chat: own }));
  keepAndList(own);
  showChat();
  showStatus("Answering…");
  let said = "";
  let isDrawn = true;
  const draw = () => {
    if (isDrawn || chat !== own) return;
    isDrawn = true;
    const isAtEnd = distanceToEnd() < FOLLOW_PX;
    showLast(at("messages"), message);
    if (isAtEnd) scrollToEnd();
  };
  try {
    for await (const chunk of complete(asked, stopper.signal)) {
      apply(message, chunk);
      if (isDrawn) {
        isDrawn = false;
        requestAnimationFrame(draw);
      }
    }
    said = "Answer complete";
  } catch (error) {
    said = "Stopped";
    if (error.name === "AbortError") {
      message.note = "Stopped.";
    } else {
      message.note = error.message;
      if (chat === own) showError(error.message);
      if (error.status === 401) askKey();
    }
  }
  isDrawn = true;
  running.delete(own.id);
  // Arguments of a call may be missing in the middle after a failure.
  message.calls = message.calls.filter(Boolean);
  const isEmpty = !message.content && !message.reasoning && message.calls.length === 0;
  if (isEmpty && said === "Stopped") own.messages.pop();
  if (chats().some(one => one.id === own.id)) keepAndList(own);
  if (chat !== own) return;
  showChat();
  showStatus(said);
}

function keepAndList(one) {
  try {
    keep(one);
  } catch (error) {
    showError(error.message);
  }
  showList();
}

function showStatus(text) {
  at("status").textContent = text;
}

function showError(text) {
  at("error").textContent = text;
  at("error").hidden = !text;
}

const distanceToEnd = () => at("messages").scrollHeight - at("messages").scrollTop - at("messages").clientHeight;

function scrollToEnd() {
  at("messages").scrollTop = at("messages").scrollHeight;
}

function fitPrompt() {
  const field = at("prompt");
  field.style.height = "auto";
  field.style.height = `${field.scrollHeight + 2}px`;
}

function toggleSide(isOpen) {
  document.body.classList.toggle("without-side", !isOpen);
  at("toggle-side").setAttribute("aria-expanded", String(isOpen));
}

async function begin() {
  try {
    const name = await showFigures();
    at("model").textContent = name;
    document.title = `${name} · Unicorn`;
    showError("");
  } catch (error) {
    if (error.status === 401) askKey();
    else showError(error.message);
  }
}

function askKey() {
  if (!at("ask-key").open) at("ask-key").showModal();
}

at("composer").addEventListener("submit", event => { event.preventDefault(); send(at("prompt").value); });
at("prompt").addEventListener("input", fitPrompt);
at("prompt").addEventListener("keydown", event => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    send(event.target.value);
  } else if (event.key === "ArrowUp" && event.target.value === "") {
    const last = chat.messages.findLastIndex(message => message.role === "user");
    if (last >= 0) { event.preventDefault(); edit(last); }
  }
});
at("stop").addEventListener("click", () => running.get(chat.id)?.abort());
at("new").addEventListener("click", () => choose(newChat()));
at("toggle-side").addEventListener("click", () => toggleSide(document.body.classList.contains("without-side")));
at("toggle-panel").addEventListener("click", () => togglePanel(at("panel").hidden));
at("ask-key").addEventListener("submit", event => {
  event.preventDefault();
  setKey(at("key").value);
  at("settings").elements.key.value = at("key").value;
  at("ask-key").close();
  begin();
});
document.addEventListener("keydown", event => {
  if (event.key === "Escape") running.get(chat.id)?.abort();
  if (event.altKey && event.code === "KeyN") { event.preventDefault(); choose(newChat()); }
  if (event.altKey && event.code === "KeyR") { event.preventDefault(); again(); }
});
onChange(showList);
beginSettings(begin);
toggleSide(!narrow.matches);
showList();
showChat();
begin();
at("prompt").focus();
