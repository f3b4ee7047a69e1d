// ---- The data, elements and units ----

const data = JSON.parse(document.getElementById("data").textContent);
const at = id => document.getElementById(id);

/** An element with text; names from the artifact only ever become text. */
function element(tag, text, className) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}

/** An element of a drawing, in the namespace of those that the document has. */
function shape(tag, attributes, text) {
  const made = document.createElementNS(at("roofline").namespaceURI, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

function size(bytes) {
  for (const [unit, scale] of [["TiB", 2 ** 40], ["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]]) {
    if (bytes >= scale) return (bytes / scale).toFixed(2) + " " + unit;
  }
  return bytes + " bytes";
}

/** A number in the unit that keeps it between 1 and 1000, as it is rounded to three digits. */
function scaled(value, units) {
  const found = units.find(([, scale]) => value >= 0.9995 * scale) ?? units[units.length - 1];
  return (value / found[1]).toPrecision(3) + " " + found[0];
}
const seconds = value => scaled(value, [["s", 1], ["ms", 1e-3], ["µs", 1e-6]]);
const operations = value => scaled(value, [["Tflop", 1e12], ["Gflop", 1e9], ["Mflop", 1e6], ["kflop", 1e3]]);
const count = value => value.toLocaleString("en");
const percent = share => (100 * share).toFixed(share < 0.1 ? 2 : 1) + " %";
const gigabytes = bytesPerSecond => +(bytesPerSecond / 1e9).toPrecision(4) + " GB/s";
const rate = value => value.toFixed(value < 10 ? 2 : 1) + " tokens/s";
const sum = (list, key) => list.reduce((total, one) => total + key(one), 0);

/** What bytes are for, and their colours. */
const KINDS = ["attention", "feed-forward", "experts", "embedding", "other", "kv", "activations", "buffers"];
const KIND_NAMES = { attention: "attention weights", "feed-forward": "feed-forward weights", experts: "experts",
  embedding: "embedding and output head", other: "norms and tables", kv: "KV cache", activations: "activations",
  buffers: "buffers" };
const colourOf = kind => `var(--${kind})`;

/** A key of the kinds that are there. */
function showKey(place, kinds) {
  at(place).replaceChildren(...KINDS.filter(kind => kinds.has(kind)).map(kind => {
    const item = element("span", KIND_NAMES[kind]);
    item.style.setProperty("--colour", colourOf(kind));
    return item;
  }));
}

/** A piece of a bar. */
function piece(kind, share, title, text) {
  const made = element("span", text ?? "");
  Object.assign(made.style, { width: 100 * share + "%", background: colourOf(kind) });
  made.title = title;
  return made;
}
