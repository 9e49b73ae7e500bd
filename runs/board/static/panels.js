// Panels of curves: drawn when they are visible, with one cursor, one range and one form for all of them.
import { keepInAddress, rangeInAddress } from "./board.js";
import { isShown, onEyes } from "./eyes.js";
import { LinePlot } from "./line_plot.js";
import { fetchFile, fetchNumbers, onScheme } from "./plots.js";
import { drawChart, showSelected } from "./run_charts.js";

const form = document.getElementById("settings");
const place = () => document.getElementById("panels");
const drawn = new Map(); // what is drawn in each figure
const plots = new WeakMap(); // that of each figure of curves
const due = new Map(); // what each figure needs when it is visible: "load", or "draw" alone
const again = new Map(); // when what is drawn in a figure may be another, by performance.now()
const visible = new Set();
const onHover = [];
const isWall = () => form.elements.x.value === "wall";
const isLogX = () => !isWall() && form.elements.log_x.checked;
let range = rangeInAddress("zoom"); // in steps or seconds

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
    curves: found.curves.filter(({ key }) => isShown(key)),
    title: found.x_label,
    xKind: found.x === "wall" ? "date" : isLogX() ? "log" : "linear",
    yKind: form.elements.log_y.checked ? "log" : "linear",
    xRange: range,
  });
  figure.dataset.drawn = found.curves.length;
}

function makePlot(figure, name) {
  const plot = new LinePlot(figure.querySelector(".plot"), {
    name,
    csv: () => fetchFile(urlOf(figure).replace("/panel?", "/points?")),
    onRange: zoomed,
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
    const text = isChart(figure) && JSON.stringify([{ ...found, look_again_s: 0 }, found.keys?.map(isShown)]);
    // Nobody is disturbed who drags or reads in a chart that shows the same.
    const isSame = text && drawn.get(figure)?.text === text;
    drawn.set(figure, { found, text });
    if (found.living) again.set(figure, performance.now() + 1000 * found.look_again_s);
    else again.delete(figure);
    notes.textContent = found.notes.join("; ");
    notes.classList.remove("problem");
    if (!isSame) await draw(figure);
  } catch (error) {
    if (number < figure.numAsked) return;
    // Of more runs a chart may be drawn; a board that is away comes back.
    if (isChart(figure) || error.isAway) again.set(figure, performance.now() + 5000);
    notes.textContent = error.message;
    notes.classList.add("problem");
    if (error.isAway) due.set(figure, "load");
  }
  figure.dataset.ready = "1";
}

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
  for (const figure of place().querySelectorAll("figure.panel")) {
    if (!due.has(figure) && !drawn.has(figure)) due.set(figure, "load");
    observer.observe(figure);
  }
}

/** Do something to every panel: to the visible ones now, to the others when they are. */
function all(what) {
  const figures = [...place().querySelectorAll("figure.panel")];
  for (const figure of figures) if (what === "load" || !due.has(figure)) due.set(figure, what);
  return Promise.all(figures.filter((figure) => visible.has(figure)).map(serve));
}

/** Show one range in all panels, null for all, and ask for the points that it has room for. */
async function zoomed(chosen) {
  range = chosen;
  keepInAddress("zoom", range ? range.join("..") : "");
  await all("load");
}

onEyes(() => all("draw"));

onScheme(() => all("draw"));

form.addEventListener("submit", (event) => event.preventDefault());
form.elements.smoothing.addEventListener("input", () => {
  form.querySelector("output").textContent = form.elements.smoothing.value;
});
for (const control of form.querySelectorAll("select, input[type=range], input[type=checkbox]")) {
  control.addEventListener("change", () => {
    if (control.name === "x" || control.name === "log_x") {
      range = null; // of another axis it is another range
      keepInAddress("zoom", "");
    }
    for (const name of ["x", "smoothing", "log_x", "log_y", "joined", "band"]) keepInAddress(name, new Map(settings()).get(name) ?? "");
    all("load");
  });
}

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

/** Take over the panels of a new page, and keep those that are the same. */
export function renewPanels(fresh) {
  const known = new Map([...place().querySelectorAll("figure.panel")].map((figure) => [figure.dataset.panel, figure]));
  const open = new Map([...place().querySelectorAll(".section")].map((one) => [one.dataset.section, one.open]));
  for (const figure of fresh.querySelectorAll("figure.panel")) {
    const old = known.get(figure.dataset.panel);
    if (!old) continue;
    if (isChart(old)) due.set(old, "load"); // of other runs than before
    else if (old.className !== figure.className) due.set(old, due.get(old) ?? "draw");
    old.className = figure.className;
    old.querySelector("figcaption").replaceWith(figure.querySelector("figcaption"));
    figure.replaceWith(old);
    known.delete(figure.dataset.panel);
  }
  for (const section of fresh.querySelectorAll(".section")) section.open = open.get(section.dataset.section) ?? section.open;
  for (const figure of known.values()) {
    observer.unobserve(figure);
    for (const held of [drawn, due, again, visible]) held.delete(figure);
  }
  const isOther = ["url", "charts"].some((name) => fresh.dataset[name] !== place().dataset[name]);
  place().replaceWith(fresh);
  watchAll();
  for (const figure of visible) if (due.has(figure) && !isOther) serve(figure);
  document.getElementById("joined").hidden = fresh.dataset.url.includes("group=");
  document.getElementById("band").hidden = !fresh.dataset.url.includes("group=");
  return isOther ? all("load") : null;
}

/** Load again the panels of running runs, the charts, and what could not be loaded; return the seconds until that is due again. */
export async function followPanels() {
  const isFollowed = (figure) => visible.has(figure) && (!range || isChart(figure) || due.get(figure) === "load");
  const living = [...again.keys()].filter(isFollowed);
  const figures = living.filter((figure) => again.get(figure) <= performance.now());
  for (const figure of figures) due.delete(figure);
  await Promise.all(figures.map(load));
  return Math.max(1, Math.min(5, ...living.map((figure) => (again.get(figure) - performance.now()) / 1000)));
}

watchAll();
