// Panels of curves: drawn when they are visible, with one cursor, one range and one form for all of them.
import { keepInAddress, rangeInAddress } from "./board.js";
import { isShown, onEyes } from "./eyes.js";
import { INHERITED, before, configOf, faded, fetchFile, fetchNumbers, layoutOf, onScheme, plain, plotly, shareCursor } from "./plots.js";
import { drawChart, showSelected } from "./run_charts.js";

const form = document.getElementById("settings");
const place = () => document.getElementById("panels");
const drawn = new Map(); // what is drawn in each figure
const due = new Map(); // what each figure needs when it is visible: "load", or "draw" alone
const again = new Map(); // when what is drawn in a figure may be another, by performance.now()
const visible = new Set();
const onHover = [];
const isWall = () => form.elements.x.value === "wall";
const isLogX = () => !isWall() && form.elements.log_x.checked;
// As the panels have it; the address has steps or seconds.
let range = onAxis(rangeInAddress("zoom"));

/** Return a range of steps or seconds as the axis of the panels has it; null where it has none. */
function onAxis(ends) {
  if (!ends) return null;
  if (isWall()) return ends.every((s) => Math.abs(s) < 8e12) ? ends.map((s) => new Date(s * 1000).toISOString()) : null;
  if (isLogX()) return ends[0] > 0 ? ends.map(Math.log10) : null;
  return ends;
}

/** Return the ends of the range in steps or seconds. */
function ends() {
  const seconds = (time) => Date.parse(/Z$/.test(time) ? time : `${time.replace(" ", "T")}Z`) / 1000;
  return range.map((value) => (typeof value === "string" ? seconds(value) : isLogX() ? 10 ** value : value));
}

/** Return what the form adds to the address of a panel, as `RunsView.settings` writes it. */
function settings() {
  const { x, smoothing, log_y, joined, band } = form.elements;
  const is = (box) => (box.checked ? "1" : "");
  const usual = { x: "step", smoothing: "0", log_y: "", joined: "", band: "interval" };
  const values = { x: x.value, smoothing: String(Number(smoothing.value)), log_y: is(log_y), joined: is(joined), band: band.value };
  return Object.entries(values).filter(([name, value]) => value !== usual[name]);
}

const isChart = (figure) => figure.hasAttribute("data-chart");

function urlOf(figure) {
  if (isChart(figure)) {
    const { charts } = place().dataset; // of all runs of the view, whatever the form of the curves says
    return `${charts}${charts.includes("?") ? "&" : "?"}panel=${figure.dataset.query}`;
  }
  const more = settings().map(([name, value]) => `&${name}=${value}`).join("");
  const [from, to] = range ? ends() : [];
  return `${place().dataset.url}&panel=${figure.dataset.query}${more}${range ? `&from=${from}&to=${to}` : ""}`;
}

// ---------------------------------------------------------------------- drawing

function traces(found) {
  const over = found.x === "wall" ? (x) => Array.from(x, (seconds) => new Date(seconds * 1000).toISOString()) : (x) => x;
  const all = [];
  for (const curve of found.curves) {
    const { color, key } = curve;
    const x = over(curve.x);
    const base = { x, type: "scatter", mode: "lines", hoverinfo: "skip", showlegend: false, visible: isShown(key), meta: key };
    if (curve.low) {
      all.push({ ...base, y: curve.low, line: { width: 0 } });
      all.push({ ...base, y: curve.high, line: { width: 0 }, fill: "tonexty", fillcolor: faded(color, 0.18) });
    }
    if (curve.raw) all.push({ ...base, y: curve.raw, line: { color: faded(color, 0.25), width: 1 } });
    const at = curve.inherited ?? 0;
    const line = { color, width: 1.6, dash: curve.dash };
    if (at) all.push({ ...base, ...before(x, curve.y, at), line: { ...line, ...INHERITED } });
    all.push({
      ...base,
      x: x.slice(at),
      y: curve.y.slice(at),
      mode: curve.x.length - at < 2 ? "markers" : "lines",
      hoverinfo: "all",
      hovertemplate: "%{y:.6~g}<extra>%{fullData.name}</extra>",
      name: plain(curve.label),
      line,
      marker: { color },
      showlegend: true,
    });
  }
  return all;
}

function draw(figure) {
  const { found } = drawn.get(figure);
  return isChart(figure) ? drawChart(figure, found) : drawCurves(figure);
}

async function drawCurves(figure) {
  const { found, plot } = drawn.get(figure);
  const xaxis = {
    title: { text: found.x_label, standoff: 6 },
    type: found.x === "wall" ? "date" : isLogX() ? "log" : "linear",
    // By itself the axis shows all, which a double click brings back.
    ...(range && plot.dataset.heard ? { range: [...range], autorange: false } : { autorange: true }),
  };
  const yaxis = { type: form.elements.log_y.checked ? "log" : "linear", exponentformat: "e" };
  const layout = layoutOf({ xaxis, yaxis, hovermode: found.curves.length > 12 ? "closest" : "x" });
  const config = configOf(found.metric, () => fetchFile(urlOf(figure).replace("/panel?", "/points?")));
  await (await plotly()).react(plot, traces(found), layout, config);
  figure.dataset.drawn = found.curves.length;
  if (plot.dataset.heard) return;
  plot.dataset.heard = "1";
  if (range) await window.Plotly.relayout(plot, { "xaxis.range": [...range] });
  plot.on("plotly_relayout", (change) => zoomed(change));
  plot.on("plotly_hover", ({ points }) => onHover.forEach((listener) => listener(points.length === 1 ? points[0].data.meta : null)));
  plot.on("plotly_unhover", () => onHover.forEach((listener) => listener(null)));
  shareCursor(plot, () => [...visible].map((one) => drawn.get(one)?.plot).filter((one) => one?.dataset.heard));
}

async function load(figure) {
  const notes = figure.querySelector(".notes");
  const number = (figure.numAsked = (figure.numAsked ?? 0) + 1);
  delete figure.dataset.ready;
  try {
    const asked = fetchNumbers(urlOf(figure));
    plotly().catch(() => {});
    const found = await asked;
    if (number < figure.numAsked) return; // what was asked for later is drawn
    const text = isChart(figure) && JSON.stringify([{ ...found, look_again_s: 0 }, found.keys?.map(isShown)]);
    // Nobody is disturbed who drags or reads in a chart that shows the same.
    const isSame = text && drawn.get(figure)?.text === text;
    drawn.set(figure, { found, text, plot: figure.querySelector(".plot") });
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

/** Show one range in all panels, and ask for the points that it has room for. */
async function zoomed(change) {
  const [low, high] = [change["xaxis.range[0]"] ?? change["xaxis.range"]?.[0], change["xaxis.range[1]"] ?? change["xaxis.range"]?.[1]];
  if (low !== undefined && high !== undefined) range = [low, high];
  else if (change["xaxis.autorange"]) range = null;
  else return;
  keepInAddress("zoom", range ? ends().join("..") : "");
  await all("load");
}

/** Call a function for each curve that is drawn in the visible panels, with the run or group that it belongs to. */
function eachLine(action) {
  for (const figure of [...visible].filter((one) => !isChart(one))) {
    for (const line of figure.querySelectorAll(".scatterlayer .trace")) action(line, line.__data__?.[0]?.trace?.meta);
  }
}

const pause = (milliseconds) => new Promise((resolve) => {
  setTimeout(resolve, milliseconds);
});
let numToggled = 0;

onEyes(async () => {
  const number = (numToggled += 1);
  // Curves go at once; to take them out of axes and hover texts, plotly.js draws a panel anew.
  eachLine((line, key) => {
    line.style.display = isShown(key) ? "" : "none";
  });
  await pause(50);
  for (const [figure, { plot }] of drawn) {
    if (number < numToggled) return; // the eye that was clicked since draws them
    if (!visible.has(figure) || !plot.data || isChart(figure)) {
      if (!due.has(figure)) due.set(figure, "draw");
      continue;
    }
    const changed = plot.data.map((trace, index) => [index, isShown(trace.meta)]).filter(([index, is]) => plot.data[index].visible !== is);
    if (!changed.length) continue;
    (await plotly()).restyle(plot, { visible: changed.map(([, is]) => is) }, changed.map(([index]) => index));
    await pause(0); // one panel after the other: clicks and keys come in between
  }
  for (const figure of [...visible].filter(isChart)) serve(figure);
});

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
    for (const name of ["x", "smoothing", "log_y", "joined", "band"]) keepInAddress(name, new Map(settings()).get(name) ?? "");
    keepInAddress("log_x", form.elements.log_x.checked ? "1" : "");
    all(control.name === "log_x" ? "draw" : "load");
  });
}

// ---------------------------------------------------------------------- what the page asks of them

/** Call a function with the run or group whose curve the pointer is at, or null. */
export function onCurve(listener) {
  onHover.push(listener);
}

/** Let the curves of one run or group stand out; null ends that. */
export function standOut(key) {
  eachLine((line, own) => {
    line.style.opacity = key === null || own === key ? "" : "0.12";
  });
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
