// ---- The arithmetic of artifacts/src/fit.rs and account.rs: tests compare both ----

/** Pages of a KV group for one sequence of `context` tokens. */
function kvPages(group, context) {
  const all = Math.ceil(context / group.page_tokens);
  if (group.window_tokens === null) return all;
  return Math.min(all, Math.ceil((group.window_tokens + data.chunk_tokens) / group.page_tokens) + 1);
}
const kvBytes = (group, context) => 2 * group.page_bytes * group.n_layers * kvPages(group, context);

/** K and V that a decode step reads at the end of `context` tokens. */
function kvRead(group, context) {
  const tokens = group.window_tokens === null ? context : Math.min(group.window_tokens, context);
  if (group.is_state) return 2 * group.page_bytes * group.n_layers;
  return 2 * Math.floor(group.page_bytes / group.page_tokens) * group.n_layers * tokens;
}

/** Everything that needs memory, in the order in which it is placed. */
function partsAt(context) {
  const tables = tokens => 4 * sum(data.kv_groups, group => Math.ceil(tokens / group.page_tokens));
  const planned = data.account.context_tokens;
  return data.parts.map(part => ({ ...part, bytes: part.kind === "kv" ? kvBytes(data.kv_groups[part.index], context) :
    part.kind === "buffers" ? part.bytes + tables(context) - tables(planned) : part.bytes }));
}

/** Indices of the tiers that a preference allows, the best first. */
function orderOf(preference, tiers) {
  const all = [...tiers.keys()];
  if (preference === "fastest") return all;
  if (preference === "host visible") return all.reverse().filter(index => tiers[index].readers.includes("cpu"));
  const sparse = all.filter(index => tiers[index].sparse_rows);
  return [...sparse.reverse(), ...all.filter(index => !tiers[index].sparse_rows)];
}

/** The tier of each part, as an index; null if something finds no room, even with so much more in the slowest tier. */
function choose(tiers, parts, extra) {
  const free = tiers.map(tier => tier.budget_bytes ?? Infinity);
  if (free.length > 0) free[free.length - 1] += extra;
  const choices = [];
  for (const part of parts) {
    const found = orderOf(part.preference, tiers).find(index => part.bytes <= free[index]);
    if (found === undefined) return null;
    free[found] -= part.bytes;
    choices.push(found);
  }
  return choices;
}

/** Bytes by which the slowest tier is too small. */
function missing(tiers, parts) {
  let short = 0, enough = sum(parts, part => part.bytes);
  while (enough - short > 1) {
    const middle = short + Math.floor((enough - short) / 2);
    if (choose(tiers, parts, middle)) enough = middle; else short = middle;
  }
  return enough;
}

/** The artifact on a machine: each tier's parts and traffic, and the rate that its bandwidths permit. */
function fitOn(machine, context) {
  const tiers = machine.tiers.filter(tier => tier.readers.includes("gpu"));
  const parts = partsAt(context);
  const choices = choose(tiers, parts, 0);
  if (!choices) return { missing: missing(tiers, parts), tiers: [], read: 0, rate: null };
  const found = tiers.map((tier, index) => {
    const here = parts.filter((_, number) => choices[number] === index);
    const read = sum(here, part => part.kind === "kv" ? kvRead(data.kv_groups[part.index], context) : part.bytes_read_per_token);
    return { tier, parts: here, bytes: sum(here, part => part.bytes), read };
  });
  const readers = found.filter(one => one.read > 0);
  const known = readers.length > 0 && readers.every(one => one.tier.bytes_per_s !== null);
  const secondsOf = one => one.read / one.tier.bytes_per_s;
  return { missing: null, tiers: found, read: sum(readers, one => one.read), rate: known ? 1 / sum(readers, secondsOf) : null };
}

/** The longest context that fits; 0 if none does. */
function longestContext(machine) {
  const tiers = machine.tiers.filter(tier => tier.readers.includes("gpu"));
  const fits = context => choose(tiers, partsAt(context), 0) !== null;
  let longest = 0, tooLong = Math.max(data.model.max_positions, data.account.context_tokens) + 1;
  while (tooLong - longest > 1) {
    const middle = longest + Math.floor((tooLong - longest) / 2);
    if (fits(middle)) longest = middle; else tooLong = middle;
  }
  return longest;
}
