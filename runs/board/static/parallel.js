// Parallel coordinates as SVG: an axis for each parameter and objective, a line for each trial; dragging along an axis
// chooses a part of it (brushes.js).
import { covers } from "./brushes.js";

const SVG = "http://www.w3.org/2000/svg";
const [HEIGHT, TOP, BOTTOM, GAP, SIDE] = [360, 44, 20, 150, 70];

function node(name, attributes, parent) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  parent?.append(made);
  return made;
}

/** An axis: places of values between 0 and 1, and ticks. */
export class Scale {
  constructor(name, values) {
    this.name = name;
    const there = values.filter((value) => value !== null && value !== undefined);
    this.isNumeric = there.length > 0 && there.every((value) => typeof value === "number");
    if (this.isNumeric) {
      this.low = Math.min(...there);
      this.high = Math.max(...there);
      this.isLog = this.low > 0 && this.high / this.low > 50;
    } else {
      this.names = [...new Set(there.map(String))].sort();
    }
  }

  place(value) {
    if (value === null || value === undefined) return NaN;
    if (!this.isNumeric) return this.names.length < 2 ? 0.5 : this.names.indexOf(String(value)) / (this.names.length - 1);
    if (this.high === this.low) return 0.5;
    if (this.isLog) return Math.log(value / this.low) / Math.log(this.high / this.low);
    return (value - this.low) / (this.high - this.low);
  }

  /** Return the part of the axis between two places: what `brushes.js` calls a brush; null for all of it. */
  between(low, high) {
    if (!this.isNumeric) {
      const names = this.names.filter((name) => this.place(name) >= low && this.place(name) <= high);
      return names.length && names.length < this.names.length ? { names: new Set(names) } : null;
    }
    const value = (place) => Number((this.isLog ? this.low * (this.high / this.low) ** place : this.low + (this.high - this.low) * place).toPrecision(4));
    const found = { low: low <= 0 ? null : value(low), high: high >= 1 ? null : value(high) };
    return found.low === null && found.high === null ? null : found;
  }

  /** Return the places that a brush covers, as pairs of ends. */
  covered(brush) {
    if (brush.names) return [...brush.names].map((name) => this.place(name)).filter((at) => at >= 0).map((at) => [at - 0.02, at + 0.02]);
    const inside = (place) => Math.min(1.02, Math.max(-0.02, Number.isNaN(place) ? -0.02 : place));
    return [[brush.low === null ? -0.02 : inside(this.place(brush.low)), brush.high === null ? 1.02 : inside(this.place(brush.high))]];
  }

  ticks() {
    if (!this.isNumeric) return this.names.slice(0, 12).map((name) => [this.place(name), name.slice(0, 16)]);
    const at = this.high === this.low ? [0.5] : [0, 0.25, 0.5, 0.75, 1];
    return at.map((place) => {
      const value = this.isLog ? this.low * (this.high / this.low) ** place : this.low + (this.high - this.low) * place;
      return [place, String(Number(value.toPrecision(3)))];
    });
  }
}

/**
 * Draw trials, and return what changes them.
 *
 * svg: where to. scales: the axes. rows: {number, values, color}, best last. colors: of text and axes. brushes: by the
 * name of the axis; what is dragged is put there, and onBrush is called. Returns a function that shows the brushes as
 * they are, and returns the numbers of the trials that all of them cover, or null for all.
 */
export function drawParallel(svg, scales, rows, colors, brushes, onBrush) {
  const width = 2 * SIDE + GAP * Math.max(1, scales.length - 1);
  svg.replaceChildren();
  svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
  svg.setAttribute("width", width);
  svg.setAttribute("height", HEIGHT);
  const across = (index) => SIDE + GAP * index;
  const down = (place) => HEIGHT - BOTTOM - place * (HEIGHT - TOP - BOTTOM);
  const lines = node("g", { fill: "none", "stroke-width": 1.4 }, svg);
  const drawn = rows.map(({ number, values, color }) => {
    const places = scales.map((scale, index) => scale.place(values[index]));
    let [path, pen] = ["", "M"];
    places.forEach((place, index) => {
      if (Number.isNaN(place)) {
        pen = "M";
        return;
      }
      path += `${pen}${across(index)} ${down(place).toFixed(1)}`;
      pen = "L";
    });
    const line = node("path", { d: path, stroke: color, "stroke-opacity": rows.length > 300 ? 0.35 : 0.75 }, lines);
    node("title", {}, line).textContent = `trial ${number}`;
    return { number, values, line };
  });

  const marks = node("g", { fill: colors.accent, "fill-opacity": 0.3, stroke: colors.accent });
  const show = () => {
    const used = scales.map((scale, index) => [scale, index, brushes.get(scale.name)]).filter(([, , brush]) => brush);
    const chosen = new Set();
    for (const { number, values, line } of drawn) {
      const isChosen = used.every(([, index, brush]) => covers(brush, values[index]));
      if (isChosen) chosen.add(number);
      line.setAttribute("visibility", isChosen ? "visible" : "hidden");
    }
    marks.replaceChildren();
    for (const [scale, index, brush] of used) {
      for (const [low, high] of scale.covered(brush)) {
        node("rect", { x: across(index) - 7, width: 14, y: down(high), height: Math.max(2, down(low) - down(high)) }, marks);
      }
    }
    return used.length ? chosen : null;
  };

  scales.forEach((scale, index) => {
    const x = across(index);
    const text = { fill: colors.text, "font-family": colors.font, "font-size": 11.5 };
    node("line", { x1: x, x2: x, y1: TOP, y2: HEIGHT - BOTTOM, stroke: colors.line, "stroke-width": 1.5 }, svg);
    const label = scale.name.length > 22 ? `…${scale.name.slice(-21)}` : scale.name;
    const head = node("text", { ...text, x, y: TOP - 18, "text-anchor": "middle", "font-weight": 600 }, svg);
    head.textContent = label;
    node("title", {}, head).textContent = scale.name;
    for (const [place, name] of scale.ticks()) {
      node("line", { x1: x - 4, x2: x, y1: down(place), y2: down(place), stroke: colors.line }, svg);
      const tick = node("text", { ...text, x: x + 6, y: down(place) + 4, "font-size": 10.5, stroke: colors.ground, "stroke-width": 3, "paint-order": "stroke" }, svg);
      tick.textContent = name;
    }
    const zone = node("rect", { x: x - 14, width: 28, y: TOP - 6, height: HEIGHT - TOP - BOTTOM + 12, fill: "transparent" }, svg);
    zone.classList.add("zone");
    zone.dataset.axis = scale.name;
    const placeOf = (event) => {
      const box = svg.getBoundingClientRect();
      const y = ((event.clientY - box.top) / box.height) * HEIGHT;
      return Math.min(1.02, Math.max(-0.02, (HEIGHT - BOTTOM - y) / (HEIGHT - TOP - BOTTOM)));
    };
    let start = null;
    zone.addEventListener("pointerdown", (event) => {
      zone.setPointerCapture(event.pointerId);
      start = placeOf(event);
      brushes.delete(scale.name); // a click alone takes the brush away
      onBrush();
    });
    zone.addEventListener("pointermove", (event) => {
      if (start === null) return;
      const now = placeOf(event);
      if (Math.abs(now - start) < 0.01) return;
      const brush = scale.between(Math.min(start, now), Math.max(start, now));
      if (brush) brushes.set(scale.name, brush);
      else brushes.delete(scale.name);
      onBrush();
    });
    zone.addEventListener("pointerup", () => {
      start = null;
    });
  });
  svg.append(marks);
  marks.setAttribute("pointer-events", "none");
  return show;
}

/** Return an SVG as a file of its own. */
export function asFile(svg, ground) {
  const copy = svg.cloneNode(true);
  copy.setAttribute("xmlns", SVG);
  const rect = document.createElementNS(SVG, "rect");
  for (const [key, value] of Object.entries({ width: "100%", height: "100%", fill: ground })) rect.setAttribute(key, value);
  copy.prepend(rect);
  return new XMLSerializer().serializeToString(copy);
}

/** Return an SVG as a PNG of twice its size. */
export async function asPng(svg, ground) {
  const image = new Image();
  const url = URL.createObjectURL(new Blob([asFile(svg, ground)], { type: "image/svg+xml" }));
  await new Promise((done, failed) => {
    image.onload = done;
    image.onerror = () => failed(new Error("the plot cannot be turned into a picture"));
    image.src = url;
  });
  URL.revokeObjectURL(url);
  const canvas = document.createElement("canvas");
  canvas.width = 2 * svg.width.baseVal.value;
  canvas.height = 2 * svg.height.baseVal.value;
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise((done) => canvas.toBlob(done, "image/png"));
}
