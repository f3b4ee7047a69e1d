// Elements by hand. Text becomes text nodes and nothing else: the page's policy forbids what would parse it as HTML.

/** The element of this id. */
export const at = id => document.getElementById(id);

/** An element with properties and children, which are elements or texts. */
export function make(name, properties = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (key.includes("-")) element.setAttribute(key, value);
    else element[key] = value;
  }
  element.append(...children);
  return element;
}

/** A button that does `action`. */
export function button(text, label, action) {
  const made = make("button", { type: "button" }, text);
  if (label) made.setAttribute("aria-label", label);
  made.addEventListener("click", action);
  return made;
}

/** A button that copies what `text` gives, and shows that for a moment. */
export function copyButton(label, text) {
  const made = button("Copy", label, async () => {
    made.textContent = (await copy(text())) ? "Copied" : "Not copied";
    setTimeout(() => { made.textContent = "Copy"; }, 1500);
  });
  return made;
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // Pages without TLS have no clipboard but that of the selection.
    const field = make("textarea", { value: text, className: "hidden" });
    document.body.append(field);
    field.select();
    const copied = document.execCommand("copy");
    field.remove();
    return copied;
  }
}

/** Pairs of a <dl>. Pairs without a value are left out. */
export function fillList(list, pairs) {
  const shown = pairs.filter(([, value]) => value !== undefined && value !== "");
  list.replaceChildren(...shown.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, String(value))]));
}
