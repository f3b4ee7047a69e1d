// Markdown as models write it, as elements. Takes any text, makes text nodes and elements of the names below, and links of three
// schemes; HTML is shown as it is written, and nothing is fetched. Time grows linearly with the text, but for nesting, which is
// bounded.

import { copyButton, make } from "./dom.js";

const MAX_DEPTH = 8;
const SCHEMES = ["http:", "https:", "mailto:"];

/**
 * Shows `text` in `container`. Called again with a longer text, it keeps the elements of blocks that did not change, so that a
 * selection or a scrolled table survives the next token.
 */
export function render(container, text) {
  const blocks = split(text.replaceAll("\r\n", "\n").split("\n"), 0);
  const shown = container.blocks ?? [];
  let same = 0;
  while (same < shown.length && same < blocks.length && shown[same] === blocks[same].source) same += 1;
  while (container.childNodes.length > same) container.lastChild.remove();
  container.append(...blocks.slice(same).map(block => block.element()));
  container.blocks = blocks.map(block => block.source);
}

/** Blocks of lines: what each is made of, and how its element is made. */
function split(lines, depth) {
  const blocks = [];
  let from = 0;
  while (from < lines.length) {
    if (lines[from].trim() === "") { from += 1; continue; }
    const [to, element] = block(lines, from, depth);
    blocks.push({ source: lines.slice(from, to).join("\n"), element });
    from = to;
  }
  return blocks;
}

/** The block that begins in line `from`: the line after it, and what makes its element. */
function block(lines, from, depth) {
  const line = lines[from];
  const fence = fenceOf(line);
  if (fence) return code(lines, from, fence);
  const heading = /^ {0,3}(#{1,6})[ \t]+/.exec(line);
  if (heading) {
    // The page's own headings are h1 and h2.
    const level = Math.min(heading[1].length + 2, 6);
    return [from + 1, () => inline(make(`h${level}`), trimMarks(line.slice(heading[0].length), "#"), 0)];
  }
  if (isRule(line)) return [from + 1, () => make("hr")];
  if (depth < MAX_DEPTH && isQuote(line)) return quote(lines, from, depth);
  if (depth < MAX_DEPTH && itemOf(line)) return list(lines, from, depth);
  if (isTable(lines, from)) return table(lines, from);
  let to = from + 1;
  while (to < lines.length && !endsParagraph(lines, to, depth)) to += 1;
  return [to, () => inline(make("p"), lines.slice(from, to).join("\n").trim(), 0)];
}

function endsParagraph(lines, index, depth) {
  const line = lines[index];
  return line.trim() === "" || fenceOf(line) || /^ {0,3}#{1,6}[ \t]/.test(line) || isRule(line)
    || (depth < MAX_DEPTH && (isQuote(line) || itemOf(line))) || isTable(lines, index);
}

function trimMarks(text, mark) {
  let end = text.trimEnd().length;
  while (end > 0 && text[end - 1] === mark) end -= 1;
  return text.slice(0, end).trim();
}

const isQuote = line => /^ {0,3}>/.test(line);

function isRule(line) {
  const marks = line.replaceAll(" ", "");
  return marks.length >= 3 && "-*_".includes(marks[0]) && marks === marks[0].repeat(marks.length);
}

function fenceOf(line) {
  const found = /^( {0,3})(`{3,}|~{3,})/.exec(line);
  if (!found) return null;
  const language = line.slice(found[0].length).trim();
  // Backquotes after backquotes are a code span.
  return found[2][0] === "`" && language.includes("`") ? null : { indent: found[1].length, mark: found[2], language };
}

function code(lines, from, { indent, mark, language }) {
  const closes = line => {
    const text = line.trim();
    return text.length >= mark.length && text === mark[0].repeat(text.length);
  };
  let to = from + 1;
  while (to < lines.length && !closes(lines[to])) to += 1;
  const text = lines.slice(from + 1, to).map(line => line.slice(Math.min(indent, line.length - line.trimStart().length))).join("\n");
  const element = () => make("figure", { className: "code" },
    make("figcaption", {}, make("span", {}, language.split(/\s/)[0] || "text"), copyButton("Copy this code", () => text)),
    make("pre", { tabIndex: 0 }, make("code", {}, text)));
  return [Math.min(to + 1, lines.length), element];
}

function quote(lines, from, depth) {
  let to = from;
  while (to < lines.length && isQuote(lines[to])) to += 1;
  const inner = lines.slice(from, to).map(line => line.replace(/^ {0,3}> ?/, ""));
  return [to, () => make("blockquote", {}, ...split(inner, depth + 1).map(block => block.element()))];
}

/** What a line of a list begins with. */
function itemOf(line) {
  const found = /^( *)([-*+]|\d{1,9}[.)])( {1,4}|$)/.exec(line);
  if (!found || isRule(line)) return null;
  return { indent: found[1].length, width: found[0].length, number: Number.parseInt(found[2], 10) };
}

function list(lines, from, depth) {
  const first = itemOf(lines[from]);
  const isOrdered = !Number.isNaN(first.number);
  const items = [];
  let to = from;
  while (to < lines.length) {
    const item = itemOf(lines[to]);
    const indent = lines[to].length - lines[to].trimStart().length;
    if (lines[to].trim() === "") {
      // A blank line belongs to the list where the next line does.
      const next = lines.findIndex((line, index) => index > to && line.trim() !== "");
      if (next < 0) break;
      const begins = itemOf(lines[next]);
      const nextIndent = lines[next].length - lines[next].trimStart().length;
      const isNext = begins && begins.indent <= first.indent && Number.isNaN(begins.number) !== isOrdered;
      if (!isNext && nextIndent <= first.indent) break;
      for (; to < next; to += 1) items.at(-1).push("");
      continue;
    }
    if (item && item.indent <= first.indent + 1) {
      if (Number.isNaN(item.number) === isOrdered) break;
      items.push([lines[to].slice(item.width)]);
    } else if (indent > first.indent || !endsParagraph(lines, to, depth)) {
      items.at(-1).push(lines[to].slice(Math.min(indent, first.width)));
    } else {
      break;
    }
    to += 1;
  }
  const element = () => make(isOrdered ? "ol" : "ul", isOrdered ? { start: first.number } : {}, ...items.map(item => listItem(item, depth)));
  return [to, element];
}

function listItem(lines, depth) {
  const task = /^\[([ xX])\] /.exec(lines[0]);
  const blocks = split(task ? [lines[0].slice(4), ...lines.slice(1)] : lines, depth + 1).map(block => block.element());
  // A paragraph alone is the item's text.
  const children = blocks.flatMap((element, index) => (index === 0 && element.tagName === "P" ? [...element.childNodes] : [element]));
  if (task) children.unshift(make("input", { type: "checkbox", disabled: true, checked: task[1] !== " ", "aria-label": "done" }), " ");
  return make("li", task ? { className: "task" } : {}, ...children);
}

function cells(line) {
  const inner = line.trim().replace(/^\|/, "").replace(/\|$/, "");
  return inner.replaceAll("\\|", "\u0000").split("|").map(cell => cell.replaceAll("\u0000", "|").trim());
}

function isTable(lines, index) {
  const rule = lines[index + 1];
  return lines[index].includes("|") && rule !== undefined && rule.includes("-") && /^[\s|:-]+$/.test(rule)
    && cells(rule).every(cell => /^:?-+:?$/.test(cell)) && cells(rule).length === cells(lines[index]).length;
}

function table(lines, from) {
  const sides = cells(lines[from + 1]).map(cell => (cell.endsWith(":") ? (cell.startsWith(":") ? "center" : "right") : ""));
  let to = from + 2;
  while (to < lines.length && lines[to].includes("|")) to += 1;
  const row = (line, name) => make("tr", {}, ...sides.map((side, index) =>
    inline(make(name, side ? { className: side } : {}), cells(line)[index] ?? "", 0)));
  const element = () => make("div", { className: "table", tabIndex: 0 }, make("table", {},
    make("thead", {}, row(lines[from], "th")), make("tbody", {}, ...lines.slice(from + 2, to).map(line => row(line, "td")))));
  return [to, element];
}

const MARKS = { "**": "strong", "__": "strong", "~~": "del", "*": "em", "_": "em" };

/** Appends the elements of a paragraph's text to `parent`, and gives it. */
function inline(parent, text, depth) {
  // Marks that nothing closes until the end are not looked for again.
  const unclosed = new Set();
  let plain = "";
  let index = 0;
  const add = (element, next) => {
    if (plain) parent.append(plain);
    plain = "";
    parent.append(element);
    index = next;
  };
  while (index < text.length) {
    const found = special(text, index, depth, unclosed);
    if (found) {
      add(...found);
    } else if (text[index] === "\\" && /[!-/:-@[-`{-~]/.test(text[index + 1] ?? "")) {
      plain += text[index + 1];
      index += 2;
    } else if ("`*_~".includes(text[index])) {
      // A run of marks that nothing closes is text.
      const run = runOf(text, index);
      plain += text.slice(index, index + run);
      index += run;
    } else {
      plain += text[index];
      index += 1;
    }
  }
  if (plain) parent.append(plain);
  return parent;
}

function runOf(text, index) {
  let run = 1;
  while (text[index + run] === text[index]) run += 1;
  return run;
}

/** The element that begins here, and where the text goes on. */
function special(text, index, depth, unclosed) {
  switch (text[index]) {
    case "\n": return [make("br"), index + 1];
    case "`": return codeSpan(text, index, unclosed);
    case "<": return angleLink(text, index);
    case "!": return text[index + 1] === "[" ? link(text, index + 1, depth, unclosed) : null;
    case "[": return link(text, index, depth, unclosed);
    case "h": return bareLink(text, index);
    case "*": case "_": case "~": return emphasis(text, index, depth, unclosed);
    default: return null;
  }
}

function codeSpan(text, index, unclosed) {
  const run = runOf(text, index);
  const mark = "`".repeat(run);
  if (unclosed.has(mark)) return null;
  for (let end = text.indexOf(mark, index + run); end >= 0; end = text.indexOf(mark, end)) {
    const found = runOf(text, end);
    if (found === run) {
      const inner = text.slice(index + run, end);
      const isPadded = inner.startsWith(" ") && inner.endsWith(" ") && inner.trim() !== "";
      return [make("code", {}, isPadded ? inner.slice(1, -1) : inner), end + run];
    }
    end += found;
  }
  unclosed.add(mark);
  return null;
}

function emphasis(text, index, depth, unclosed) {
  const opening = runOf(text, index);
  const isWord = letter => letter !== undefined && /[\p{L}\p{N}]/u.test(letter);
  if (opening > 3 || depth >= MAX_DEPTH) return null;
  const after = index + opening;
  if (/\s|^$/.test(text[after] ?? "") || (text[index] === "_" && isWord(text[index - 1]))) return null;
  let mark = text[index].repeat(Math.min(opening, 2));
  // Of three, two are inside where two are closed first.
  if (opening === 3) {
    const closing = text.indexOf(mark, after);
    if (closing >= 0 && runOf(text, closing) === 2) mark = mark[0];
  }
  if (!(mark in MARKS) || unclosed.has(mark)) return null;
  const from = index + mark.length;
  for (let end = text.indexOf(mark, after + 1); end >= 0; end = text.indexOf(mark, end)) {
    const run = runOf(text, end);
    // A single mark is not closed by a double one; of three, the last closes what was opened first.
    const fits = mark.length === 1 ? run !== 2 : run >= 2;
    const at = end + (run > mark.length ? run - mark.length : 0);
    if (fits && !/\s/.test(text[end - 1]) && !(mark[0] === "_" && isWord(text[end + run]))) {
      return [inline(make(MARKS[mark]), text.slice(from, at), depth + 1), at + mark.length];
    }
    end += run;
  }
  unclosed.add(mark);
  return null;
}

function link(text, index, depth, unclosed) {
  if (unclosed.has("](") || depth >= MAX_DEPTH) return null;
  const middle = text.indexOf("](", index);
  if (middle < 0) unclosed.add("](");
  if (middle < 0 || middle - index > 1000 || text.slice(index + 1, middle).includes("[")) return null;
  // Parentheses in an address come in pairs.
  let open = 1;
  let end = middle + 2;
  for (; end < text.length && end - middle < 2000; end += 1) {
    if (text[end] === "(") open += 1;
    if (text[end] === ")" && (open -= 1) === 0) break;
  }
  if (open > 0) return null;
  const address = safeAddress(text.slice(middle + 2, end).trim().split(/\s/)[0]);
  const label = text.slice(index + 1, middle);
  return address ? [inline(anchor(address), label || address, MAX_DEPTH), end + 1] : null;
}

function angleLink(text, index) {
  const found = /^<((?:https?:\/\/|mailto:)[^\s<>]{1,2000})>/.exec(text.slice(index, index + 2020));
  const address = found && safeAddress(found[1]);
  return address ? [make("a", linkProperties(address), found[1]), index + found[0].length] : null;
}

function bareLink(text, index) {
  if (!/^https?:\/\//.test(text.slice(index, index + 8)) || /[\p{L}\p{N}]/u.test(text[index - 1] ?? "")) return null;
  const found = /^[^\s<>"'`]{1,2000}/.exec(text.slice(index, index + 2000))[0].replace(/[.,:;!?*_~)\]}]{1,20}$/, "");
  const address = found.length > 8 && safeAddress(found);
  return address ? [make("a", linkProperties(address), found), index + found.length] : null;
}

const anchor = address => make("a", linkProperties(address));
const linkProperties = address => ({ href: address, target: "_blank", rel: "noopener noreferrer" });

/** The address, if it is whole and of a scheme that only leads somewhere. */
function safeAddress(text) {
  try {
    const address = new URL(text);
    return SCHEMES.includes(address.protocol) ? address.href : null;
  } catch {
    return null;
  }
}
