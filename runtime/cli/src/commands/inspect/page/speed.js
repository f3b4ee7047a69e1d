// ---- Bytes per token, and the roofline ----

function showTraffic(fit) {
  const tokens = context(), bar = at("traffic"), kinds = new Map();
  const readOf = part => part.kind === "kv" ? kvRead(data.kv_groups[part.index], tokens) : part.bytes_read_per_token;
  const parts = fit.missing === null ? fit.tiers.flatMap(tier => tier.parts) : partsAt(tokens);
  for (const [kind, bytes] of kindsIn(parts, readOf)) kinds.set(kind, bytes);
  const total = sum([...kinds.values()], bytes => bytes);
  bar.replaceChildren(...[...kinds].map(([kind, bytes]) => {
    const text = `${size(Math.round(bytes))} (${percent(bytes / total)})`;
    return piece(kind, bytes / total, `${KIND_NAMES[kind]}: ${text}`, bytes / total > 0.08 ? text : "");
  }));
  showKey("traffic-key", new Set(kinds.keys()));
}

/** Bandwidth of the tier that most of a token is read from. */
function bandwidth(fit) {
  const main = [...fit.tiers].sort((one, other) => other.read - one.read)[0];
  return main ? main.tier.bytes_per_s : null;
}

const target = () => data.targets[Math.max(0, at("target").selectedIndex)];

/** Query heads that share a KV head, and bytes of a cached number: from the shapes of the projections. */
function attentionShape() {
  const rows = end => data.tensors.find(tensor => tensor.name.endsWith(end))?.rows;
  const [queries, keys] = [rows(".q_proj.weight"), rows(".k_proj.weight")];
  const bytes = data.provenance.options.kv === "int8" ? 1 : 2;
  return queries && keys ? { shared: queries / keys, bytes } : null;
}

/** What a kernel of a step reads and computes; KV cache at the chosen context. */
function work(row) {
  const planned = sum(data.kv_groups, group => kvRead(group, data.account.context_tokens));
  const now = sum(data.kv_groups, group => kvRead(group, context()));
  const kv = planned > 0 ? row.kv_bytes * now / planned : 0, shape = attentionShape();
  const flops = (row.flops ?? 0) + (shape ? 2 * shape.shared * kv / shape.bytes : 0);
  return { ...row, bytes: row.weight_bytes + kv, kv, flops };
}

function kindOfRole(row) {
  if (row.kv > 0) return "kv";
  if (/expert/.test(row.role)) return "experts";
  if (/q_proj|k_proj|o_proj|attention/.test(row.role)) return "attention";
  if (/gate|up_proj|down_proj|mlp|ffn/.test(row.role)) return "feed-forward";
  return /embed|head/.test(row.role) ? "embedding" : "other";
}

const stepName = rows => rows === 1 ? "decode" : `prefill of ${rows} tokens`;

function showRoofline(fit) {
  const drawing = at("roofline"), left = 70, right = 880, top = 16, bottom = 316;
  const speed = bandwidth(fit), peak = machine().flop_per_s;
  drawing.replaceChildren();
  const rows = (target()?.kernels ?? []).map(work).filter(row => row.bytes > 0 && row.flops > 0);
  showBounds(speed, peak);
  if (speed === null || rows.length === 0) {
    drawing.append(shape("text", { x: left, y: 40 }, "No roofline: the machine's bandwidth is unknown, or there is no decode program."));
    return;
  }
  const most = peak ?? speed * 4096;
  const xOf = (log => value => left + (right - left) * (Math.log2(value) - log[0]) / (log[1] - log[0]))([-2, 12]);
  const [low, high] = [Math.log10(speed * 0.25), Math.log10(most * 2.5)];
  const yOf = value => bottom - (bottom - top) * (Math.log10(value) - low) / (high - low);
  for (let power = -2; power <= 12; power += 2) {
    const x = xOf(2 ** power);
    drawing.append(shape("line", { x1: x, x2: x, y1: top, y2: bottom, class: "grid" }),
      shape("text", { x, y: bottom + 18, "text-anchor": "middle" }, power < 0 ? `1/${2 ** -power}` : String(2 ** power)));
  }
  for (let power = Math.ceil(low); power <= high; power++) {
    const y = yOf(10 ** power), value = 10 ** power;
    const text = value >= 1e12 ? value / 1e12 + " TFLOP/s" : value / 1e9 + " GFLOP/s";
    drawing.append(shape("line", { x1: left, x2: right, y1: y, y2: y, class: "grid" }),
      shape("text", { x: left - 4, y: y - 3, "text-anchor": "start", dx: 8 }, text));
  }
  drawing.append(shape("text", { x: (left + right) / 2, y: bottom + 38, "text-anchor": "middle" }, "operations per byte read"));
  const knee = peak === null ? 4096 : Math.min(4096, peak / speed);
  const line = [[0.25, speed * 0.25], [knee, speed * knee], [4096, peak === null ? speed * 4096 : peak]];
  drawing.append(shape("polyline", { class: "roof", points: line.map(([x, y]) => `${xOf(x)},${yOf(Math.min(y, most))}`).join(" ") }));
  drawing.append(shape("text", { x: xOf(knee / 6) - 14, y: yOf(speed * knee / 6) - 10, "text-anchor": "end", class: "strong" }, `memory: ${gigabytes(speed)}`));
  if (peak !== null) {
    drawing.append(shape("text", { x: right, y: yOf(peak) - 20, "text-anchor": "end", class: "strong" }, `arithmetic: ${peak / 1e12} TFLOP/s`));
  }
  const least = row => Math.max(row.bytes / speed, peak === null ? 0 : row.flops / peak);
  const steps = Map.groupBy ? Map.groupBy(rows, row => row.rows) : new Map(rows.map(row => [row.rows, rows.filter(one => one.rows === row.rows)]));
  const names = [];
  for (const [step, kernels] of steps) {
    const all = sum(kernels, least);
    for (const row of kernels) {
      const intensity = Math.max(0.25, Math.min(4096, row.flops / row.bytes));
      const height = Math.min(most, intensity * speed, peak ?? Infinity);
      const dot = shape("circle", { cx: xOf(intensity), cy: yOf(height), r: 4 + 9 * Math.sqrt(least(row) / all), fill: colourOf(kindOfRole(row)) });
      dot.append(shape("title", {}, `${stepName(step)}: ${row.role}, ${row.kernel}\n${row.calls} calls, ${size(Math.round(row.bytes))} read, ` +
        `${operations(row.flops)}, at least ${seconds(least(row))} (${percent(least(row) / all)} of the step)`));
      drawing.append(dot);
    }
    // The name stands below the kernel that takes most of the step, and lower where another one does already.
    const main = kernels.reduce((one, other) => least(one) > least(other) ? one : other);
    const intensity = Math.max(0.25, Math.min(4096, main.flops / main.bytes));
    const x = Math.min(right - 60, xOf(intensity) + 30);
    let y = yOf(Math.min(most, intensity * speed, peak ?? Infinity)) + 34;
    while (names.some(name => Math.abs(name.x - x) < 130 && Math.abs(name.y - y) < 16)) y += 16;
    names.push({ x, y });
    drawing.append(shape("text", { x, y, "text-anchor": "middle" }, stepName(step)));
  }
}

/** A line a step: what takes its time at least. */
function showBounds(speed, peak) {
  const steps = [...new Set((target()?.kernels ?? []).map(row => row.rows))].map(step => {
    const rows = target().kernels.filter(row => row.rows === step).map(work);
    const memory = row => speed === null ? 0 : row.bytes / speed, arithmetic = row => peak === null ? 0 : row.flops / peak;
    const least = sum(rows, row => Math.max(memory(row), arithmetic(row)));
    const waits = sum(rows.filter(row => memory(row) >= arithmetic(row)), memory);
    return { step, bytes: sum(rows, row => row.bytes), flops: sum(rows, row => row.flops), least,
      bound: least === 0 ? "unknown" : waits / least > 0.5 ? `memory (${percent(waits / least)} of the time)` :
        `arithmetic (${percent(1 - waits / least)} of the time)`, rate: least === 0 ? 0 : step / least };
  });
  sortable("bounds", [["step", row => stepName(row.step)], ["reads", row => row.bytes, bytes => size(Math.round(bytes))],
    ["computes", row => row.flops, operations], ["takes at least", row => row.least, seconds],
    ["tokens/s at most", row => row.rate, value => value.toFixed(1)], ["limited by", row => row.bound]], steps, { filter: false });
}
