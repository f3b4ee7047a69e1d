// ---- Tables ----

/**
 * A table whose headings sort it and whose field filters it; a column is [heading, value of a row, text of the value if not itself].
 */
function sortable(place, columns, rows, { filter = true } = {}) {
  const table = element("table"), head = element("tr"), body = element("tbody");
  const numeric = columns.map(([, value]) => rows.length > 0 && rows.every(row => typeof value(row) === "number"));
  const textOf = (row, [, value, text]) => text ? text(value(row)) : String(value(row));
  const field = element("input"), found = element("span");
  let ordered = rows;
  const fill = () => {
    const wanted = field.value.trim().toLowerCase();
    const list = wanted === "" ? ordered :
      ordered.filter(row => columns.some(column => textOf(row, column).toLowerCase().includes(wanted)));
    found.textContent = wanted === "" ? `${count(rows.length)} rows` : `${count(list.length)} of ${count(rows.length)} rows`;
    body.replaceChildren(...list.map(row => {
      const line = element("tr");
      columns.forEach((column, index) => {
        const cell = element("td", undefined, numeric[index] ? "number" : "");
        if (numeric[index]) cell.dataset.value = column[1](row);
        // Fused names are long: a line may end after each plus.
        for (const part of textOf(row, column).split(/(?<=\+)/)) cell.append(part, element("wbr"));
        line.append(cell);
      });
      return line;
    }));
  };
  columns.forEach(([heading, value], index) => {
    const cell = element("th", undefined, numeric[index] ? "number" : ""), button = element("button", heading);
    button.addEventListener("click", () => {
      // Numbers are looked at from the largest down, names from the first on.
      const was = cell.getAttribute("aria-sort");
      const descending = was ? was === "ascending" : numeric[index];
      for (const other of head.children) other.removeAttribute("aria-sort");
      cell.setAttribute("aria-sort", descending ? "descending" : "ascending");
      const order = (a, b) => numeric[index] ? value(a) - value(b) :
        String(value(a)).localeCompare(String(value(b)), "en", { numeric: true });
      ordered = [...rows].sort((a, b) => descending ? order(b, a) : order(a, b));
      fill();
    });
    cell.append(button);
    head.append(cell);
  });
  field.placeholder = "filter";
  field.setAttribute("aria-label", "filter");
  field.addEventListener("input", fill);
  fill();
  const header = element("thead"), scroll = element("div", undefined, "scroll"), line = element("p", undefined, "filter");
  header.append(head);
  table.append(header, body);
  scroll.append(table);
  line.append(field, found);
  at(place).replaceChildren(...(filter ? [line, scroll] : [scroll]));
}

function showDispatches() {
  const numbered = (target()?.decode ?? []).map((dispatch, index) => ({ ...dispatch, index }));
  sortable("dispatches", [["#", row => row.index], ["dispatch", row => row.label], ["kernel", row => row.kernel],
    ["workgroups", row => row.workgroups.join(" × ")], ["weights", row => row.weight_bytes, size],
    ["KV cache", row => row.kv_bytes, size],
    ["waits for those before", row => ({ free: "no", barrier: "by a barrier", counter: "by a counter" })[row.order]]], numbered);
}

function showTables() {
  sortable("weights", [["layer", row => row.layer ?? -1, layer => layer < 0 ? "–" : String(layer)],
    ["name", row => row.name], ["kind", row => row.kind], ["size", row => row.len_bytes, size], ["tier", row => row.tier],
    ["slice", row => row.slice], ["offset", row => row.offset_bytes, size], ["read per token", row => row.bytes_read_per_token, size],
    ["of all", row => row.share_of_traffic, percent], ["why", row => row.reason]],
    [...data.weights].sort((one, other) => other.len_bytes - one.len_bytes));
  sortable("tensors", [["name", row => row.name], ["rows", row => row.rows], ["columns", row => row.cols],
    ["format", row => row.format], ["bits per weight", row => row.bits_per_weight, bits => bits.toFixed(3)],
    ["relative error", row => row.relative_error, error => error.toFixed(5)]], data.tensors);
  sortable("programs", [["target", row => row.target], ["rows", row => row.rows], ["logits", row => row.logits],
    ["samples", row => row.samples ? "yes" : "no"], ["dispatches", row => row.dispatches], ["barriers", row => row.barriers],
    ["weights", row => row.weight_bytes, size]],
    data.targets.flatMap(target => target.programs.map(program => ({ ...program, target: target.name }))));
  const others = [
    ...data.kv_groups.map((group, index) => ({ name: `KV group ${index}, ${group.n_layers} layers`, offset: 0,
      bytes: group.bytes_per_sequence, tier: group.tier, reason: group.reason })),
    ...data.buffers.map(buffer => ({ ...buffer, offset: 0 })),
    ...data.activations.map(one => ({ name: `activation ${one.name}`, offset: one.offset_bytes, bytes: one.len_bytes,
      tier: one.tier, reason: `dispatches ${one.first_use} to ${one.last_use}, ${one.reason}` })),
  ];
  sortable("buffers", [["name", row => row.name], ["size", row => row.bytes, size], ["offset", row => row.offset, size],
    ["tier", row => row.tier], ["why", row => row.reason]], others);
  const made = [...Object.entries(data.provenance.options), ["compiler", data.provenance.compiler_version],
    ["source BLAKE3", data.provenance.source_blake3], ["file", `${size(data.file_bytes)}, format ${data.format_version}`]];
  sortable("options", [["what", row => row[0]], ["how", row => row[1]]], made);
}
