// Curves as SVG: gaps, bands and dashes. A drag zooms, a double click shows all, and the pointer reads values.
import { announce } from "./board.js";
import { Axis, textOf } from "./axes.js";
import { SANS, colour, download, faded, fileName, save } from "./plots.js";
import { asPng, asSvg, node } from "./svg.js";

const [RIGHT, TOP, BOTTOM, FONT] = [10, 8, 36, 11.5];
const SAVED = [1000, 600];
// How near the pointer must be to a curve, and what a drag must be to count, in pixels.
const [NEAR, LEAST] = [24, 8];
// Of more curves the nearest alone is read.
const MOST_READ = 12;
const DASHES = { solid: null, dot: "2 3", dash: "7 4", dashdot: "7 3 2 3" };
const INHERITED = { "stroke-width": 1, "stroke-dasharray": "2 3" };
// A part of a curve that is smaller than this, such as a point between two gaps, is drawn as a dot, in pixels.
const [TINY, DOT] = [1.5, 4];
const DOTS = { "stroke-width": DOT, "stroke-linecap": "round", "stroke-dasharray": "none" };
const pen = document.createElement("canvas").getContext("2d");

const rounded = (pixel) => Math.round(Math.min(1e6, Math.max(-1e6, pixel)) * 10) / 10;

/** Return the parts of a curve between its gaps, each as the places of its points in pixels. */
function* partsOf(x, y, across, down, from = 0, to = x.length) {
  let part = [];
  for (let at = from; at < to; at += 1) {
    const place = [across.at(x[at]), down.at(y[at])];
    if (place.every(Number.isFinite)) part.push(place);
    else if (part.length) {
      yield part;
      part = [];
    }
  }
  if (part.length) yield part;
}

const pathThrough = (places) => `M${places.map(([left, top]) => `${rounded(left)} ${rounded(top)}`).join("L")}`;

function isTiny(places) {
  return [0, 1].every((axis) => {
    let [least, most] = [Infinity, -Infinity];
    for (const place of places) [least, most] = [Math.min(least, place[axis]), Math.max(most, place[axis])];
    return most - least < TINY;
  });
}

/** Draw a line that begins anew behind each gap, and dots for what is too small to be seen as a line. */
function drawLine(parts, attributes, parent) {
  let [line, dots] = ["", ""];
  for (const places of parts) {
    if (isTiny(places)) dots += `${pathThrough(places.slice(0, 1))}h0`;
    else line += pathThrough(places);
  }
  if (line) node("path", { d: line, ...attributes }, parent);
  if (dots) node("path", { d: dots, ...attributes, ...DOTS }, parent);
}

/** Return the path around a band, part by part between its gaps. */
function bandOf({ x, low, high }, across, down) {
  let path = "";
  const [none, floor] = down.kind === "log" ? [0, down.range[0]] : [-Infinity, -Infinity];
  const highs = high.map((value, at) => (low[at] === low[at] ? value : NaN));
  const lows = low.map((value, at) => (high[at] > none ? Math.max(value, floor) : NaN));
  const below = partsOf(x, lows, across, down);
  for (const above of partsOf(x, highs, across, down)) {
    const under = below.next().value;
    if (above.at(-1)[0] - above[0][0] < TINY) {
      const [[left, top], [, bottom]] = [above[0], under[0]];
      path += `M${rounded(left - DOT / 2)} ${rounded(top)}h${DOT}V${rounded(bottom)}h${-DOT}Z`;
    } else path += `${pathThrough([...above, ...under.reverse()])}Z`;
  }
  return path;
}

/** Return the least and the greatest number that an axis has, of the points whose x is in a range. */
function extent(curves, names, isLog, [from, to] = [-Infinity, Infinity]) {
  let [low, high] = [Infinity, -Infinity];
  for (const curve of curves) {
    for (const values of names.map((name) => curve[name]).filter(Boolean)) {
      for (let at = 0; at < values.length; at += 1) {
        const value = values[at];
        if (!(curve.x[at] >= from && curve.x[at] <= to) || (isLog && value <= 0)) continue;
        if (value < low) low = value;
        if (value > high) high = value;
      }
    }
  }
  return low <= high ? [low, high] : null;
}

/** Return the range of y with room at its ends; a curve of one value lies in the middle. */
function withRoom(range, isLog) {
  if (!range) return isLog ? [1, 10] : [0, 1];
  if (isLog) {
    const room = (range[1] / range[0]) ** 0.05;
    return [range[0] / room, range[1] * room];
  }
  const room = (range[1] - range[0]) / 18;
  return [range[0] - room, range[1] + room];
}

/** Draw curves into an SVG, {curves, title, xKind, yKind, xRange, yRange}; return its axes. */
function drawInto(svg, { curves, title, xKind, yKind, xRange, yRange }, width, height) {
  const [text, dim, line] = ["--text", "--dim", "--line"].map(colour);
  const font = { "font-family": SANS, "font-size": FONT };
  const isOf = (range, kind) => range && (kind !== "log" || range[0] > 0);
  const own = isOf(xRange, xKind) ? xRange : extent(curves, ["x"], xKind === "log") ?? withRoom(null, xKind === "log");
  const all = isOf(yRange, yKind) ? yRange : withRoom(extent(curves, ["y", "low", "high", "raw"], yKind === "log", own), yKind === "log");
  const down = new Axis(yKind, all, height - BOTTOM, TOP);
  const rows = down.ticks(Math.max(2, Math.round((height - BOTTOM - TOP) / 40)));
  pen.font = `${FONT}px ${font["font-family"]}`;
  const left = 10 + Math.ceil(Math.max(14, ...rows.map(([, label]) => pen.measureText(label).width)));
  const across = new Axis(xKind, own, left, width - RIGHT);
  const columns = across.ticks(Math.max(2, Math.round((width - left - RIGHT) / 55)));

  svg.replaceChildren();
  for (const [name, value] of Object.entries({ width, height, viewBox: `0 0 ${width} ${height}` })) svg.setAttribute(name, value);
  let grid = "";
  for (const [value] of columns) grid += `M${across.at(value).toFixed(1)} ${TOP}V${height - BOTTOM}`;
  for (const [value] of rows) grid += `M${left} ${down.at(value).toFixed(1)}H${width - RIGHT}`;
  node("path", { d: grid, stroke: line }, svg);
  const labels = node("g", { ...font, fill: dim, "text-anchor": "end" }, svg);
  for (const [value, label] of rows) node("text", { x: left - 5, y: down.at(value) + 4 }, labels).textContent = label;
  for (const [value, label] of columns) {
    const half = pen.measureText(label).width / 2;
    const x = Math.min(width - half, Math.max(half, across.at(value)));
    node("text", { x, y: height - BOTTOM + 14, "text-anchor": "middle" }, labels).textContent = label;
  }
  node("text", { ...font, x: (left + width - RIGHT) / 2, y: height - 6, "text-anchor": "middle", fill: text, class: "title" }, svg).textContent = title;
  const clipped = node("svg", { x: left, y: TOP, width: width - RIGHT - left, height: height - TOP - BOTTOM, viewBox: `${left} ${TOP} ${width - RIGHT - left} ${height - TOP - BOTTOM}` }, svg);
  const lines = node("g", { fill: "none", "stroke-width": 1.6, "stroke-linejoin": "bevel" }, clipped);
  for (const curve of curves) drawCurve(curve, across, down, lines);
  return { across, down };
}

function drawCurve(curve, across, down, parent) {
  const { x, y, color, key, label } = curve;
  const group = node("g", { stroke: color }, parent);
  Object.assign(group.dataset, { key, label });
  if (curve.low) node("path", { d: bandOf(curve, across, down), fill: faded(color, 0.18), stroke: "none" }, group);
  if (curve.raw) drawLine(partsOf(x, curve.raw, across, down), { stroke: faded(color, 0.25), "stroke-width": 1 }, group);
  const at = curve.inherited ?? 0;
  if (at) drawLine(partsOf(x, y, across, down, 0, at + 1), INHERITED, group);
  const dash = DASHES[curve.dash];
  drawLine(partsOf(x, y, across, down, at), dash ? { "stroke-dasharray": dash } : {}, group);
}

/** Return the position of the value that is nearest to another one. */
function nearest(values, value) {
  let [low, high] = [0, values.length - 1];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (values[middle] < value) low = middle;
    else high = middle;
  }
  return Math.abs(values[high] - value) < Math.abs(values[low] - value) ? high : low;
}

/** A plot of curves in an element. */
export class LinePlot {
  /** onRange: is called with the range of x that was chosen, or null for all. onRead: with x and the keys of the curves at the pointer, or with null. csv: returns the promise of a CSV file. */
  constructor(place, { name, csv, onRange, onRead }) {
    Object.assign(this, { place, name, csv, onRange, onRead, yRange: null, isPanning: false });
    this.svg = node("svg", { role: "img", "aria-label": `Curves of ${name}`, class: "lines" });
    this.box = make("div", { className: "zoombox", hidden: true });
    this.readings = make("div", { className: "readings", hidden: true });
    this.line = make("div", { className: "cursor", hidden: true }, make("span"));
    const buttons = ["png", "svg", "csv"].map((format) => {
      const button = this.button(format.toUpperCase(), `Save ${name} as ${format.toUpperCase()}`, () => this.save(format));
      button.dataset.save = format;
      return button;
    });
    const pan = this.button("Pan", "Drag moves the curves", () => {
      this.isPanning = !this.isPanning;
      pan.ariaPressed = String(this.isPanning);
    });
    pan.ariaPressed = "false";
    const tools = make("div", { className: "plot-tools" }, ...buttons, pan, this.button("All", "Show all", () => this.showAll()));
    place.replaceChildren(this.svg, this.line, this.box, this.readings, tools);
    this.listen();
    [this.width, this.height] = [place.clientWidth, place.clientHeight];
    new ResizeObserver(([{ contentRect: { width, height } }]) => this.resize(width, height)).observe(place);
  }

  button(textContent, title, action) {
    const button = make("button", { type: "button", textContent, title, ariaLabel: title });
    button.addEventListener("click", action);
    return button;
  }

  /** Draw {curves, title, xKind, yKind, xRange}. */
  draw(spec) {
    if (this.spec?.yKind !== spec.yKind) this.yRange = null;
    this.spec = spec;
    this.render();
  }

  resize(width, height) {
    if (this.width === width && this.height === height) return;
    [this.width, this.height] = [width, height];
    if (this.spec) this.render();
  }

  render() {
    if (!this.width || !this.height) return; // it is drawn when it has a size
    Object.assign(this, drawInto(this.svg, { ...this.spec, yRange: this.yRange }, this.width, this.height));
    this.groups = [...this.svg.querySelectorAll("g[data-key]")];
  }

  /** Let the curves of a key stand out; null ends that. */
  standOut(key) {
    for (const group of this.groups ?? []) group.style.opacity = key === null || group.dataset.key === key ? "" : "0.12";
  }

  /** Show the cursor at a value of x, or hide it; only where the pointer is not, it says the value. */
  point(x, isSource) {
    const at = x === null || !this.across ? NaN : this.across.at(x);
    this.line.hidden = !(at >= this.across?.from && at <= this.width - RIGHT);
    if (this.line.hidden) return;
    this.line.style.left = `${at}px`;
    this.line.firstChild.textContent = isSource ? "" : textOf(this.spec.xKind, x);
  }

  // -------------------------------------------------------------------- ranges

  showAll() {
    this.yRange = null;
    this.render();
    this.onRange(null);
  }

  listen() {
    let start = null;
    const at = ({ clientX, clientY }) => {
      const box = this.svg.getBoundingClientRect();
      const inside = (value, low, high) => Math.min(high, Math.max(low, value));
      return [inside(clientX - box.left, this.across.from, this.width - RIGHT), inside(clientY - box.top, TOP, this.height - BOTTOM)];
    };
    this.svg.addEventListener("pointerdown", (event) => {
      if (event.button || !this.across) return;
      this.svg.setPointerCapture(event.pointerId);
      start = { at: at(event), x: this.across, y: this.down, now: at(event) };
    });
    this.svg.addEventListener("pointermove", (event) => {
      if (!this.across) return;
      if (!start) this.read(at(event));
      else {
        start.now = at(event);
        this.drag(start);
      }
    });
    this.svg.addEventListener("pointerup", () => {
      if (start) this.drop(start);
      start = null;
    });
    this.svg.addEventListener("pointercancel", () => {
      start = null;
      this.box.hidden = true;
    });
    this.svg.addEventListener("pointerleave", () => this.read(null));
    this.svg.addEventListener("dblclick", () => this.showAll());
  }

  /** Return the ends of a drag along x and y, of an axis along which it was short its own ends. */
  ends({ at, now }) {
    const whole = [[this.across.from, this.width - RIGHT], [TOP, this.height - BOTTOM]];
    const isLong = [0, 1].map((axis) => Math.abs(now[axis] - at[axis]) >= LEAST);
    const [x, y] = [0, 1].map((axis) => (isLong[axis] ? [at[axis], now[axis]].sort((a, b) => a - b) : whole[axis]));
    return { x, y, isLong };
  }

  drag(start) {
    this.read(null);
    if (this.isPanning) {
      const moved = (axis, place) => [axis.from, axis.at(axis.range[1])].map((pixel) => axis.value(pixel - start.now[place] + start.at[place]));
      this.spec = { ...this.spec, xRange: moved(start.x, 0) };
      if (Math.abs(start.now[1] - start.at[1]) >= LEAST || this.yRange) this.yRange = moved(start.y, 1);
      this.render();
      return;
    }
    const { x, y, isLong } = this.ends(start);
    this.box.hidden = !isLong.includes(true);
    Object.assign(this.box.style, { left: `${x[0]}px`, width: `${x[1] - x[0]}px`, top: `${y[0]}px`, height: `${y[1] - y[0]}px` });
  }

  drop(start) {
    this.box.hidden = true;
    const { x, y, isLong } = this.ends(start);
    if (!isLong.includes(true)) return;
    if (this.isPanning) {
      this.onRange(this.spec.xRange);
      return;
    }
    if (isLong[1]) this.yRange = [this.down.value(y[1]), this.down.value(y[0])];
    if (isLong[0]) this.spec = { ...this.spec, xRange: x.map((pixel) => this.across.value(pixel)) };
    this.render();
    if (isLong[0]) this.onRange(this.spec.xRange);
  }

  // -------------------------------------------------------------------- reading

  /** Show the values at a place of the pointer; null ends that. */
  read(place) {
    const found = place && this.pointsNear(place);
    this.readings.hidden = !found?.length;
    if (!found?.length) {
      this.onRead(null, []);
      return;
    }
    const [{ curve, at }] = found;
    const rows = found.map(({ curve: { y, color, label }, at: index }) => {
      const mark = make("i");
      mark.style.background = color;
      return make("p", {}, mark, make("b", { textContent: textOf("linear", y[index]) }), ` ${label}`);
    });
    this.readings.replaceChildren(make("p", { className: "dim", textContent: textOf(this.spec.xKind, curve.x[at]) }), ...rows);
    const [left, top] = place;
    Object.assign(this.readings.style, { left: left < this.width / 2 ? `${left + 12}px` : "auto", right: left < this.width / 2 ? "auto" : `${this.width - left + 12}px`, top: `${Math.max(0, top - 20)}px` });
    this.onRead(curve.x[at], found.map(({ curve: { key } }) => key));
  }

  /** Return the points at a place: of few curves those at the nearest x, of many the nearest one. */
  pointsNear([left, top]) {
    const x = this.across.value(left);
    const points = this.spec.curves.filter((curve) => curve.x.length).map((curve) => {
      const at = nearest(curve.x, x);
      return { curve, at, aside: Math.abs(this.across.at(curve.x[at]) - left), away: Math.abs(this.down.at(curve.y[at]) - top) };
    }).filter(({ aside, away }) => aside < NEAR && Number.isFinite(away));
    if (this.spec.curves.length > MOST_READ) return points.filter(({ away }) => away < NEAR).sort((a, b) => a.aside + a.away - b.aside - b.away).slice(0, 1);
    const least = Math.min(...points.map(({ aside }) => aside));
    return points.filter(({ aside }) => aside <= least + 0.5).sort((a, b) => b.curve.y[b.at] - a.curve.y[a.at]);
  }

  // -------------------------------------------------------------------- files

  async save(format) {
    if (format === "csv") {
      await save(null, this.name, format, this.csv());
      return;
    }
    const svg = node("svg", {});
    drawInto(svg, { ...this.spec, yRange: this.yRange }, ...SAVED);
    const ground = colour("--bg");
    try {
      const file = format === "svg" ? new Blob([asSvg(svg, ground)], { type: "image/svg+xml" }) : await asPng(svg, ground);
      download(`${fileName(this.name)}.${format}`, file);
    } catch (error) {
      announce(error.message);
    }
  }
}

function make(tag, attributes = {}, ...children) {
  const made = Object.assign(document.createElement(tag), attributes);
  made.append(...children);
  return made;
}
