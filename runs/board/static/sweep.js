// The plots of a sweep: parallel coordinates that filter the table, history, importances, slices, heat map.
import { repeat, root } from "./board.js";
import { brushesOf, makeForm, writeBrushes } from "./brushes.js";
import { Scale, asFile, asPng, drawParallel } from "./parallel.js";
import { colour, configOf, download, fetchJson, layoutOf, lineColour, onScheme, plotly } from "./plots.js";

const $ = (id) => document.getElementById(id);
const id = $("sweep").dataset.sweep;
const MOST_BINS = 12;
// From bad to good: viridis, Smith and van der Walt 2015, https://bids.github.io/colormap/
const GOOD = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]];
const brushes = new Map();
let isAsked = false; // whether the brushes of the address are taken on
let showBrushes;
let showForm;
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
  writeBrushes(url.searchParams, brushes);
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

function colourOf(share) {
  const at = Math.min(GOOD.length - 2, Math.floor(share * (GOOD.length - 1)));
  const rest = share * (GOOD.length - 1) - at;
  return `rgb(${GOOD[at].map((one, part) => Math.round(one + (GOOD[at + 1][part] - one) * rest)).join(",")})`;
}

/** Return a text that plotly takes for no markup. */
function shown(text) {
  return String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
}

// ---------------------------------------------------------------------- parallel coordinates

function columns() {
  return [...data.parameters.map((name) => [name, (trial) => trial.parameters[name]]), [nameOf(), (trial) => valueOf(trial) ?? null]];
}

function parallel() {
  const good = goodness();
  const trials = complete().toSorted((a, b) => good.get(a.number) - good.get(b.number));
  const axes = columns();
  const scales = axes.map(([name, of]) => new Scale(name, trials.map(of)));
  const rows = trials.map((trial) => ({ number: trial.number, values: axes.map(([, of]) => of(trial)), color: colourOf(good.get(trial.number)) }));
  const colors = { text: colour("--text"), line: colour("--strong-line"), ground: colour("--bg"), accent: colour("--accent"), font: "system-ui, sans-serif" };
  if (!isAsked && trials.length) {
    isAsked = true;
    for (const [name, brush] of brushesOf(asked, scales)) brushes.set(name, brush);
    $("ranges").parentElement.open = brushes.size > 0;
  }
  showBrushes = drawParallel($("parallel").querySelector("svg"), scales, rows, colors, brushes, brushed);
  // What is being typed stays.
  if (!$("ranges").contains(document.activeElement)) showForm = makeForm($("ranges"), scales, brushes, brushed);
  choose();
}

function brushed(control) {
  choose(control);
  keep();
}

/** Show the brushes in the plot and in the form, and what they choose in the table. */
function choose(control) {
  showForm(control);
  chosen = showBrushes();
  filter();
}

/** Show the trials that are chosen in the table. */
function filter() {
  let count = 0;
  for (const row of $("trials").tBodies[0].rows) {
    row.hidden = chosen !== null && !chosen.has(Number(row.dataset.number));
    count += !row.hidden;
  }
  $("count").textContent = count;
  $("brushed").textContent = chosen === null ? "drag along an axis to choose trials" : `${chosen.size} trial${chosen.size === 1 ? "" : "s"} chosen; click an axis to choose all of it`;
}

for (const button of document.querySelectorAll("[data-save]")) {
  button.addEventListener("click", async () => {
    const svg = $("parallel").querySelector("svg");
    const name = `sweep_${id}_parallel.${button.dataset.save}`;
    if (button.dataset.save === "svg") download(name, new Blob([asFile(svg, colour("--bg"))], { type: "image/svg+xml" }));
    else if (button.dataset.save === "png") download(name, await asPng(svg, colour("--bg")));
    else download(name, new Blob([csv([["trial", ...columns().map(([one]) => one)], ...complete().map((trial) => [trial.number, ...columns().map(([, of]) => of(trial))])])], { type: "text/csv" }));
  });
}

function csv(rows) {
  const quote = (value) => (/[",\n]/.test(String(value)) ? `"${String(value).replaceAll('"', '""')}"` : String(value ?? ""));
  return rows.map((row) => row.map(quote).join(",")).join("\n") + "\n";
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
  return plot($("history").querySelector(".plot"), traces, { xaxis: { title: { text: "trial" } }, yaxis: { title: { text: shown(nameOf()) } }, hovermode: "closest" }, "history");
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
  const found = Object.entries(importances[objective()] ?? {});
  notes.textContent = found.length ? "part in the variation of the objective" : "too few trials have ended, or their values are all the same";
  if (!found.length) return;
  const names = Object.keys(found[0][1]).toReversed();
  const traces = found.map(([method, of], number) => ({ type: "bar", orientation: "h", name: method, y: names.map(shown), x: names.map((name) => of[name]), marker: { color: lineColour(number) } }));
  await plot(place, traces, { showlegend: true, legend: { orientation: "h", y: -0.12 }, hovermode: "closest", barmode: "group" }, "importances");
}

function slices() {
  const trials = complete();
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
    const scale = new Scale(name, trials.map((trial) => trial.parameters[name]));
    const x = trials.map((trial) => trial.parameters[name] ?? null).map((one) => (scale.isNumeric || one === null ? one : shown(one)));
    const marker = { color: trials.map((trial) => trial.number), colorscale: "Viridis", size: 7, line: { width: 0.5, color: colour("--strong-line") } };
    const traces = [{ x, y: trials.map(valueOf), text: trials.map((trial) => `trial ${trial.number}`), type: "scatter", mode: "markers", name: "trial", marker }];
    const xaxis = { title: { text: shown(name) }, type: scale.isNumeric ? (scale.isLog ? "log" : "linear") : "category", exponentformat: "e" };
    plot(figure.querySelector(".plot"), traces, { xaxis, yaxis: { title: { text: shown(nameOf()) } }, hovermode: "closest" }, `slice ${name}`);
  }
}

function fill(select, wanted) {
  if (select.options.length) return;
  for (const name of data.parameters) select.add(new Option(name, name));
  select.selectedIndex = Math.min(wanted, data.parameters.length - 1);
  select.dataset.usual = select.value;
  if (data.parameters.includes(asked.get(select.id))) select.value = asked.get(select.id);
  select.addEventListener("change", () => {
    heat();
    keep();
  });
}

/** Return bins of an axis: their labels, and the bin of a value. */
function binned(name, trials) {
  const values = trials.map((trial) => trial.parameters[name]);
  const scale = new Scale(name, values);
  const own = [...new Set(values.filter((one) => one !== null && one !== undefined))];
  if (!scale.isNumeric || (own.length <= MOST_BINS && own.length <= trials.length / 2)) {
    const sorted = scale.isNumeric ? own.toSorted((a, b) => a - b) : scale.names;
    return { labels: sorted.map(shown), of: (value) => sorted.indexOf(scale.isNumeric ? value : String(value)) };
  }
  const num = Math.min(MOST_BINS, Math.max(4, Math.ceil(Math.sqrt(trials.length))));
  const edge = (at) => (scale.isLog ? scale.low * (scale.high / scale.low) ** (at / num) : scale.low + ((scale.high - scale.low) * at) / num);
  const labels = Array.from({ length: num }, (_, at) => `${Number(edge(at).toPrecision(2))}–${Number(edge(at + 1).toPrecision(2))}`);
  return { labels, of: (value) => (value === null || value === undefined ? -1 : Math.min(num - 1, Math.floor(scale.place(value) * num))) };
}

function heat() {
  $("heat").hidden = data.parameters.length < 2;
  if ($("heat").hidden) return;
  fill($("heat-x"), 0);
  fill($("heat-y"), 1);
  const [x, y] = [$("heat-x").value, $("heat-y").value];
  const trials = complete();
  const [across, down] = [binned(x, trials), binned(y, trials)];
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
    type: "rect", layer: "below", x0: column - 0.5, x1: column + 0.5, y0: at - 0.5, y1: at + 0.5, fillcolor: colourOf(share(mean)), line: { width: 0 },
  }));
  const traces = [{
    type: "scatter", mode: "text", x: filled.map(({ column }) => column), y: filled.map(({ at }) => at),
    text: filled.map(({ mean }) => String(Number(mean.toPrecision(3)))),
    textfont: { size: 10.5, color: filled.map(({ mean }) => (share(mean) > 0.6 ? "#000" : "#fff")) },
    hovertext: filled.map(({ at, column, num, mean }) => `${across.labels[column]}, ${down.labels[at]}: ${mean.toPrecision(5)}, ${num} trial${num === 1 ? "" : "s"}`),
    hoverinfo: "text", name: "",
  }];
  const axis = (name, { labels }) => ({
    title: { text: shown(name), standoff: 8 }, tickvals: labels.map((_, at) => at), ticktext: labels, range: [-0.5, labels.length - 0.5], showgrid: false, zeroline: false,
  });
  const layout = { xaxis: axis(x, across), yaxis: axis(y, down), shapes, hovermode: "closest" };
  heatTable(x, y, across.labels, down.labels, cells);
  plot($("heat").querySelector(".plot"), traces, layout, "heat map", () =>
    csv([[x, y, `mean ${nameOf()}`, "trials"], ...filled.map(({ at, column, num, mean }) => [across.labels[column], down.labels[at], mean, num])]),
  );
}

/** Show the heat map as a table, for those who read it or go through it by keys. */
function heatTable(x, y, across, down, cells) {
  const table = document.createElement("table");
  table.className = "wide table";
  const plain = (label) => label.replaceAll("&lt;", "<").replaceAll("&gt;", ">").replaceAll("&amp;", "&");
  const head = (text, scope, row) => row.append(Object.assign(document.createElement("th"), { textContent: plain(text), scope }));
  table.createCaption().textContent = `Mean ${nameOf()}, and number of trials, by ${y} (rows) and ${x} (columns)`;
  const first = table.createTHead().insertRow();
  first.insertCell();
  across.forEach((label) => head(label, "col", first));
  const body = table.createTBody();
  cells.forEach((row, at) => {
    const line = body.insertRow();
    head(down[at], "row", line);
    for (const cell of row) {
      const mean = cell.reduce((a, b) => a + b, 0) / cell.length;
      line.insertCell().textContent = cell.length ? `${Number(mean.toPrecision(5))} (${cell.length})` : "–";
    }
  });
  $("heat-table").replaceChildren(table);
}

function intermediate() {
  const trials = data.trials.filter((trial) => trial.reports.length > 1).slice(-300);
  $("intermediate").hidden = !trials.length;
  if (!trials.length) return;
  const colors = { COMPLETED: lineColour(0), PRUNED: lineColour(5), RUNNING: lineColour(1), FAILED: lineColour(3), INTERRUPTED: lineColour(4) };
  const traces = trials.map((trial) => ({
    x: trial.reports.map(([step]) => step), y: trial.reports.map(([, value]) => value), type: "scatter", mode: "lines",
    name: `trial ${trial.number}, ${trial.state.toLowerCase()}`, opacity: 0.7, line: { width: 1.4, color: colors[trial.state] ?? lineColour(6) },
  }));
  plot($("intermediate").querySelector(".plot"), traces, { hovermode: "closest", xaxis: { title: { text: "step" } }, yaxis: { title: { text: shown(data.objectives[0]?.name ?? "value") } } }, "intermediate values");
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
await drawAll();
repeat(async () => {
  if (!data.living) return 30;
  if ($("parallel").querySelector("svg:active")) return 1; // somebody drags along an axis
  const known = data.trials.map((trial) => trial.state).join();
  if (await load()) await draw();
  if (data.trials.map((trial) => trial.state).join() !== known) {
    const answer = await fetch(location.href);
    const text = await answer.text();
    const rows = new DOMParser().parseFromString(text, "text/html").querySelector("#trials tbody");
    if (rows) $("trials").tBodies[0].replaceWith(rows);
    filter();
    importances = undefined;
    await importance();
  }
  return data.look_again_s;
});
