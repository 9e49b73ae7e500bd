// Curves as SVG: gaps, bands, dashes and dots, with their axes.
import { Axis } from "./axes.js";
import { SANS, colour, faded } from "./plots.js";
import { node } from "./svg.js";

// Room around the curves, in pixels.
export const RIGHT = 10;
export const TOP = 22;
export const BOTTOM = 36;
const FONT = 11.5;
const INHERITED = { "stroke-width": 1, "stroke-dasharray": "2 3" };
// A part of a curve that is smaller than this, such as a point between two gaps, is drawn as a dot, in pixels.
const [TINY, DOT] = [1.5, 4];
const DOTS = { "stroke-width": DOT, "stroke-linecap": "round", "stroke-dasharray": "none" };
// Marks along a curve.
const NUM_MARKS = 6;
// Values are outliers beyond the middle half by more than three times its size: Tukey's outer fences.
const FENCE = 3;
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

/** Return the range of the values that are no outliers; null without any. */
function withoutOutliers(curves, names, isLog, [from, to]) {
  const values = [];
  for (const curve of curves) {
    for (const of of names.map((name) => curve[name]).filter(Boolean)) {
      for (let at = 0; at < of.length; at += 1) if (curve.x[at] >= from && curve.x[at] <= to && (isLog ? of[at] > 0 : of[at] === of[at])) values.push(isLog ? Math.log10(of[at]) : of[at]);
    }
  }
  if (!values.length) return null;
  const sorted = Float64Array.from(values).sort();
  const [low, high] = [0.25, 0.75].map((share) => sorted[Math.round(share * (sorted.length - 1))]);
  const reach = FENCE * (high - low);
  const inside = reach > 0 ? sorted.filter((value) => value >= low - reach && value <= high + reach) : sorted;
  return [inside[0], inside.at(-1)].map((value) => (isLog ? 10 ** value : value));
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

/** Draw curves into an SVG, {curves, title, xKind, yKind, xRange, yRange, ignoresOutliers}; return its axes. */
export function drawInto(svg, { curves, title, xKind, yKind, xRange, yRange, ignoresOutliers }, width, height) {
  const [text, dim, line] = ["--text", "--dim", "--line"].map(colour);
  const font = { "font-family": SANS, "font-size": FONT };
  const isOf = (range, kind) => range && (kind !== "log" || range[0] > 0);
  const names = ["y", "low", "high", "raw"];
  const own = isOf(xRange, xKind) ? xRange : extent(curves, ["x"], xKind === "log") ?? withRoom(null, xKind === "log");
  const all = withRoom((ignoresOutliers ? withoutOutliers : extent)(curves, names, yKind === "log", own), yKind === "log");
  // Of a range one end may be open; a logarithmic axis has none that is not above 0.
  const ends = [0, 1].map((end) => (yRange && yRange[end] !== null && (yKind !== "log" || yRange[end] > 0) ? yRange[end] : all[end]));
  const down = new Axis(yKind, ends[0] < ends[1] ? ends : all, height - BOTTOM, TOP);
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
  drawLine(partsOf(x, y, across, down, at), curve.dash ? { "stroke-dasharray": curve.dash } : {}, group);
  if (curve.mark) drawMarks(curve, across, down, group);
}

function drawMarks({ x, y, color, mark }, across, down, parent) {
  const shown = Array.from(x.keys()).filter((at) => across.at(x[at]) >= across.from && across.at(x[at]) <= across.at(across.range[1]) && Number.isFinite(down.at(y[at])));
  const chosen = Array.from({ length: Math.min(NUM_MARKS, shown.length) }, (_, at) => shown[Math.round(((at + 0.5) / NUM_MARKS) * (shown.length - 1))]);
  const d = chosen.map((at) => `M${rounded(across.at(x[at]))} ${rounded(down.at(y[at]))}${mark}`).join("");
  if (d) node("path", { d, fill: color, stroke: "none" }, parent);
}
