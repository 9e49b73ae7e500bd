// The curves of a run: drawn when they are visible, with as many points as there are pixels; a zoom loads more.
import { announce, keepInAddress, rangeInAddress, whenSeen, root } from "./board.js";
import { onLook } from "./follow.js";
import { INHERITED, before, configOf, fetchFile, fetchJson, layoutOf, onScheme, plotly, shareCursor } from "./plots.js";
import { sieve } from "./tables.js";

const { run, colour: color } = document.querySelector("[data-run]").dataset;
const charts = document.getElementById("charts");
const axis = document.getElementById("x-axis");
const smoothing = document.getElementById("smoothing");
const joined = document.getElementById("joined"); // only where there is a parent
const isLog = document.getElementById("log-scale");

/** Return the range of an axis for a curve of one value, which plotly.js would show between its -1 and its +1. */
function aroundConstant(values) {
  const first = values.find((value) => value !== null);
  if (isLog.checked || !first || values.some((value) => value !== null && value !== first)) return {};
  return { range: [first - Math.abs(first) / 5, first + Math.abs(first) / 5] };
}

/** Return the difference of the greatest and the least number. */
function spread(numbers) {
  let [least, most] = [Infinity, -Infinity];
  for (const number of numbers) [least, most] = [Math.min(least, number), Math.max(most, number)];
  return most - least;
}

/** Return the first points of the parts between gaps that are too small to be seen as a line. */
function tiny(x, y) {
  const places = [x, y.map((value) => (value === null ? NaN : isLog.checked ? Math.log(value) : value))];
  const isThere = (at) => Number.isFinite(places[1][at]);
  const least = places.map((all) => spread(all.filter((_, at) => isThere(at))) / 500);
  const found = [];
  for (let at = 0, end; at < x.length; at = end + 1) {
    for (end = at; isThere(end);) end += 1;
    if (end > at && places.every((all, axis) => spread(all.slice(at, end)) <= least[axis])) found.push(at);
  }
  return { x: found.map((at) => x[at]), y: found.map((at) => y[at]) };
}

const seen = new Map();

class Chart {
  constructor(section) {
    this.metric = section.dataset.metric;
    this.place = section.querySelector(".plot");
    this.range = rangeInAddress(this.zoomed);
    this.found = null;
    this.numAsked = 0;
  }

  /** The word of the address that says which range is shown. */
  get zoomed() {
    return `zoom.${this.metric}`;
  }

  /** Return the address of the points that are shown. */
  url(path, more = {}) {
    const [from, to] = this.range ?? ["", ""];
    return `${root}${path}?${new URLSearchParams({ run, metric: this.metric, axis: axis.value, from, to, joined: joined?.checked ? "1" : "", ...more })}`;
  }

  async load() {
    const pixels = Math.max(100, Math.round(this.place.clientWidth));
    const asked = fetchJson(this.url("/series", { pixels, smoothing: smoothing.value, log: isLog.checked ? "1" : "" }));
    const number = (this.numAsked += 1);
    plotly().catch(() => {});
    try {
      const found = await asked;
      if (number < this.numAsked) return found; // what was asked for later is drawn
      this.found = found;
    } catch (error) {
      // A curve that is drawn stays.
      if (this.found) throw error;
      this.place.textContent = error.message;
      return null;
    }
    if (!this.isWatched) this.place.replaceChildren();
    await this.draw();
    return this.found;
  }

  async draw() {
    const { steps, times, values, smoothed, inherited } = this.found;
    const x = axis.value === "times" ? times : steps;
    const line = { color, width: 1.6 };
    const isFew = values.length - inherited < 3;
    const common = { type: "scatter", mode: isFew ? "lines+markers" : "lines", x, connectgaps: false };
    const dots = { type: "scatter", mode: "markers", marker: { color, size: 4 }, hoverinfo: "skip" };
    const y = smoothed ?? values;
    const main = { ...common, name: this.metric, line, hovertemplate: "%{y:.6g}<extra></extra>" };
    const data = [{ ...main, x: x.slice(inherited), y: y.slice(inherited) }];
    if (inherited) data.unshift({ ...main, ...before(x, y, inherited), name: "before", mode: "lines", line: { ...line, ...INHERITED } });
    if (smoothed) data.unshift({ ...common, name: "as logged", y: values, opacity: 0.3, line, hoverinfo: "skip" });
    const lone = [{ ...dots, ...tiny(x, y) }, ...(smoothed ? [{ ...dots, ...tiny(x, values), opacity: 0.3 }] : [])];
    data.push(...lone.filter((one) => one.x.length));
    const layout = layoutOf({
      height: 240,
      xaxis: {
        title: { text: axis.value !== "times" ? "" : x.length || !this.found.count ? "seconds" : "no point has a time", standoff: 4 },
        ...(this.range && this.isWatched ? { range: [...this.range] } : {}),
      },
      yaxis: { type: isLog.checked ? "log" : "linear", exponentformat: "e", ...aroundConstant(values) },
      uirevision: `${axis.value} ${isLog.checked}`,
    });
    const config = configOf(this.metric, () => fetchFile(this.url("/points")));
    await (await plotly()).react(this.place, data, layout, config);
    this.place.dataset.drawn = values.length;
    if (this.isWatched) return;
    this.isWatched = true;
    // By itself the axis shows all, which a double click brings back.
    if (this.range) await window.Plotly.relayout(this.place, { "xaxis.range": [...this.range] });
    this.place.on("plotly_relayout", (change) => this.zoom(change));
    shareCursor(this.place, () => [...seen.values()].filter((chart) => chart.isWatched).map((chart) => chart.place));
  }

  zoom(change) {
    if ("xaxis.range[0]" in change) this.range = [change["xaxis.range[0]"], change["xaxis.range[1]"]];
    else if (change["xaxis.autorange"]) this.range = null;
    else return;
    keepInAddress(this.zoomed, this.range?.join(".."));
    this.load().catch((error) => announce(error.message));
  }
}

// What is chosen is in the address, which others can open: name, control, and what it is at without a word of that.
const chosen = [["x", axis, "steps"], ["smoothing", smoothing, "0"]];

function keep() {
  for (const [name, control, usual] of chosen) keepInAddress(name, control.value === usual ? "" : control.value);
  keepInAddress("log", isLog.checked ? "1" : "");
  if (joined) keepInAddress("joined", joined.checked ? "1" : "");
}

const query = new URLSearchParams(location.search);
for (const [name, control, usual] of chosen) control.value = query.get(name) ?? usual;
if (axis.selectedIndex < 0) axis.value = "steps";
isLog.checked = query.get("log") === "1";
if (joined) joined.checked = query.get("joined") === "1";
for (const control of [axis, smoothing, isLog, joined]) control?.addEventListener("input", keep);
const observer = whenSeen(charts.querySelectorAll(".chart"), (section) => {
  const chart = new Chart(section);
  seen.set(section, chart);
  chart.load();
}, "200px");
const redraw = () => [...seen.values()].filter((chart) => chart.found).forEach((chart) => chart.draw());
for (const control of [smoothing, joined, isLog]) {
  control?.addEventListener("input", () => {
    for (const chart of seen.values()) chart.load().catch((error) => announce(error.message));
  });
}
axis.addEventListener("input", () => {
  for (const chart of seen.values()) {
    chart.range = null;
    keepInAddress(chart.zoomed, "");
    chart.load().catch((error) => announce(error.message));
  }
});
onScheme(redraw);

/** Add the charts of metrics that are new, in their order. */
function addCharts(page) {
  const there = new Map([...charts.children].map((section) => [section.dataset.metric, section]));
  let before = null;
  for (const section of page.querySelectorAll("#charts .chart")) {
    const known = there.get(section.dataset.metric);
    if (!known) {
      if (before) before.after(section);
      else charts.prepend(section);
      observer.observe(section);
    }
    before = known ?? section;
  }
  document.getElementById("curve-tools").hidden = !charts.children.length;
  sieve(document.querySelector("#curve-tools .sieve"));
}

onLook(async (page, isOpen) => {
  if (page) addCharts(page);
  let seconds = 0;
  for (const chart of seen.values()) {
    // Once more after the end: points may have come behind the last look.
    if (!isOpen && chart.found && !chart.found.living) continue;
    const found = await chart.load();
    seconds = Math.max(seconds, found?.look_again_s ?? 0);
  }
  return seconds;
});
