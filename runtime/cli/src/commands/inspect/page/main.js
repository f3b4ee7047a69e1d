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
}

function main() {
  showHead();
  chooseMachines();
  for (const one of data.targets) at("target").append(element("option", one.name));
  for (const id of ["machine", "context", "own-vram", "own-gtt", "own-bandwidth"]) at(id).addEventListener("input", showMachine);
  at("target").addEventListener("change", () => { showTarget(); showDispatches(); });
  at("step-zoom").addEventListener("input", () => showTimeline(fitOn(machine(), context())));
  showMachine();
  showErrors();
  showMap();
  showTables();
  showDispatches();
}

main();
