// The plots of a sweep: parallel coordinates that filter the table, history, importances, slices, heat map.
import { heldFocus, repeat, root } from "./board.js";
import { drawImportances, drawScatter, scaleOf, showTable } from "./charts.js";
import { ParallelPlot } from "./parallel.js";
import { lineColour } from "./colours.js";
import { configOf, csvText, fetchJson, layoutOf, onScheme, plain, plotly, viridis } from "./plots.js";
import { binned } from "./scales.js";

const $ = (id) => document.getElementById(id);
const id = $("sweep").dataset.sweep;
let chosen = null;
let data;
let importances;

const objective = () => Number($("objective")?.value ?? 0);
const asked = new URLSearchParams(location.search);
if (Number(asked.get("objective")) < $("objective")?.options.length) $("objective").selectedIndex = Number(asked.get("objective"));

/** Write into the address what is chosen, so that others open the same. */
function keep() {
  const url = new URL(location.href);
  if (objective()) url.searchParams.set("objective", objective());
  else url.searchParams.delete("objective");
  for (const select of [$("heat-x"), $("heat-y")]) {
    if (select.value !== select.dataset.usual) url.searchParams.set(select.id, select.value);
    else url.searchParams.delete(select.id);
  }
  window.history.replaceState(null, "", url);
}

const complete = () => data.trials.filter((trial) => trial.state === "COMPLETED" && typeof trial.values[objective()] === "number");
const valueOf = (trial) => trial.values[objective()];
const isMaximized = () => data.objectives[objective()]?.goal === "maximize";
const nameOf = () => data.objectives[objective()]?.name ?? "value";

/** Return how good a trial is among the others, from 0 to 1: by rank, as values may lie far apart. */
function goodness() {
  const sorted = complete().toSorted((a, b) => (isMaximized() ? valueOf(a) - valueOf(b) : valueOf(b) - valueOf(a)));
  return new Map(sorted.map((trial, rank) => [trial.number, sorted.length > 1 ? rank / (sorted.length - 1) : 1]));
}

/** Return complete trials as marks of charts, with values that functions find. */
function marksOf(...values) {
  return complete().map((trial) => ({ id: trial.number, label: nameOfTrial(trial), color: lineColour(0), values: values.map((of) => of(trial) ?? null) }));
}

const nameOfTrial = ({ number, runs }) => (runs.length ? `trial ${number}, run ${runs.join(", ")}` : `trial ${number}`);

// ---------------------------------------------------------------------- parallel coordinates

function columns() {
  return [...data.parameters.map((name) => [name, (trial) => trial.parameters[name]]), [nameOf(), (trial) => valueOf(trial) ?? null]];
}

const parallelPlot = new ParallelPlot($("parallel").querySelector(".plot"), "trial", `sweep ${id}`, (ids) => {
  chosen = ids;
  filter();
});

function parallel() {
  const good = goodness();
  const axes = columns();
  const marks = marksOf(...axes.map(([, of]) => of)).map((mark) => ({ ...mark, color: viridis(good.get(mark.id)) }));
  const scales = axes.map(([name], at) => scaleOf({ name }, at, marks));
  parallelPlot.draw(scales, marks.toSorted((a, b) => good.get(a.id) - good.get(b.id)));
}

/** Show the trials that are chosen in the table. */
function filter() {
  let count = 0;
  for (const row of $("trials").tBodies[0].rows) {
    row.hidden = chosen !== null && !chosen.has(Number(row.dataset.number));
    count += !row.hidden;
  }
  $("count").textContent = count;
}

// ---------------------------------------------------------------------- the others

async function plot(place, traces, layout, name, text) {
  return (await plotly()).react(place, traces, layoutOf(layout), configOf(`sweep ${id} ${name}`, text));
}

function history() {
  const trials = complete();
  let best = isMaximized() ? -Infinity : Infinity;
  const so_far = trials.map((trial) => (best = trial.feasible ? (isMaximized() ? Math.max : Math.min)(best, valueOf(trial)) : best));
  const x = trials.map((trial) => trial.number);
  const traces = [
    { x, y: trials.map(valueOf), type: "scatter", mode: "markers", name: "trial", marker: { color: lineColour(0), opacity: 0.65, size: 7 } },
    { x, y: so_far.map((one) => (Number.isFinite(one) ? one : null)), type: "scatter", mode: "lines", name: "best so far", line: { shape: "hv", color: lineColour(1), width: 2 } },
  ];
  return plot($("history").querySelector(".plot"), traces, { xaxis: { title: { text: "trial" } }, yaxis: { title: { text: plain(nameOf()) } }, hovermode: "closest" }, "history");
}

async function importance() {
  const place = $("importances").querySelector(".plot");
  const notes = $("importances").querySelector(".notes");
  if (!importances) notes.textContent = "being computed …";
  try {
    importances ??= (await fetchJson(`${root}/sweep/importances?${new URLSearchParams({ id })}`)).importances;
  } catch (error) {
    notes.textContent = error.message;
    return;
  }
  const found = importances[objective()] ?? {};
  const isAny = Object.keys(found).length > 0;
  notes.textContent = isAny ? "part in the variation of the objective" : "too few trials have ended, or their values are all the same";
  if (!isAny) return;
  await drawImportances(place, found, `sweep ${id} importances`);
  heat(); // of the most important parameters
}

function slices() {
  for (const [at, name] of data.parameters.entries()) {
    let figure = $("slices").children[at];
    if (!figure) {
      figure = document.createElement("figure");
      figure.className = "panel";
      figure.setAttribute("aria-label", `${name} and the objective`);
      const place = document.createElement("div");
      place.className = "plot";
      figure.append(place);
      $("slices").append(figure);
    }
    const marks = marksOf((trial) => trial.parameters[name], valueOf, (trial) => trial.number);
    drawScatter(figure.querySelector(".plot"), [{ name }, { name: nameOf() }, { name: "trial" }], marks, `sweep ${id} slice ${name}`);
  }
}

/** Offer the parameters; until one is chosen, that of a rank among the most important ones is. */
function fill(select, rank) {
  const isNew = !select.options.length;
  for (const name of isNew ? data.parameters : []) select.add(new Option(name, name));
  const isUsual = isNew || select.value === select.dataset.usual;
  const [shares] = Object.values(importances?.[objective()] ?? {});
  const ranked = [...new Set([...Object.keys(shares ?? {}), ...data.parameters])].filter((name) => data.parameters.includes(name));
  select.dataset.usual = ranked[Math.min(rank, ranked.length - 1)];
  if (isUsual) select.value = select.dataset.usual;
  if (!isNew) return;
  if (data.parameters.includes(asked.get(select.id))) {
    select.value = asked.get(select.id);
    select.dataset.usual = ""; // it stays
  }
  select.addEventListener("change", () => {
    heat();
    keep();
  });
}

function heat() {
  $("heat").hidden = data.parameters.length < 2;
  if ($("heat").hidden) return;
  fill($("heat-x"), 0);
  fill($("heat-y"), 1);
  const [x, y] = [$("heat-x").value, $("heat-y").value];
  const trials = complete();
  const [across, down] = [x, y].map((name) => {
    const marks = marksOf((trial) => trial.parameters[name]);
    return binned(scaleOf({ name }, 0, marks), marks.map(({ values }) => values[0]));
  });
  const cells = down.labels.map(() => across.labels.map(() => []));
  for (const trial of trials) {
    const [column, row] = [across.of(trial.parameters[x]), down.of(trial.parameters[y])];
    if (column >= 0 && row >= 0) cells[row][column].push(valueOf(trial));
  }
  const found = cells.flatMap((row, at) => row.map((cell, column) => ({ at, column, num: cell.length, mean: cell.reduce((a, b) => a + b, 0) / cell.length })));
  const filled = found.filter(({ num }) => num);
  const means = filled.map(({ mean }) => mean);
  const [low, high] = [Math.min(...means), Math.max(...means)];
  const share = (mean) => (high > low ? (isMaximized() ? mean - low : high - mean) / (high - low) : 1);
  // Of rectangles: plotly's own heat maps need styles that the content security policy forbids.
  const shapes = filled.map(({ at, column, mean }) => ({
    type: "rect", layer: "below", x0: column - 0.5, x1: column + 0.5, y0: at - 0.5, y1: at + 0.5, fillcolor: viridis(share(mean)), line: { width: 0 },
  }));
  const traces = [{
    type: "scatter", mode: "text", x: filled.map(({ column }) => column), y: filled.map(({ at }) => at),
    text: filled.map(({ mean }) => String(Number(mean.toPrecision(3)))),
    textfont: { size: 10.5, color: filled.map(({ mean }) => (share(mean) > 0.6 ? "#000" : "#fff")) },
    hovertext: filled.map(({ at, column, num, mean }) => plain(`${across.labels[column]}, ${down.labels[at]}: ${mean.toPrecision(5)}, ${num} trial${num === 1 ? "" : "s"}`)),
    hoverinfo: "text", name: "",
  }];
  const axis = (name, { labels }) => ({
    title: { text: plain(name), standoff: 8 }, tickvals: labels.map((_, at) => at), ticktext: labels.map(plain), tickmode: "array", ticklabeloverflow: "allow", autotickangles: [0, -35, -90], range: [-0.5, labels.length - 0.5], showgrid: false, zeroline: false,
  });
  const layout = { xaxis: axis(x, across), yaxis: axis(y, down), shapes, hovermode: "closest" };
  const head = [["", ...across.labels], ...cells.map((row, at) => [down.labels[at], ...row.map(written)])];
  showTable($("heat-table"), `Mean ${nameOf()}, and number of trials, by ${y} (rows) and ${x} (columns)`, head);
  return plot($("heat").querySelector(".plot"), traces, layout, "heat map", () =>
    csvText([[x, y, `mean ${nameOf()}`, "trials"], ...filled.map(({ at, column, num, mean }) => [across.labels[column], down.labels[at], mean, num])]),
  );
}

const written = (cell) => (cell.length ? `${Number((cell.reduce((a, b) => a + b, 0) / cell.length).toPrecision(5))} (${cell.length})` : "–");

function intermediate() {
  const trials = data.trials.filter((trial) => trial.reports.length > 1).slice(-300);
  $("intermediate").hidden = !trials.length;
  if (!trials.length) return;
  const colors = { COMPLETED: lineColour(0), PRUNED: lineColour(5), RUNNING: lineColour(1), FAILED: lineColour(3), INTERRUPTED: lineColour(4) };
  const traces = trials.map((trial) => ({
    x: trial.reports.map(([step]) => step), y: trial.reports.map(([, value]) => value), type: "scatter", mode: "lines",
    name: `trial ${trial.number}, ${trial.state.toLowerCase()}`, opacity: 0.7, line: { width: 1.4, color: colors[trial.state] ?? lineColour(6) },
  }));
  plot($("intermediate").querySelector(".plot"), traces, { hovermode: "closest", xaxis: { title: { text: "step" } }, yaxis: { title: { text: plain(data.objectives[0]?.name ?? "value") } } }, "intermediate values");
}

/** Ask how the sweep stands; return whether its trials are others than before. */
async function load() {
  const known = JSON.stringify(data?.trials);
  data = await fetchJson(`${root}/sweep/data?${new URLSearchParams({ id })}`);
  $("status").firstElementChild.textContent = data.line;
  return JSON.stringify(data.trials) !== known;
}

async function draw() {
  parallel();
  await history();
  heat();
  slices();
  intermediate();
}

async function drawAll() {
  await load();
  await draw();
  await importance();
  $("sweep").dataset.ready = "1";
}

$("objective")?.addEventListener("change", async () => {
  await drawAll();
  keep();
});
onScheme(drawAll);

async function look() {
  if (!data.living) return 30;
  if ($("parallel").querySelector("svg:active")) return 1; // somebody drags along an axis
  const known = data.trials.map((trial) => trial.state).join();
  if (await load()) await draw();
  if (data.trials.map((trial) => trial.state).join() !== known) {
    const answer = await fetch(location.href);
    const text = await answer.text();
    const rows = new DOMParser().parseFromString(text, "text/html").querySelector("#trials tbody");
    const refocus = heldFocus($("trials"));
    if (rows) $("trials").tBodies[0].replaceWith(rows);
    refocus();
    filter();
    importances = undefined;
    await importance();
  }
  return data.look_again_s;
}

drawAll().then(() => repeat(look));
