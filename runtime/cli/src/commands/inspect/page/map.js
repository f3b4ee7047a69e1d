// ---- The map of the memory ----

/** Everything as a tree: tier → layer → thing; `read` is null where no traffic is known. */
function tree() {
  const root = { name: "all tiers", path: "", children: [], depth: 0 };
  const child = (parent, name) => {
    let found = parent.children.find(one => one.name === name);
    if (!found) {
      found = { name, parent, path: (parent.path && parent.path + "/") + name, children: [], depth: parent.depth + 1 };
      parent.children.push(found);
    }
    return found;
  };
  const put = (tier, layer, name, kind, bytes, read, reason) => {
    const leaf = child(child(child(root, tier), layer), name);
    Object.assign(leaf, { kind, bytes, read, reason });
  };
  for (const weight of data.weights) {
    const layer = weight.layer === null ? "outside layers" : "layer " + weight.layer;
    // Within its layer a tensor is called by the rest of its name.
    const name = weight.name.replaceAll(`layers.${weight.layer}.`, "");
    put(weight.tier, layer, name, weight.kind, weight.len_bytes, weight.bytes_read_per_token, weight.reason);
  }
  data.kv_groups.forEach((group, index) => {
    const name = group.window_tokens === null ? "all tokens" : "window " + group.window_tokens;
    put(group.tier, "KV cache", `${index}: ${name}`, "kv", group.bytes_per_sequence, group.bytes_read_per_token, group.reason);
  });
  if (data.arena_bytes > 0 && data.activations.length > 0) {
    put(data.activations[0].tier, "activations", "arena", "activations", data.arena_bytes, null, "values of one step");
  }
  for (const buffer of data.buffers) put(buffer.tier, "buffers", buffer.name, "buffers", buffer.bytes, null, buffer.reason);
  const finish = (node, start) => {
    node.start = start;
    if (node.children.length > 0) {
      let end = start;
      for (const one of node.children) end = finish(one, end);
      node.bytes = end - start;
      const known = node.children.filter(one => one.read !== null);
      node.read = known.length > 0 ? sum(known, one => one.read) : null;
    }
    return start + node.bytes;
  };
  finish(root, 0);
  return root;
}

/** Each kind of bytes below a node. */
function kindsBelow(node, kinds = new Map()) {
  if (node.kind) kinds.set(node.kind, (kinds.get(node.kind) ?? 0) + node.bytes);
  for (const one of node.children) kindsBelow(one, kinds);
  return kinds;
}

/** What a node holds: of one kind its colour, of several a stripe each. */
function kindColour(node) {
  const kinds = kindsBelow(node);
  const shown = KINDS.filter(kind => kinds.get(kind) / Math.max(1, node.bytes) > 0.005);
  if (shown.length <= 1) return colourOf(shown[0] ?? "other");
  let end = 0;
  const stops = shown.map(kind => {
    const start = end;
    end += 100 * kinds.get(kind) / node.bytes;
    return `${colourOf(kind)} ${start}% ${end}%`;
  });
  return `linear-gradient(to right, ${stops.join(", ")})`;
}

/** Traffic on a logarithmic scale: a byte in ten thousand is pale, each byte once a token is red. */
function trafficColour(node) {
  if (node.read === null || node.bytes === 0) return "#c3c8d0";
  const step = Math.max(0, Math.min(1, 1 + Math.log10(Math.max(node.read / node.bytes, 1e-9)) / 4));
  return `hsl(${210 - 200 * step} ${30 + 45 * step}% ${86 - 24 * step}%)`;
}

const root = tree();
const nodes = [];
(function list(node) { nodes.push(node); node.children.forEach(list); })(root);
let view = { start: 0, bytes: root.bytes };
const ROW_REM = 3.3, ROWS = 4, LEAST_SHARE = 0.0008;

function describe(node) {
  const read = node.read === null ? "traffic unknown" :
    `${size(node.read)} read per token, ${percent(node.read / Math.max(1, root.read ?? 1))} of all`;
  at("about").textContent = `${node.path || node.name}: ${size(node.bytes)}, ${read}` +
    (node.reason ? ` — ${node.reason}` : "");
}

function drawMap() {
  const map = at("map");
  map.replaceChildren();
  for (const node of nodes) {
    const left = (node.start - view.start) / view.bytes, width = node.bytes / view.bytes;
    if (width < LEAST_SHARE || left + width <= 0 || left >= 1 || node.depth >= ROWS) continue;
    const shownLeft = Math.max(0, left), shownRight = Math.min(1, left + width);
    const cell = element("button", node.name);
    cell.dataset.path = node.path;
    cell.title = `${node.path || node.name}: ${size(node.bytes)}`;
    Object.assign(cell.style, { left: 100 * shownLeft + "%", width: 100 * (shownRight - shownLeft) + "%",
      top: ROW_REM * node.depth + "rem", background: at("map-colour").value === "kind" ? kindColour(node) : trafficColour(node) });
    cell.addEventListener("click", () => zoomTo(node));
    cell.addEventListener("mouseenter", () => describe(node));
    cell.addEventListener("focus", () => describe(node));
    map.append(cell);
  }
}

/** Shows `node` over the whole width; the address keeps it. */
function zoomTo(node) {
  view = { start: node.start, bytes: Math.max(1, node.bytes) };
  history.replaceState(null, "", "#" + encodeURIComponent(node.path));
  describe(node);
  drawMap();
}

function zoomAtWheel(event) {
  event.preventDefault();
  const box = at("map").getBoundingClientRect();
  const part = (event.clientX - box.left) / box.width;
  const centre = view.start + part * view.bytes;
  const bytes = Math.max(4096, Math.min(root.bytes, view.bytes * (event.deltaY > 0 ? 1.25 : 0.8)));
  const start = Math.max(0, Math.min(root.bytes - bytes, centre - part * bytes));
  view = { start, bytes };
  drawMap();
}

/** What the colours mean. */
function showMapKey() {
  if (at("map-colour").value === "kind") {
    showKey("map-key", new Set(kindsBelow(root).keys()));
    return;
  }
  const stops = [0, .25, .5, .75, 1].map(step => trafficColour({ bytes: 1, read: 10 ** (4 * step - 4) }));
  const ramp = element("i", undefined, "ramp");
  ramp.style.background = `linear-gradient(to right, ${stops.join(", ")})`;
  at("map-key").replaceChildren("a byte is read 0.0001 times per token ", ramp, " 1 time; grey: unknown");
}

function showMap() {
  at("map").addEventListener("wheel", zoomAtWheel, { passive: false });
  at("map-colour").addEventListener("change", () => { showMapKey(); drawMap(); });
  showMapKey();
  const asked = decodeURIComponent(location.hash.slice(1));
  zoomTo(nodes.find(node => node.path === asked) ?? root);
}
