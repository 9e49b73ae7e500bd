// Panels of curves: drawn when they are visible, with one cursor, one range of x and one form for all of them.
import { heldFocus, keepInAddress, rangeInAddress } from "./board.js";
import { onColours, styleOf, styled } from "./colours.js";
import { isShown, onEyes } from "./eyes.js";
import { partsOf, showLegend, showScale } from "./legend.js";
import { LinePlot } from "./line_plot.js";
import { fetchFile, fetchNumbers } from "./plots.js";
import { drawChart, showSelected } from "./run_charts.js";
import { sieve } from "./tables.js";
import { onRanges, openRangeDialog, rangeOf, readRanges, setRange } from "./y_ranges.js";

const form = document.getElementById("settings");
const place = () => document.getElementById("panels");
const figures = () => [...place().querySelectorAll("figure.panel")];
const drawn = new Map(); // what is drawn in each figure
const plots = new WeakMap(); // that of each figure of curves
const due = new Map(); // what each figure needs when it is visible: "load", or "draw" alone
const again = new Map(); // when what is drawn in a figure may be another, by performance.now()
const visible = new Set();
const onHover = [];
const AXES = ["step", "epoch", "time", "wall"];
const ALL = "*"; // in the address, the legend of all panels
const isWall = () => form.elements.x.value === "wall";
const isLogX = () => !isWall() && form.elements.log_x.checked;
let range = rangeInAddress("zoom"); // of x

/** Return what the form adds to the address of a panel, as `RunsView.settings` writes it. */
function settings() {
  const { x, smoothing, log_x, log_y, joined, band } = form.elements;
  const is = (box) => (box.checked ? "1" : "");
  const usual = { x: "step", smoothing: "0", log_x: "", log_y: "", joined: "", band: "interval" };
  const values = { x: x.value, smoothing: String(Number(smoothing.value)), log_x: is(log_x), log_y: is(log_y), joined: is(joined), band: band.value };
  return Object.entries(values).filter(([name, value]) => value !== usual[name]);
}

const isChart = (figure) => figure.hasAttribute("data-chart");

function urlOf(figure) {
  if (isChart(figure)) {
    const { charts } = place().dataset; // of all runs of the view, whatever the form of the curves says
    return `${charts}${charts.includes("?") ? "&" : "?"}panel=${figure.dataset.query}`;
  }
  const more = settings().map(([name, value]) => `&${name}=${encodeURIComponent(value)}`).join("");
  const [from, to] = range ?? [];
  return `${place().dataset.url}&panel=${figure.dataset.query}${more}${range ? `&from=${from}&to=${to}` : ""}`;
}

// ---------------------------------------------------------------------- drawing

function draw(figure) {
  const { found } = drawn.get(figure);
  return isChart(figure) ? drawChart(figure, found) : drawCurves(figure, found);
}

function drawCurves(figure, found) {
  if (!plots.has(figure)) plots.set(figure, makePlot(figure, found.metric));
  plots.get(figure).draw({
    curves: styled(found.curves).filter(({ key }) => isShown(key)),
    title: found.x_label,
    xKind: found.x === "wall" ? "date" : isLogX() ? "log" : "linear",
    yKind: form.elements.log_y.checked ? "log" : "linear",
    xRange: range,
    yRange: rangeOf(figure.dataset.panel),
    ignoresOutliers: form.elements.ignore_outliers.checked,
  });
  figure.dataset.drawn = found.curves.length;
  showOwnLegend(figure);
}

function makePlot(figure, name) {
  const plot = new LinePlot(figure.querySelector(".plot"), {
    name,
    csv: () => fetchFile(urlOf(figure).replace("/panel?", "/points?")),
    onRange: zoomed,
    onYRange: (chosen) => setRange(figure.dataset.panel, chosen),
    onRead: (x, keys) => {
      for (const one of visiblePlots()) one.point(x, one === plot);
      onHover.forEach((listener) => listener(keys.length === 1 ? keys[0] : null));
    },
  });
  return plot;
}

const visiblePlots = () => [...visible].map((figure) => plots.get(figure)).filter(Boolean);

async function load(figure) {
  const notes = figure.querySelector(".notes");
  const number = (figure.numAsked = (figure.numAsked ?? 0) + 1);
  delete figure.dataset.ready;
  try {
    const found = await fetchNumbers(urlOf(figure));
    if (number < figure.numAsked) return; // what was asked for later is drawn
    const text = isChart(figure) && JSON.stringify([{ ...found, look_again_s: 0 }, found.keys?.map((key) => [isShown(key), styleOf(key)])]);
    // Nobody is disturbed who drags or reads in a chart that shows the same.
    const isSame = text && drawn.get(figure)?.text === text;
    drawn.set(figure, { found, text });
    if (found.living) again.set(figure, performance.now() + 1000 * found.look_again_s);
    else again.delete(figure);
    notes.textContent = found.notes.join("; ");
    notes.classList.remove("problem");
    if (!isSame) await draw(figure);
    showLegendOfAll();
  } catch (error) {
    if (number < figure.numAsked) return;
    // Of more runs a chart may be drawn, a metric comes, and so does a board that is away.
    again.set(figure, performance.now() + 5000);
    notes.textContent = error.message;
    notes.classList.add("problem");
    if (error.isAway) due.set(figure, "load");
  }
  figure.dataset.ready = "1";
}

// ---------------------------------------------------------------------- legends

const legends = () => new URLSearchParams(location.search).getAll("legend");

/** Return the entries of a legend of figures: runs and groups in the order of their curves. */
function entriesOf(some) {
  const labels = new Map();
  for (const figure of some) {
    const found = drawn.get(figure)?.found;
    for (const { key } of found?.curves ?? []) if (!labels.has(key)) labels.set(key, found.labels[key] ?? key);
  }
  return [...labels].map(([key, label]) => ({ key, label }));
}

function showOwnLegend(figure) {
  const isAsked = legends().includes(figure.dataset.panel);
  const button = figure.querySelector("[data-own-legend]");
  if (button) button.ariaPressed = String(isAsked);
  let list = figure.querySelector(".legend");
  if (!isAsked) return list?.remove();
  if (!list) {
    list = Object.assign(document.createElement("ul"), { className: "legend", ariaLabel: `Legend of ${figure.dataset.panel}` });
    figure.querySelector(".plot").after(list);
  }
  showLegend(list, entriesOf([figure]), standOut, partsOf(drawn.get(figure)?.found));
}

function showLegendOfAll() {
  const list = document.getElementById("legend");
  if (!list) return;
  list.hidden = !legends().includes(ALL);
  form.querySelector("[data-legend]").ariaPressed = String(!list.hidden);
  if (!list.hidden) showLegend(list, entriesOf(figures()), standOut);
  showScale(document.getElementById("scale"));
}

document.addEventListener("click", ({ target }) => {
  const figure = target.closest("[data-own-legend]")?.closest("figure");
  const panel = figure?.dataset.panel ?? (target.closest("[data-legend]") ? ALL : null);
  if (panel === null) return;
  const asked = legends().includes(panel) ? legends().filter((one) => one !== panel) : [...legends(), panel];
  const url = new URL(location.href);
  url.searchParams.delete("legend");
  for (const one of asked) url.searchParams.append("legend", one);
  history.replaceState(history.state, "", url);
  if (figure) showOwnLegend(figure);
  else showLegendOfAll();
});

// ---------------------------------------------------------------------- what is visible

function serve(figure) {
  const what = due.get(figure);
  due.delete(figure);
  if (what === "load") return load(figure);
  return what === "draw" && drawn.has(figure) ? draw(figure) : null;
}

const observer = new IntersectionObserver((entries) => {
  for (const { isIntersecting, target } of entries) {
    if (isIntersecting) visible.add(target);
    else visible.delete(target);
    if (isIntersecting) serve(target);
  }
}, { rootMargin: "300px", scrollMargin: "300px" });

function watchAll() {
  for (const figure of figures()) {
    if (!due.has(figure) && !drawn.has(figure)) due.set(figure, "load");
    observer.observe(figure);
  }
}

/** Do something to every panel: to the visible ones now, to the others when they are. */
function all(what) {
  for (const figure of figures()) if (what === "load" || !due.has(figure)) due.set(figure, what);
  return Promise.all(figures().filter((figure) => visible.has(figure)).map(serve));
}

/** Show one range in all panels, null for all, and ask for the points that it has room for. */
async function zoomed(chosen) {
  if (!chosen && !range) return;
  range = chosen;
  keepInAddress("zoom", range ? range.join("..") : "");
  await all("load");
}

function redraw() {
  showLegendOfAll();
  return all("draw");
}

onEyes(redraw);
onColours(redraw);
onRanges((panel) => {
  for (const figure of figures()) {
    if (figure.dataset.panel !== panel) continue;
    due.set(figure, due.get(figure) ?? "draw");
    if (visible.has(figure)) serve(figure);
  }
});

document.addEventListener("click", ({ target }) => {
  const figure = target.closest("[data-range]")?.closest("figure");
  if (plots.get(figure)?.down) openRangeDialog(figure.dataset.panel, plots.get(figure).down.range);
});

form.addEventListener("submit", (event) => event.preventDefault());
form.elements.colour?.addEventListener("keydown", ({ key, target }) => key === "Enter" && target.blur()); // keys are shortcuts again
form.elements.smoothing.addEventListener("input", () => {
  form.querySelector("output").textContent = form.elements.smoothing.value;
});
for (const control of form.querySelectorAll("select, input[type=range], input[type=checkbox]")) {
  control.addEventListener("change", () => {
    if (control.name === "ignore_outliers") {
      keepInAddress(control.name, control.checked ? "1" : "");
      redraw();
      return;
    }
    if (control.name === "x" || control.name === "log_x") {
      range = null; // of another axis it is another range
      keepInAddress("zoom", "");
    }
    for (const name of ["x", "smoothing", "log_x", "log_y", "joined", "band"]) keepInAddress(name, new Map(settings()).get(name) ?? "");
    all("load");
  });
}

// A section says itself when it is opened or closed; `-` in the address opens all.
document.addEventListener("toggle", ({ target }) => {
  if (!target.matches?.(".section")) return;
  const closed = [...document.querySelectorAll(".section:not([open])")].map((one) => one.dataset.section);
  const isUsual = place().dataset.charts && document.querySelector(".section[data-section=system]") ? closed.join() === "system" : !closed.length;
  keepInAddress("closed", isUsual ? "" : closed[0] ?? "-");
  if (isUsual || closed.length < 2) return;
  const url = new URL(location.href);
  for (const name of closed.slice(1)) url.searchParams.append("closed", name);
  history.replaceState(history.state, "", url);
}, true);

// Any metric is an axis.
function offerAxes() {
  const { x } = form.elements;
  const names = figures().filter((figure) => !isChart(figure)).map((figure) => figure.dataset.panel);
  const group = x.querySelector("optgroup") ?? x.appendChild(Object.assign(document.createElement("optgroup"), { label: "metric" }));
  const there = new Set([...x.options].map(({ value }) => value));
  group.append(...names.filter((name) => !there.has(name) && !AXES.includes(name)).map((name) => new Option(name)));
}
for (const kind of ["pointerdown", "focus"]) form.elements.x.addEventListener(kind, offerAxes);

// ---------------------------------------------------------------------- what the page asks of them

/** Call a function with the run or group whose curve the pointer is at, or null. */
export function onCurve(listener) {
  onHover.push(listener);
}

/** Let the curves of one run or group stand out; null ends that. */
export function standOut(key) {
  for (const plot of visiblePlots()) plot.standOut(key);
  for (const figure of [...visible].filter(isChart)) showSelected(figure, key);
}

const outlineOf = (node) => JSON.stringify([...node.querySelectorAll(".section, figure.panel")].map(({ dataset }) => dataset.panel ?? [dataset.section]));

/** Take over the panels of a new page, and keep those that are the same; where all are, none is moved, and a drag in one goes on. */
export function renewPanels(fresh) {
  const known = new Map(figures().map((figure) => [figure.dataset.panel, figure]));
  const isSame = known.size > 0 && outlineOf(fresh) === outlineOf(place());
  const refocus = heldFocus(place()); // moving it takes its focus
  const open = new Map([...place().querySelectorAll(".section")].map((one) => [one.dataset.section, one.open]));
  for (const figure of fresh.querySelectorAll("figure.panel")) {
    const old = known.get(figure.dataset.panel);
    if (!old) continue;
    if (isChart(old)) due.set(old, "load"); // of other runs than before
    else if (old.className !== figure.className) due.set(old, due.get(old) ?? "draw");
    old.className = figure.className;
    const captions = [old, figure].map((one) => one.querySelector("figcaption"));
    if (!captions[0].isEqualNode(captions[1])) captions[0].replaceWith(captions[1]); // one that says the same keeps the key pressed in it
    if (!isSame) figure.replaceWith(old);
    known.delete(figure.dataset.panel);
  }
  for (const section of fresh.querySelectorAll(".section")) section.open = open.get(section.dataset.section) ?? section.open;
  for (const figure of known.values()) {
    observer.unobserve(figure);
    for (const held of [drawn, due, again, visible]) held.delete(figure);
  }
  const isOther = ["url", "charts"].some((name) => fresh.dataset[name] !== place().dataset[name]);
  if (isSame) Object.assign(place().dataset, fresh.dataset);
  else place().replaceWith(fresh);
  refocus(place());
  const search = form.querySelector(".sieve");
  if (search.value) sieve(search);
  watchAll();
  for (const figure of visible) if (due.has(figure) && !isOther) serve(figure);
  if (fresh.dataset.charts) {
    document.getElementById("joined").hidden = fresh.dataset.url.includes("group=");
    document.getElementById("band").hidden = !fresh.dataset.url.includes("group=");
  }
  for (const figure of figures()) showOwnLegend(figure);
  showLegendOfAll();
  return isOther ? all("load") : null;
}

/** Load again the panels of running runs, the charts, and what could not be loaded; return the seconds until that is due again. */
export async function followPanels() {
  const isFollowed = (figure) => visible.has(figure) && (!range || isChart(figure) || due.get(figure) === "load");
  const living = [...again.keys()].filter(isFollowed);
  const late = living.filter((figure) => again.get(figure) <= performance.now());
  for (const figure of late) due.delete(figure);
  await Promise.all(late.map(load));
  return Math.max(1, Math.min(5, ...living.map((figure) => (again.get(figure) - performance.now()) / 1000)));
}

/** Take over what the address says of the panels. */
export const readAddress = readRanges;

watchAll();
