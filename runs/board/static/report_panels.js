// Panels in a report: each has an address of its own, is drawn when it comes into sight, and follows its runs.
import { whenSeen } from "./board.js";
import { assign, onColours, styled } from "./colours.js";
import { isShown, onEyes } from "./eyes.js";
import { partsOf, showLegend } from "./legend.js";
import { LinePlot } from "./line_plot.js";
import { fetchFile, fetchNumbers } from "./plots.js";
import { drawChart } from "./run_charts.js";

const shown = new Map(); // of each figure that was seen: what is drawn, its plot, its range, and when to ask again
const colours = new Map(); // those that people chose, by key; empty for the others
const isChart = (figure) => figure.hasAttribute("data-chart");

function urlOf(figure) {
  const [from, to] = shown.get(figure)?.range ?? [];
  const range = from === undefined ? "" : `&from=${from}&to=${to}`;
  return `${figure.dataset.url}&panel=${encodeURIComponent(figure.dataset.panel)}${range}`;
}

async function load(figure) {
  const notes = figure.querySelector(".notes");
  const state = shown.get(figure) ?? {};
  shown.set(figure, state);
  try {
    state.found = await fetchNumbers(urlOf(figure));
    for (const { key } of state.found.curves ?? []) colours.set(key, state.found.chosen[key] ?? "");
    assign([...colours.keys()], new Map([...colours].filter(([, one]) => one)));
    state.again = state.found.living ? performance.now() + 1000 * state.found.look_again_s : Infinity;
    notes.textContent = state.found.notes.join("; ");
    notes.classList.remove("problem");
    figure.querySelector(".plot").hidden = false;
    await draw(figure);
  } catch (error) {
    state.again = performance.now() + 5000; // the board comes back, or the metric comes
    notes.textContent = error.message;
    notes.classList.add("problem");
    figure.querySelector(".plot").hidden = !state.found; // what was drawn stays
  }
  figure.dataset.ready = "1";
}

async function draw(figure) {
  const state = shown.get(figure);
  if (!state.found) return;
  if (isChart(figure)) {
    await drawChart(figure, state.found);
    return;
  }
  const { found } = state;
  const asked = new URL(figure.dataset.url, location.href).searchParams;
  state.plot ??= new LinePlot(figure.querySelector(".plot"), {
    name: found.metric,
    csv: () => fetchFile(urlOf(figure).replace("/panel?", "/points?")),
    onRange: (range) => {
      state.range = range ?? undefined;
      load(figure);
    },
    onYRange: (range) => {
      state.yRange = range ?? undefined;
    },
    onRead: (x) => state.plot.point(x, true),
  });
  const xKind = found.x === "wall" ? "date" : asked.get("log_x") ? "log" : "linear";
  const curves = styled(found.curves).filter(({ key }) => isShown(key));
  state.plot.draw({ curves, title: found.x_label, xKind, yKind: asked.get("log_y") ? "log" : "linear", xRange: state.range ?? null, yRange: state.yRange ?? null });
  nameCurves(figure, state);
  figure.dataset.drawn = found.curves.length;
}

/** Write the labels of curves below a plot. */
function nameCurves(figure, { found, plot }) {
  let list = figure.querySelector("ul.legend");
  if (!list) figure.querySelector(".plot").after((list = Object.assign(document.createElement("ul"), { className: "legend" })));
  const entries = [...new Set(found.curves.map(({ key }) => key))].map((key) => ({ key, label: found.labels[key] ?? key }));
  showLegend(list, entries, (key) => plot.standOut(key), partsOf(found));
}

/** Draw the panels below a node when they come into sight. */
export function showPanels(node) {
  whenSeen(node.querySelectorAll("figure.panel"), load);
}

/** Take over the addresses of the panels of a newer page, null without one, and load what may have changed; return the seconds to the next look. */
export async function followPanels(node, page) {
  const fresh = page ? [...page.querySelectorAll("article.report figure.panel")] : [];
  const figures = [...node.querySelectorAll("figure.panel")];
  for (const [at, figure] of figures.entries()) {
    const url = fresh[at]?.dataset.url ?? figure.dataset.url;
    if (url !== figure.dataset.url && shown.has(figure)) shown.get(figure).again = 0;
    figure.dataset.url = url;
  }
  const seen = figures.filter((figure) => shown.has(figure));
  const ranged = ({ range }) => range !== undefined; // a part that somebody looks at stays
  await Promise.all(seen.filter((figure) => shown.get(figure).again <= performance.now() && !ranged(shown.get(figure))).map(load));
  return Math.max(1, Math.min(10, ...seen.map((figure) => (shown.get(figure).again - performance.now()) / 1000)));
}

const redraw = () => [...shown.keys()].filter((figure) => figure.isConnected).forEach(draw);
onColours(redraw);
onEyes(redraw);
