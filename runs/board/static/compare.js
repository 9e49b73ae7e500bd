// Curves of several runs: a panel for each metric, one cursor and one range over all of them.
import { keepInAddress, rangeInAddress, repeat, whenSeen } from "./board.js";
import { DASHES, configOf, faded, fetchFile, fetchNumbers, layoutOf, lineOf, onScheme, plotly, shareCursor } from "./plots.js";

const figures = [...document.querySelectorAll("figure.panel")];
const panels = new Map();
const numbers = new Map(); // of curves, by what they are of in every panel
const off = new Set();
const legend = document.getElementById("legend");
// As the panels have it; the address has steps or seconds.
let range = onAxis(rangeInAddress("zoom"));

/** Tell whether the axis of all panels is one of time of day, "wall", or otherwise logarithmic, "log". */
function axisOf(kind) {
  const isWall = figures.some(({ dataset }) => dataset.url.includes("x=wall"));
  return kind === "wall" ? isWall : !isWall && figures.some(({ dataset }) => dataset.logx);
}

/** Return the number of a curve, which the legend names; the number of runs behind a mean may differ by panel. */
function numberOf({ key, label }) {
  if (!numbers.has(key)) {
    numbers.set(key, numbers.size);
    addToLegend(key);
  }
  const number = numbers.get(key);
  legend.children[number].querySelector(".name").textContent = label.replace(/ \(n = [^)]*\)$/, "");
  return number;
}

/** Return a range of steps or seconds as the axis of the panels has it; null where it has none. */
function onAxis(ends) {
  if (!ends) return null;
  if (axisOf("wall")) return ends.every((s) => Math.abs(s) < 8e12) ? ends.map((s) => new Date(s * 1000).toISOString()) : null;
  if (axisOf("log")) return ends[0] > 0 ? ends.map(Math.log10) : null;
  return ends;
}

function addToLegend(key) {
  const item = document.createElement("li");
  const button = document.createElement("button");
  button.type = "button";
  button.setAttribute("aria-pressed", "true");
  const name = document.createElement("span");
  name.className = "name";
  button.append(swatchOf(lineOf(numbers.get(key))), name);
  button.addEventListener("click", () => {
    if (!off.delete(key)) off.add(key);
    button.setAttribute("aria-pressed", String(!off.has(key)));
    for (const figure of panels.keys()) draw(figure);
  });
  item.append(button);
  legend.append(item);
}

/** Return a piece of a line as the panels draw it. */
function swatchOf({ color, dash }) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const line = document.createElementNS(svg.namespaceURI, "line");
  const shown = { x2: 26, y1: 3, y2: 3, stroke: color, "stroke-width": 3, "stroke-dasharray": DASHES[dash] };
  for (const [name, value] of Object.entries(shown)) line.setAttribute(name, value);
  svg.setAttribute("class", "swatch");
  svg.append(line);
  return svg;
}

function traces(found) {
  const over = found.x === "wall" ? (x) => Array.from(x, (seconds) => new Date(seconds * 1000).toISOString()) : (x) => x;
  const all = [];
  for (const curve of found.curves) {
    const { color, dash } = lineOf(numberOf(curve));
    if (off.has(curve.key)) continue;
    const x = over(curve.x);
    const few = curve.x.length < 2;
    const base = { x, type: "scatter", mode: "lines", hoverinfo: "skip", showlegend: false };
    if (curve.low) {
      all.push({ ...base, y: curve.low, line: { width: 0 } });
      all.push({ ...base, y: curve.high, line: { width: 0 }, fill: "tonexty", fillcolor: faded(color, 0.18) });
    }
    if (curve.raw) all.push({ ...base, y: curve.raw, line: { color: faded(color, 0.25), width: 1 } });
    all.push({
      ...base,
      y: curve.y,
      mode: few ? "markers" : "lines",
      hoverinfo: "all",
      hovertemplate: "%{y:.6~g}<extra>%{fullData.name}</extra>",
      name: shown(curve.label),
      line: { color, dash, width: 1.7 },
      marker: { color },
    });
  }
  return all;
}

/** Return a text that plotly takes for no markup. */
function shown(text) {
  return text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
}

async function draw(figure) {
  const { found, plot } = panels.get(figure);
  const isWall = found.x === "wall";
  const drawn = traces(found);
  const many = found.curves.length > 12;
  const xaxis = {
    title: { text: found.x_label, standoff: 6 },
    type: isWall ? "date" : figure.dataset.logx ? "log" : "linear",
    // By itself the axis shows all, which a double click brings back.
    ...(range && plot.dataset.heard ? { range: [...range], autorange: false } : { autorange: true }),
  };
  const yaxis = { type: figure.dataset.logy ? "log" : "linear", exponentformat: "e" };
  const layout = layoutOf({ xaxis, yaxis, hovermode: many ? "closest" : "x" });
  const config = configOf(found.metric, () => fetchFile(figure.dataset.csv + bounds()));
  await (await plotly()).react(plot, drawn, layout, config);
  if (!plot.dataset.heard) {
    plot.dataset.heard = "1";
    if (range) await window.Plotly.relayout(plot, { "xaxis.range": [...range] });
    plot.on("plotly_relayout", (change) => zoomed(change));
    shareCursor(plot, () => [...panels.values()].map((panel) => panel.plot));
  }
}

/** Show one range in all panels, and ask for the points that it has room for. */
async function zoomed(change) {
  const [low, high] = [change["xaxis.range[0]"] ?? change["xaxis.range"]?.[0], change["xaxis.range[1]"] ?? change["xaxis.range"]?.[1]];
  if (low !== undefined && high !== undefined) range = [low, high];
  else if (change["xaxis.autorange"]) range = null;
  else return;
  form.elements.zoom.value = range ? ends().join("..") : "";
  keepInAddress("zoom", form.elements.zoom.value);
  await Promise.all([...panels.keys()].map(load));
}

/** Return the ends of the range in steps or seconds. */
function ends() {
  const seconds = (time) => Date.parse(/Z$/.test(time) ? time : `${time.replace(" ", "T")}Z`) / 1000;
  return range.map((value) => (typeof value === "string" ? seconds(value) : axisOf("log") ? 10 ** value : value));
}

function bounds() {
  if (!range) return "";
  const [from, to] = ends();
  return `&from=${from}&to=${to}`;
}

async function load(figure) {
  const notes = figure.querySelector(".notes");
  try {
    const asked = fetchNumbers(figure.dataset.url + bounds());
    plotly().catch(() => {});
    const found = await asked;
    panels.set(figure, { found, plot: figure.querySelector(".plot") });
    notes.textContent = found.notes.join("; ");
    notes.classList.remove("problem");
    await draw(figure);
  } catch (error) {
    notes.textContent = error.message;
    notes.classList.add("problem");
  }
  figure.dataset.ready = "1";
}

whenSeen(figures, load);

repeat(async () => {
  const living = [...panels].filter(([, { found }]) => found.living);
  if (range) return 5;
  await Promise.all(living.map(([figure]) => load(figure)));
  return living.length ? Math.max(...living.map(([, { found }]) => found.look_again_s)) : 5;
});

onScheme(() => {
  for (const figure of panels.keys()) draw(figure);
});

const form = document.getElementById("settings");
form.elements.smoothing.addEventListener("input", () => {
  form.querySelector("output").textContent = form.elements.smoothing.value;
});
for (const control of form.querySelectorAll("select, input[type=range], input[name^=log_]")) {
  control.addEventListener("change", () => form.requestSubmit());
}
form.addEventListener("submit", () => {
  // All that is drawn anyway needs no place in the URL.
  const boxes = [...form.querySelectorAll("input[name=metric]")];
  if (boxes.every((box) => box.checked === box.defaultChecked) && !location.search.includes("metric=")) {
    for (const box of boxes) box.disabled = true;
  }
  for (const field of form.querySelectorAll("input[type=text]")) field.disabled = !field.value.trim();
  if (form.elements.smoothing.value === "0") form.elements.smoothing.disabled = true;
  // Of another axis it is another range.
  if (!form.elements.x.selectedOptions[0].defaultSelected) form.elements.zoom.value = "";
  form.elements.zoom.disabled = !form.elements.zoom.value;
});
