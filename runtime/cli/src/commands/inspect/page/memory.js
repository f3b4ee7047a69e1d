// ---- What it is, and whether it fits ----

const OWN = "my own";

function showHead() {
  const model = data.model, cost = data.quantisation;
  document.title = model.name;
  at("name").textContent = model.name;
  at("made").textContent = `${model.architecture} · ${model.n_layers} layers · at most ${count(model.max_positions)} tokens · made by ` +
    `unicorn-compile ${data.provenance.compiler_version}` + (model.synthetic ? " · synthetic: the weights are random" : "");
  at("planned").textContent = data.machine;
  const cards = [["parameters", scaled(model.parameters, [["billion", 1e9], ["million", 1e6], ["", 1]])],
    ["file", size(data.file_bytes)],
    ["bits per weight", data.mean_bits_per_weight === null ? "–" : data.mean_bits_per_weight.toFixed(2)],
    ["mean relative error", cost === null ? (data.tensors.length === 0 ? "–" : "none") : cost.mean_relative_error.toFixed(4)],
    ["weights read per token", size(model.weight_bytes_per_token)]];
  at("cards").replaceChildren(...cards.map(([name, value]) => {
    const card = element("div");
    card.append(element("dt", name), element("dd", value));
    return card;
  }));
}

/** The chosen machine. */
function machine() {
  const name = at("machine").value;
  if (name !== OWN) return data.machines[Number(name)];
  const number = id => Math.max(0, Number(at(id).value) || 0);
  const bandwidth = number("own-bandwidth") * 1e9;
  const tier = (name, id) => ({ tier: name, budget_bytes: Math.round(number(id) * 2 ** 30), bytes_per_s: bandwidth || null,
    readers: ["gpu", "cpu"], sparse_rows: true });
  return { name, about: "", flop_per_s: number("own-arithmetic") * 1e12 || null, tiers: [tier("vram", "own-vram"), tier("gtt", "own-gtt")] };
}
const context = () => Math.max(1, Math.min(2 ** 31, Math.floor(Number(at("context").value)) || data.account.context_tokens));

function chooseMachines() {
  const known = data.machines.filter(one => one.tiers.some(tier => tier.bytes_per_s !== null));
  data.machines.forEach((one, index) => {
    const option = element("option", one.name === "generic" ? "generic (unlimited)" : `${one.name}: ${one.about}`);
    option.value = index;
    at("machine").append(option);
  });
  at("machine").append(element("option", OWN));
  const first = known.find(one => one.planned) ?? known.find(one => one.missing_bytes === null) ?? data.machines[0];
  at("machine").value = data.machines.indexOf(first);
  at("context").value = data.account.context_tokens;
  at("context").max = data.model.max_positions;
}

/** Parts of one kind in a tier, weights by what they are for. */
function kindsIn(parts, of) {
  const kinds = new Map();
  const add = (kind, bytes) => kinds.set(kind, (kinds.get(kind) ?? 0) + bytes);
  for (const part of parts) {
    if (part.kind !== "weights") {
      add(part.kind, of(part));
      continue;
    }
    const here = data.weights.filter(weight => weight.slice === part.index);
    const total = sum(here, weight => weight.len_bytes), read = sum(here, weight => weight.bytes_read_per_token);
    const whole = of(part), share = weight => of === bytesOf ? weight.len_bytes / total : weight.bytes_read_per_token / read;
    for (const weight of here) if (whole > 0) add(weight.kind, whole * share(weight));
  }
  return KINDS.filter(kind => kinds.get(kind) > 0).map(kind => [kind, kinds.get(kind)]);
}
const bytesOf = part => part.bytes;

function showFit() {
  const chosen = machine(), tokens = context(), fit = fitOn(chosen, tokens), shown = new Set();
  at("own").hidden = chosen.name !== OWN;
  const longest = longestContext(chosen);
  at("verdict").className = "verdict " + (fit.missing === null ? "good" : "bad");
  at("verdict").textContent = fit.missing === null ?
    `Yes: ${size(sum(fit.tiers, tier => tier.bytes))} with ${count(tokens)} tokens; at most ${count(longest)} tokens fit.` :
    `No: ${size(fit.missing)} are missing. ` +
    (longest > 0 ? `${count(longest)} tokens fit.` : "No context is short enough.");
  const most = Math.max(1, ...fit.tiers.map(tier => tier.bytes));
  at("tiers").replaceChildren(...fit.tiers.map(({ tier, parts, bytes }) => {
    const full = tier.budget_bytes ?? most, bar = element("div", undefined, "bar"), block = element("div", undefined, "tier");
    for (const [kind, part] of kindsIn(parts, bytesOf)) {
      bar.append(piece(kind, part / full, `${KIND_NAMES[kind]}: ${size(Math.round(part))}`));
      shown.add(kind);
    }
    const limit = tier.budget_bytes === null ? "unlimited" : `${size(full)}, ${percent(bytes / full)} full`;
    block.append(element("p", `${tier.tier}: ${size(bytes)} of ${limit}`), bar);
    return block;
  }));
  showKey("memory-key", shown);
  const empty = fitOn(chosen, 0);
  at("estimate").textContent = fit.missing !== null ? "" : fit.rate === null ? "No estimate: the bandwidth is unknown." :
    `Estimate, not a measurement: at most ${rate(empty.rate ?? fit.rate)} with an empty cache, ${rate(fit.rate)} after ` +
    `${count(tokens)} tokens. ` + fit.tiers.filter(one => one.read > 0)
      .map(one => `${size(one.read)} of ${one.tier.tier} per token at ${gigabytes(one.tier.bytes_per_s)}`).join(", ") + ".";
}
