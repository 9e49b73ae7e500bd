// Charts of any runs in the panels of the workspace: they follow eyes, groups, colours, brushes and the selection.
import { root } from "./board.js";
import { drawHistogram, drawImportances, drawScatter, countsOf, scaleOf, sharesOf, showTable, tableOf } from "./charts.js";
import { shadeOf, styleOf } from "./colours.js";
import { isShown } from "./eyes.js";
import { ParallelPlot } from "./parallel.js";
import { viridis } from "./plots.js";
import { addSelected, onSelected, selected } from "./selected.js";

const addressOf = (id) => `${root}/runs/${encodeURIComponent(id)}`;
const drawn = new WeakMap(); // of each figure: its table, its parallel coordinates, and the keys of its runs

/** Return the runs of an answer that are shown; those of hidden groups and runs are not. */
function marksOf({ ids, keys, shades, rows }) {
  const colorOf = (at) => (shades ? shadeOf(shades[at]) : styleOf(keys[at])).color;
  return ids.map((id, at) => ({ id, label: `run ${id}`, key: keys[at], color: colorOf(at), values: rows[at] })).filter(({ key }) => isShown(key));
}

/** Return lines of marks, coloured by the rank of their last value unless they are grouped. */
function linesOf(marks, isGrouped) {
  const last = ({ values }) => values.at(-1);
  if (isGrouped || !marks.every((mark) => typeof (last(mark) ?? 0) === "number")) return marks;
  const sorted = marks.toSorted((a, b) => (last(a) ?? -Infinity) - (last(b) ?? -Infinity));
  return sorted.map((mark, rank) => ({ ...mark, color: viridis(sorted.length > 1 ? rank / (sorted.length - 1) : 1) }));
}

const KINDS = {
  scatter: async (plot, found, marks) => {
    await drawScatter(plot, found.fields, marks, found.metric);
    return tableOf(found.fields, marks);
  },
  histogram: async (plot, found, marks) => {
    await drawHistogram(plot, found.fields[0], marks, found.grouped, found.metric);
    return countsOf(found.fields[0], marks, found.grouped);
  },
  importances: async (plot, found) => {
    await drawImportances(plot, found.methods, found.metric);
    return sharesOf(found.methods);
  },
  parallel: async (plot, found, marks, state) => {
    state.parallel ??= makeParallel(plot, found);
    state.parallel.draw(found.fields.map((field, at) => scaleOf(field, at, marks)), linesOf(marks, found.grouped));
    return tableOf(found.fields, marks);
  },
};

function makeParallel(plot, found) {
  const choose = Object.assign(document.createElement("button"), { type: "button", textContent: "Select these", hidden: true });
  let chosen = null;
  const parallel = new ParallelPlot(plot, "run", found.metric, (ids) => {
    chosen = ids;
    choose.hidden = !ids?.size || !document.getElementById("actions"); // groups have no selection
  });
  choose.addEventListener("click", () => addSelected(chosen));
  parallel.state.after(choose);
  plot.classList.add("free");
  return parallel;
}

/** Draw the chart of an answer in a figure. */
export async function drawChart(figure, found) {
  const state = drawn.get(figure) ?? { table: makeTable(figure) };
  drawn.set(figure, state);
  const marks = found.rows ? marksOf(found) : [];
  state.keys = new Map(marks.map(({ id, key }) => [id, key]));
  const rows = await KINDS[found.kind](figure.querySelector(".plot"), found, marks, state);
  state.show = () => showTable(state.table, found.metric, rows, found.kind === "scatter" || found.kind === "parallel" ? addressOf : undefined);
  if (state.table.parentElement.open) state.show();
  showSelected(figure);
  if (found.kind === "scatter") openOnClick(figure.querySelector(".plot"));
}

function makeTable(figure) {
  const details = document.createElement("details");
  const place = Object.assign(document.createElement("div"), { className: "scroll short", tabIndex: 0, role: "region", ariaLabel: `${figure.getAttribute("aria-label")} as a table` });
  details.append(Object.assign(document.createElement("summary"), { textContent: "As a table" }), place);
  details.addEventListener("toggle", () => details.open && drawn.get(figure).show());
  figure.append(details);
  return place;
}

function openOnClick(plot) {
  if (plot.dataset.opens) return;
  plot.dataset.opens = "1";
  plot.on("plotly_click", ({ points, event }) => {
    const address = addressOf(points[0].customdata);
    if (event.ctrlKey || event.metaKey) window.open(address);
    else location.assign(address);
  });
}

/** Call a function with each mark that a figure shows, and the id of its run. */
function eachMark(figure, action) {
  for (const line of figure.querySelectorAll("path[data-mark]")) action(line, line.dataset.mark);
  for (const trace of figure.querySelectorAll(".scatterlayer .trace")) {
    const ids = trace.__data__?.[0]?.trace?.customdata ?? [];
    trace.querySelectorAll(".points path").forEach((point) => action(point, ids[point.__data__.i]));
  }
}

/** Let the selected runs stand out, or those of a run's or group's key; of none, all look the same. */
export function showSelected(figure, key = null) {
  const { keys } = drawn.get(figure) ?? {};
  const isAny = key !== null || selected.size > 0;
  eachMark(figure, (mark, id) => {
    const stands = key === null ? selected.has(id) : keys?.get(id) === key;
    mark.style.opacity = !isAny || stands ? "" : "0.15";
  });
}

onSelected(() => {
  for (const figure of document.querySelectorAll("figure[data-chart]")) showSelected(figure);
});
