// ---- Relative error by layer and kind ----

/** From a pale to a dark colour, for a share of the range. */
const heat = share => `hsl(${50 - 45 * share} ${75}% ${88 - 50 * share}%)`;

function showErrors() {
  const lossy = data.tensors.filter(tensor => tensor.relative_error > 0), cost = data.quantisation;
  if (cost === null) {
    at("cost").textContent = data.tensors.length === 0 ? "Not known: the artifact lists no source tensors." :
      "Nowhere: no tensor lost precision.";
    return;
  }
  const errors = lossy.map(tensor => tensor.relative_error);
  const low = errors.reduce((one, other) => Math.min(one, other)), high = cost.worst_relative_error;
  at("cost").textContent = `‖w − ŵ‖ / ‖w‖ of ${lossy.length} of ${data.tensors.length} tensors: ` +
    `${cost.mean_relative_error.toFixed(4)} on average, most in ${cost.worst} (${high.toFixed(4)}).`;
  const kinds = new Map(), layers = new Set();
  for (const tensor of lossy) {
    const [, layer, rest] = /^(?:.*?\.)?layers\.(\d+)\.(.*)$/.exec(tensor.name) ?? [, null, tensor.name];
    const kind = rest.replace(/\.weight$/, "").replace(/^(self_attn|mlp)\./, "").replace(/experts\.\d+\./, "experts.");
    if (!kinds.has(kind)) kinds.set(kind, new Map());
    const cells = kinds.get(kind), key = layer === null ? -1 : Number(layer);
    // Of several experts the worst is shown.
    if (!(cells.get(key)?.relative_error >= tensor.relative_error)) cells.set(key, tensor);
    if (layer !== null) layers.add(key);
  }
  const columns = [...layers].sort((one, other) => one - other), table = element("table");
  const colour = error => heat(high > low ? (error - low) / (high - low) : 0.5);
  const cell = tensor => {
    const made = element("td");
    if (tensor) {
      made.style.background = colour(tensor.relative_error);
      made.title = `${tensor.name}: ${tensor.relative_error.toFixed(5)}, ${tensor.format}, ${tensor.bits_per_weight.toFixed(2)} bits per weight`;
    }
    return made;
  };
  const mean = cells => sum([...cells.values()], tensor => tensor.relative_error) / cells.size;
  for (const [kind, cells] of [...kinds].sort((one, other) => mean(other[1]) - mean(one[1]))) {
    const line = element("tr");
    line.append(element("th", kind));
    line.append(...(cells.has(-1) && cells.size === 1 ? [cell(cells.get(-1))] : columns.map(layer => cell(cells.get(layer)))));
    if (cells.has(-1) && columns.length > 1) {
      const rest = element("td");
      rest.colSpan = columns.length - 1;
      line.append(rest);
    }
    line.append(element("td", `${mean(cells).toFixed(4)} on average`, "figure"));
    table.append(line);
  }
  const numbers = element("tr", undefined, "layers");
  numbers.append(element("th", "layer"), ...columns.map((layer, index) => element("td", index % 5 === 0 ? String(layer) : "")));
  table.append(numbers);
  const ramp = element("span", undefined, "ramp"), key = element("p");
  ramp.style.background = `linear-gradient(to right, ${[0, .25, .5, .75, 1].map(heat).join(", ")})`;
  key.append(low.toFixed(4) + " ", ramp, " " + high.toFixed(4));
  at("errors").replaceChildren(table, key);
}
