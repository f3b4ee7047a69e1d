// The panel: what runs, what it takes, and settings.

import { get, keyOf, setKey } from "./api.js";
import { keepSettings, settings, toolsOf } from "./chats.js";
import { at, fillList } from "./dom.js";

const PERIOD_MS = 2000;

/** Fills the settings' fields and keeps what is changed in them. `onKey` is called after a change of the key. */
export function beginSettings(onKey) {
  const form = at("settings");
  for (const [name, value] of Object.entries(settings())) if (form.elements[name]) form.elements[name].value = value;
  form.elements.key.value = keyOf();
  form.addEventListener("input", () => {
    const { key, ...all } = Object.fromEntries(new FormData(form));
    showToolsError(all.tools);
    keepSettings(all);
    showTheme(all.theme);
  });
  form.elements.key.addEventListener("change", () => { setKey(form.elements.key.value); onKey(); });
  form.addEventListener("submit", event => event.preventDefault());
  showTheme(settings().theme);
}

export function showTheme(theme) {
  if (theme) document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
}

function showToolsError(text) {
  let message = "";
  try {
    toolsOf(text);
  } catch (error) {
    message = `Tools: ${error.message}`;
  }
  at("tools-error").textContent = message;
  at("tools-error").hidden = !message;
}

/** Opens or closes the panel. While it is open, its figures are brought up to date. */
export function togglePanel(isOpen) {
  at("panel").hidden = !isOpen;
  at("toggle-panel").setAttribute("aria-expanded", String(isOpen));
  if (isOpen) refresh();
}

async function refresh() {
  if (at("panel").hidden) return;
  if (!document.hidden) await showFigures().catch(error => fillList(at("facts"), [["Server", error.message]]));
  setTimeout(refresh, PERIOD_MS);
}

/** Shows the server's figures, and gives its properties. */
export async function showFigures() {
  const [models, props] = await Promise.all([get("v1/models"), get("props")]);
  const { device = {}, memory = {} } = props.unicorn ?? {};
  const kv = memory.kv_usage ?? 0;
  const share = `${Math.round(kv * 100)} %`;
  fillList(at("facts"), [
    ["Name", models.data[0].id],
    ["Context", `${models.data[0].max_model_len} tokens`],
    ["At a time", `${props.total_slots} answers`],
    ["Now", `${props.unicorn.running} running, ${props.unicorn.waiting} waiting`],
    ["Device", device.name],
    ["Driver", device.driver],
    ["Kernels", device.target],
    ["Server", props.build_info],
  ]);
  fillList(at("memory"), [
    ["Weights", bytes(memory.weight_bytes)],
    ...(memory.tiers ?? []).map(tier => [`In ${tier.tier}`, bytes(tier.bytes)]),
    ["KV cache", `${share} of ${memory.kv_tokens} tokens`],
  ]);
  at("kv").value = kv;
  at("kv").textContent = share;
  return models.data[0].id;
}

function bytes(count) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  const unit = Math.min(Math.floor(Math.log2(Math.max(count, 1)) / 10), units.length - 1);
  return `${(count / 1024 ** unit).toFixed(unit ? 1 : 0)} ${units[unit]}`;
}
