// Parallel coordinates as SVG: an axis for each field, a line for each run or trial; dragging along an axis chooses a
// part of it (brushes.js).
import { brushed, brushes, covers, makeForm, onBrushes, takeBrushes } from "./brushes.js";
import { colour, csvText, download, fileName } from "./plots.js";
import { asPng, asSvg, node } from "./svg.js";

// Axes take the width that there is, and scroll if they would be nearer to each other than LEAST.
const [HEIGHT, BOTTOM, SIDE, LEAST] = [360, 20, 70, 44];
// Width of a letter in the name of an axis and at a tick.
const [LETTER, SMALL] = [7, 6.5];
const TITLE = "parallel coordinates";

/** Return where axes are in a width; their names are turned and shortened if they are too long for their distance. */
function layOut(scales, room) {
  const num = Math.max(1, scales.length - 1);
  const longest = Math.max(...scales.map(({ name }) => name.length), 0);
  const gap = (room - 2 * SIDE) / num;
  const letters = Math.floor(Math.min(gap - 8, 2 * SIDE) / LETTER);
  const isTurned = longest > letters && letters < 2 * SIDE / LETTER;
  const left = isTurned ? 16 : SIDE;
  const shown = Math.max(LEAST, (room - left - SIDE) / num);
  return { left, top: isTurned ? 76 : 44, gap: shown, width: left + SIDE + shown * (scales.length - 1 || 1), letters: isTurned ? 14 : letters, isTurned };
}

/**
 * Draw lines, and return what changes them.
 *
 * svg: where to. scales: the axes. rows: {id, label, values, color}, best last. Returns a function that shows the
 * brushes as they are, and returns the ids of the lines that all of them cover, or null for all.
 */
function drawLines(svg, scales, rows) {
  const colors = { text: colour("--text"), line: colour("--strong-line"), ground: colour("--bg"), accent: colour("--accent"), font: "system-ui, sans-serif" };
  const { left, top, gap, width, letters, isTurned } = layOut(scales, svg.parentElement.clientWidth);
  svg.replaceChildren();
  svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
  svg.setAttribute("width", width);
  svg.setAttribute("height", HEIGHT);
  const across = (index) => left + gap * index;
  const down = (place) => HEIGHT - BOTTOM - place * (HEIGHT - top - BOTTOM);
  const lines = node("g", { fill: "none", "stroke-width": 1.4 }, svg);
  const drawn = rows.map(({ id, label, values, color }) => {
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
    node("title", {}, line).textContent = label;
    line.dataset.mark = id;
    return { id, values, line };
  });

  const marks = node("g", { fill: colors.accent, "fill-opacity": 0.3, stroke: colors.accent });
  const show = () => {
    const used = scales.map((scale, index) => [scale, index, brushes.get(scale.name)]).filter(([, , brush]) => brush);
    const chosen = new Set();
    for (const { id, values, line } of drawn) {
      const isChosen = used.every(([, index, brush]) => covers(brush, values[index]));
      if (isChosen) chosen.add(id);
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
    node("line", { x1: x, x2: x, y1: top, y2: HEIGHT - BOTTOM, stroke: colors.line, "stroke-width": 1.5 }, svg);
    const turned = { "text-anchor": "start", transform: `rotate(-35 ${x} ${top - 10})`, y: top - 10 };
    const head = node("text", { ...text, x, "font-weight": 600, ...(isTurned ? turned : { "text-anchor": "middle", y: top - 18 }) }, svg);
    head.textContent = scale.name.length > letters ? `…${scale.name.slice(1 - letters)}` : scale.name;
    node("title", {}, head).textContent = scale.name;
    for (const [place, name] of scale.ticks()) {
      node("line", { x1: x - 4, x2: x, y1: down(place), y2: down(place), stroke: colors.line }, svg);
      const tick = node("text", { ...text, x: x + 6, y: down(place) + 4, "font-size": 10.5, stroke: colors.ground, "stroke-width": 3, "paint-order": "stroke" }, svg);
      const most = Math.floor(((index < scales.length - 1 ? gap : SIDE) - 10) / SMALL);
      tick.textContent = String(name).length > most ? `${String(name).slice(0, most - 1)}…` : name;
    }
    const zone = node("rect", { x: x - 14, width: 28, y: top - 6, height: HEIGHT - top - BOTTOM + 12, fill: "transparent" }, svg);
    zone.classList.add("zone");
    zone.dataset.axis = scale.name;
    const placeOf = (event) => {
      const box = svg.getBoundingClientRect();
      const y = ((event.clientY - box.top) / box.height) * HEIGHT;
      return Math.min(1.02, Math.max(-0.02, (HEIGHT - BOTTOM - y) / (HEIGHT - top - BOTTOM)));
    };
    let start = null;
    zone.addEventListener("pointerdown", (event) => {
      zone.setPointerCapture(event.pointerId);
      start = placeOf(event);
      brushes.delete(scale.name); // a click alone takes the brush away
      brushed();
    });
    zone.addEventListener("pointermove", (event) => {
      if (start === null) return;
      const now = placeOf(event);
      if (Math.abs(now - start) < 0.01) return;
      const brush = scale.between(Math.min(start, now), Math.max(start, now));
      if (brush) brushes.set(scale.name, brush);
      else brushes.delete(scale.name);
      brushed();
    });
    zone.addEventListener("pointerup", () => {
      start = null;
    });
  });
  svg.append(marks);
  marks.setAttribute("pointer-events", "none");
  return show;
}

/** Parallel coordinates in an element, with their brushes by pointer and by keys, and buttons that save them. */
export class ParallelPlot {
  /** noun: what a line is, such as "trial". name: of its files. onChosen: is called with the ids that brushes choose, or null. */
  constructor(place, noun, name, onChosen = () => {}) {
    this.place = place;
    this.noun = noun;
    this.onChosen = onChosen;
    this.name = name;
    this.svg = node("svg", { role: "img", "aria-label": `A line for each ${noun}, through the values of its fields` });
    const scrolling = make("div", { className: "scrolling", tabIndex: 0, role: "region", ariaLabel: "Parallel coordinates, to scroll" }, this.svg);
    this.state = make("span", { className: "dim brushed", role: "status" });
    const buttons = ["png", "svg", "csv"].map((format) => {
      const button = make("button", { type: "button", textContent: format.toUpperCase() });
      button.dataset.save = format;
      button.addEventListener("click", () => this.save(format));
      return button;
    });
    this.form = make("form", { className: "ranges", ariaLabel: `Ranges that choose ${noun}s` });
    this.ranges = make("details", {}, make("summary", { textContent: "Ranges" }), this.form);
    place.replaceChildren(make("p", { className: "bar" }, this.state, ...buttons), scrolling, this.ranges);
    onBrushes((control) => place.isConnected && this.svg.firstChild && this.choose(control));
    new ResizeObserver(() => this.isWide !== scrolling.clientWidth && this.scales && this.redraw()).observe(scrolling);
  }

  /** Draw rows, {id, label, values, color}, best last. */
  draw(scales, rows) {
    [this.scales, this.rows] = [scales, rows];
    if (rows.length && takeBrushes(scales)) this.ranges.open = true;
    this.redraw();
    // What is being typed stays.
    if (!this.form.contains(document.activeElement)) this.showForm = makeForm(this.form, scales, this.noun);
    this.choose();
  }

  redraw() {
    this.isWide = this.svg.parentElement.clientWidth;
    this.showBrushes = drawLines(this.svg, this.scales, this.rows);
    this.showBrushes();
  }

  /** Show the brushes in the plot and in the form, and what they choose. */
  choose(control) {
    this.showForm?.(control);
    const chosen = this.showBrushes();
    const { noun } = this;
    this.state.textContent = chosen === null ? `drag along an axis to choose ${noun}s` : `${chosen.size} ${noun}${chosen.size === 1 ? "" : "s"} chosen; click an axis to choose all of it`;
    this.onChosen(chosen);
  }

  async save(format) {
    const ground = colour("--bg");
    const file = {
      svg: () => new Blob([asSvg(this.svg, ground)], { type: "image/svg+xml" }),
      png: () => asPng(this.svg, ground),
      csv: () => new Blob([csvText([[this.noun, ...this.scales.map(({ name }) => name)], ...this.rows.map(({ id, values }) => [id, ...values])])], { type: "text/csv" }),
    };
    download(`${fileName(`${this.name} ${TITLE}`)}.${format}`, await file[format]());
  }
}

function make(tag, attributes, ...children) {
  const made = Object.assign(document.createElement(tag), attributes);
  made.append(...children);
  return made;
}
