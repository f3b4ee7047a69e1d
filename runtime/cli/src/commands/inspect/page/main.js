// ---- Everything, and again what depends on the choices ----

/** What depends on machine and context. */
function showMachine() {
  const fit = fitOn(machine(), context());
  showFit();
  showTraffic(fit);
  showTarget();
}

/** What depends on the target, too. */
function showTarget() {
  const fit = fitOn(machine(), context());
  showRoofline(fit);
  showTimeline(fit);
  showQueues();
}

function main() {
  showHead();
  chooseMachines();
  for (const one of data.targets) at("target").append(element("option", one.name));
  const choices = ["machine", "context", "own-vram", "own-gtt", "own-bandwidth", "own-arithmetic"];
  for (const id of choices) at(id).addEventListener("input", showMachine);
  at("target").addEventListener("change", () => { showTarget(); showDispatches(); });
  at("step-zoom").addEventListener("input", () => showTimeline(fitOn(machine(), context())));
  showMachine();
  showErrors();
  showMap();
  showTables();
  showDispatches();
}

main();
