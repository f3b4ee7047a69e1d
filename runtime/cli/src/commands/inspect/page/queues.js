// ---- The queues of GPU and NPU in a step, with their waits: the model's, or else those of the draft in the file ----

function showQueues() {
  const parts = [["", data.npu], [" of the draft", data.draft?.npu]].filter(([, npu]) => npu?.memory.length > 0);
  at("npu").hidden = parts.length === 0;
  if (at("npu").hidden) return;
  const [whose, npu] = parts[0], queues = npu.queues.find(one => one.target === target()?.name);
  const drawing = at("queues"), entries = queues?.entries ?? [];
  drawing.replaceChildren();
  at("npu-memory").textContent = parts.map(([whose, { memory }]) => `${size(sum(memory, one => one.bytes))} of system memory${whose}: ` +
    memory.map(one => `${one.name} ${size(one.bytes)}`).join(", ")).join("; ");
  if (!queues) {
    at("queues-sum").textContent = "This artifact has no steps with the NPU for the target.";
    return;
  }
  const commands = entries.filter(entry => entry.queue === "npu");
  const [fast, slow] = [0, 1].map(clock => sum(commands, entry => entry.estimated_seconds[clock]));
  at("queues-sum").textContent = `A step of ${queues.rows} tokens${whose} on ${queues.target}: ` +
    `${queues.dispatches} dispatches of the GPU and ${queues.commands} commands of the NPU in ${commands.length} runs, ` +
    `${seconds(fast)} to ${seconds(slow)} of them by estimate, never run on hardware. The GPU's times are not known before they are measured: ` +
    "all blocks are equally wide.";
  const wide = 46, gap = 10, gutter = 44, lane = { gpu: 8, npu: 56 }, height = 96;
  const width = gutter + (1 + Math.max(...entries.map(entry => entry.begins_at))) * (wide + gap);
  Object.entries({ width, height, viewBox: `0 0 ${width} ${height}` }).forEach(([name, value]) => drawing.setAttribute(name, value));
  drawing.append(shape("text", { x: 2, y: lane.gpu + 18 }, "GPU"), shape("text", { x: 2, y: lane.npu + 18 }, "NPU"));
  const left = entry => gutter + entry.begins_at * (wide + gap);
  entries.forEach((entry, index) => {
    const block = shape("rect", { x: left(entry), y: lane[entry.queue], width: wide, height: 26, class: `queue ${entry.queue}` });
    const wait = entry.waits_for === null ? "" : `; waits for ${entry.waits_for}, which hands over ${size(entry.handed_bytes)}`;
    const time = entry.estimated_seconds === null ? "" : `; ${entry.estimated_seconds.map(seconds).join(" to ")}, an estimate`;
    const what = entry.queue === "npu" ? entry.what : `${entry.dispatches} dispatches, ${entry.what}`;
    const text = `${index}: ${what}, rows ${entry.rows[0]} to ${entry.rows[1] - 1}${wait}${time}`;
    block.append(shape("title", {}, text));
    block.addEventListener("mouseenter", () => { at("queue-entry").textContent = text; });
    drawing.append(block);
    if (entry.waits_for === null) return;
    const other = entries[entry.waits_for];
    drawing.append(shape("line", { x1: left(other) + wide, y1: lane[other.queue] + 13, x2: left(entry), y2: lane[entry.queue] + 13,
      class: "barrier" }));
  });
}
