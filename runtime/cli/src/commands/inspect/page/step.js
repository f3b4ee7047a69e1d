// ---- The dispatches of a decode step, by their least time ----

/** `q_proj` of `12.q_proj`. */
const roleOf = label => label.replace(/^\d+\./, "");

function showTimeline(fit) {
  const drawing = at("timeline"), speed = bandwidth(fit), dispatches = target()?.decode ?? [];
  drawing.replaceChildren();
  const orders = name => dispatches.filter(one => one.order === name).length;
  const rows = dispatches.map(one => work({ ...one, role: roleOf(one.label), flops: null }));
  const bytes = sum(rows, row => row.bytes);
  at("step-sum").textContent = dispatches.length === 0 ? "This artifact has no decode program for the target." :
    `${dispatches.length} dispatches on ${target().name}: ${orders("barrier")} wait by a barrier, ${orders("counter")} by a counter, ` +
    `${orders("free")} for nothing. Widths are the time to read ${size(Math.round(bytes))}` +
    (speed === null ? "; the bandwidth is unknown." : ` at ${gigabytes(speed)}, ${seconds(bytes / speed)} in all: an estimate. ` +
      "What a wait takes is not known before it is measured: unicorn-run profile does.");
  if (dispatches.length === 0) return;
  const lanes = [...new Set(rows.map(row => row.role))], laneHeight = 20, gutter = 190, height = laneHeight * lanes.length + 26;
  const width = Math.max(320, at("timeline").parentElement.clientWidth - 4) * Number(at("step-zoom").value);
  Object.entries({ width, height, viewBox: `0 0 ${width} ${height}` }).forEach(([name, value]) => drawing.setAttribute(name, value));
  // A dispatch that reads little is still seen.
  const least = 1.2, free = Math.max(40, width - gutter - 10 - least * rows.length);
  const lines = [], blocks = [];
  let x = gutter;
  rows.forEach((row, index) => {
    const dispatch = dispatches[index], wide = least + free * row.bytes / Math.max(1, bytes), y = laneHeight * lanes.indexOf(row.role);
    if (dispatch.order !== "free") lines.push(shape("line", { x1: x, x2: x, y1: y - 3, y2: y + laneHeight - 3, class: dispatch.order }));
    const block = shape("rect", { x, y: y + 2, width: Math.max(0.8, wide - 0.4), height: laneHeight - 6, fill: colourOf(kindOfRole(row)) });
    const waits = { free: "waits for nothing", barrier: "waits by a barrier", counter: "waits by a counter" }[dispatch.order];
    const text = `${index}: ${dispatch.label}, ${dispatch.kernel}; ${dispatch.workgroups.join(" × ")} workgroups; ${waits}; ` +
      `${size(dispatch.weight_bytes)} of weights` + (row.kv > 0 ? `, ${size(Math.round(row.kv))} of KV cache` : "") +
      (speed === null ? "" : `; at least ${seconds(row.bytes / speed)}`);
    block.append(shape("title", {}, text));
    block.addEventListener("mouseenter", () => { at("dispatch").textContent = text; });
    blocks.push(block);
    x += wide;
  });
  lanes.forEach((lane, index) => {
    const y = laneHeight * index;
    drawing.append(shape("line", { x1: 0, x2: width, y1: y + laneHeight - 2, y2: y + laneHeight - 2, class: "grid" }));
    const name = lane.length > 26 ? lane.slice(0, 25) + "…" : lane;
    drawing.append(shape("text", { x: 2, y: y + 14 }, name));
  });
  drawing.append(...blocks, ...lines);
  const end = speed === null ? "" : seconds(bytes / speed);
  drawing.append(shape("text", { x: gutter, y: height - 6 }, "0"),
    shape("text", { x: width - 4, y: height - 6, "text-anchor": "end" }, end));
}
