// A plot of curves: pointer, finger and arrow keys read values; a drag or + zooms, a double click or 0 shows all.
import { announce } from "./board.js";
import { textOf } from "./axes.js";
import { BOTTOM, RIGHT, TOP, drawInto } from "./line_drawing.js";
import { colour, download, fileName, save } from "./plots.js";
import { asPng, asSvg, node } from "./svg.js";

const SAVED = [1000, 600];
// How near the pointer must be to a curve, and what a drag must be to count, in pixels.
const [NEAR, LEAST] = [24, 8];
// Of more curves the nearest alone is read.
const MOST_READ = 12;
// A finger that stays so long reads, in milliseconds.
const HOLD = 350;

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
  /** onRange, onYRange: are called with the range of x or y that was chosen, or null for all. onRead: with x and the keys of the curves at the pointer, or with null. csv: returns the promise of a CSV file. */
  constructor(place, { name, csv, onRange, onYRange, onRead }) {
    Object.assign(this, { place, name, csv, onRange, onYRange, onRead, isPanning: false, reader: null });
    this.svg = node("svg", { role: "application", tabindex: 0, "aria-roledescription": "plot", "aria-label": `Curves of ${name}; arrow keys read values, plus and minus zoom, 0 shows all`, class: "lines" });
    this.box = make("div", { className: "zoombox", hidden: true });
    this.readings = make("div", { className: "readings", hidden: true });
    this.dot = make("div", { className: "reader", hidden: true });
    this.spoken = make("div", { className: "hidden", ariaLive: "polite" });
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
    place.replaceChildren(this.svg, this.line, this.dot, this.box, this.readings, this.spoken, tools);
    this.listen();
    [this.width, this.height] = [place.clientWidth, place.clientHeight];
    new ResizeObserver(([{ contentRect: { width, height } }]) => this.resize(width, height)).observe(place);
  }

  button(textContent, title, action) {
    const button = make("button", { type: "button", textContent, title, ariaLabel: title });
    button.addEventListener("click", action);
    return button;
  }

  /** Draw what `drawInto` takes. */
  draw(spec) {
    this.spec = spec;
    this.render();
    if (this.reader) this.readPoint();
  }

  resize(width, height) {
    if (this.width === width && this.height === height) return;
    [this.width, this.height] = [width, height];
    if (this.spec) this.render();
  }

  render() {
    if (!this.width || !this.height) return; // it is drawn when it has a size
    Object.assign(this, drawInto(this.svg, this.spec, this.width, this.height));
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
    this.spec = { ...this.spec, xRange: null, yRange: null };
    this.render();
    this.onYRange(null);
    this.onRange(null);
  }

  /** Show a part of the range of x around a place, a fraction of it as large. */
  zoom(place, fraction) {
    const [from, to] = [this.across.from, this.width - RIGHT];
    const xRange = [from, to].map((end) => this.across.value(place + (end - place) * fraction));
    if (!(xRange[0] < xRange[1])) return;
    this.spec = { ...this.spec, xRange };
    this.render();
    this.onRange(xRange);
  }

  listen() {
    let start = null;
    const at = ({ clientX, clientY }) => {
      const box = this.svg.getBoundingClientRect();
      const inside = (value, low, high) => Math.min(high, Math.max(low, value));
      return [inside(clientX - box.left, this.across.from, this.width - RIGHT), inside(clientY - box.top, TOP, this.height - BOTTOM)];
    };
    let hold;
    this.svg.addEventListener("pointerdown", (event) => {
      if (event.button || !this.across) return;
      this.svg.setPointerCapture(event.pointerId);
      start = { at: at(event), x: this.across, y: this.down, now: at(event), reads: false };
      if (event.pointerType !== "mouse") hold = setTimeout(() => {
        if (!start || this.ends(start).isLong.includes(true)) return;
        start.reads = true;
        this.read(start.now);
      }, HOLD);
    });
    this.svg.addEventListener("pointermove", (event) => {
      if (!this.across) return;
      if (start) start.now = at(event);
      if (!start || start.reads) this.read(at(event));
      else this.drag(start);
    });
    this.svg.addEventListener("pointerup", (event) => {
      clearTimeout(hold);
      const isTap = start && !start.reads && event.pointerType !== "mouse" && !this.ends(start).isLong.includes(true);
      if (isTap) this.read(at(event));
      else if (start && !start.reads) this.drop(start);
      start = null;
    });
    this.svg.addEventListener("pointercancel", () => {
      clearTimeout(hold);
      start = null;
      this.box.hidden = true;
    });
    // A finger that reads does not scroll.
    this.svg.addEventListener("touchmove", (event) => start?.reads && event.preventDefault(), { passive: false });
    // What a finger has read stays until another place is touched.
    this.svg.addEventListener("pointerleave", ({ pointerType }) => pointerType === "mouse" && this.read(null));
    document.addEventListener("pointerdown", ({ target }) => !this.readings.hidden && !this.place.contains(target) && this.read(null));
    this.svg.addEventListener("contextmenu", (event) => event.pointerType === "touch" && event.preventDefault());
    this.svg.addEventListener("dblclick", () => this.showAll());
    this.svg.addEventListener("keydown", (event) => this.press(event));
    // The page may move the plot, and then focuses it again.
    this.svg.addEventListener("blur", () => setTimeout(() => document.activeElement !== this.svg && this.endReading()));
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
      if (Math.abs(start.now[1] - start.at[1]) >= LEAST || this.spec.yRange) this.spec.yRange = moved(start.y, 1);
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
    const chosen = { ...this.spec };
    if (!this.isPanning && isLong[1]) chosen.yRange = [this.down.value(y[1]), this.down.value(y[0])];
    if (!this.isPanning && isLong[0]) chosen.xRange = x.map((pixel) => this.across.value(pixel));
    this.spec = chosen;
    this.render();
    if (isLong[1] && chosen.yRange) this.onYRange(chosen.yRange);
    if (isLong[0]) this.onRange(chosen.xRange);
  }

  // -------------------------------------------------------------------- reading

  /** Show the values at a place of the pointer; null ends that. */
  read(place) {
    const found = place && this.pointsNear(place);
    if (!found?.length) {
      if (this.reader) return; // keys read
      this.readings.hidden = true;
      this.onRead(null, []);
      return;
    }
    this.endReading();
    this.show(found, place);
    this.onRead(found[0].curve.x[found[0].at], found.map(({ curve: { key } }) => key));
  }

  /** Show points beside the plot, at the height of a place; the nearest side that has room. */
  show(found, [, top]) {
    const [{ curve, at }] = found;
    const rows = found.map(({ curve: { y, color, label }, at: index }) => {
      const mark = make("i");
      mark.style.background = color;
      return make("p", {}, mark, make("b", { textContent: textOf("linear", y[index]) }), ` ${label}`);
    });
    this.readings.replaceChildren(make("p", { className: "dim", textContent: textOf(this.spec.xKind, curve.x[at]) }), ...rows);
    this.readings.hidden = false;
    const box = this.svg.getBoundingClientRect();
    const { width, height } = this.readings.getBoundingClientRect();
    const inWindow = (value, size, all) => Math.max(2, Math.min(all - size - 2, value));
    const [right, left] = [box.right + 4, box.left - width - 4];
    const isBeside = right + width <= innerWidth || left >= 0;
    const x = !isBeside ? box.left : right + width <= innerWidth ? right : left;
    // On a phone there is room above or below alone.
    const y = isBeside ? box.top + top - height / 2 : box.top - height - 4 >= 0 ? box.top - height - 4 : box.bottom + 4;
    Object.assign(this.readings.style, { left: `${inWindow(x, width, innerWidth)}px`, top: `${inWindow(y, height, innerHeight)}px` });
  }

  // -------------------------------------------------------------------- keys

  /** Move through the points of the curves, and zoom. */
  press(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || !this.across) return;
    const steps = { ArrowRight: 1, ArrowLeft: -1, PageDown: 10, PageUp: -10, Home: -Infinity, End: Infinity };
    const middle = () => (this.reader ? this.placeRead()[0] : (this.across.from + this.width - RIGHT) / 2);
    if (event.key in steps) this.movePoint(steps[event.key]);
    else if (event.key === "ArrowUp" || event.key === "ArrowDown") this.changeCurve(event.key === "ArrowUp" ? -1 : 1);
    else if (event.key === "+" || event.key === "=") this.zoom(middle(), 0.5);
    else if (event.key === "-") this.zoom(middle(), 2);
    else if (event.key === "0") this.showAll();
    else if (event.key === "Escape" && this.reader) this.endReading();
    else return;
    event.preventDefault();
  }

  /** Return the positions of the points of a curve that are shown. */
  pointsShown({ x, y }) {
    const [from, to] = this.across.range;
    return Array.from(x.keys()).filter((at) => x[at] >= from && x[at] <= to && Number.isFinite(this.down.at(y[at])));
  }

  movePoint(by) {
    const { key = null, part = 0, x = null } = this.reader ?? {};
    const curve = this.spec.curves.find((one) => one.key === key && one.part === part) ?? this.spec.curves.find((one) => this.pointsShown(one).length);
    const shown = curve ? this.pointsShown(curve) : [];
    if (!shown.length) return;
    const now = x === null ? (by > 0 ? -1 : shown.length) : shown.indexOf(shown[nearest(shown.map((at) => curve.x[at]), x)]);
    const at = shown[Math.max(0, Math.min(shown.length - 1, now + by))];
    this.reader = { key: curve.key, part: curve.part, x: curve.x[at] };
    this.readPoint();
  }

  changeCurve(by) {
    const curves = this.spec.curves.filter((one) => this.pointsShown(one).length);
    if (!curves.length) return;
    const now = curves.findIndex((one) => one.key === this.reader?.key && one.part === this.reader.part);
    const { key, part } = curves[(now + by + curves.length) % curves.length];
    this.reader = { key, part, x: this.reader?.x ?? null };
    if (this.reader.x === null) this.movePoint(1);
    else this.readPoint();
  }

  /** Return the curve that keys read, and the position of its point that is nearest to where they are. */
  pointRead() {
    const curve = this.spec.curves.find(({ key, part }) => key === this.reader.key && part === this.reader.part);
    const shown = curve ? this.pointsShown(curve) : [];
    return shown.length ? { curve, at: shown[nearest(shown.map((at) => curve.x[at]), this.reader.x)] } : null;
  }

  placeRead() {
    const found = this.pointRead();
    return found ? [this.across.at(found.curve.x[found.at]), this.down.at(found.curve.y[found.at])] : [this.across.from, TOP];
  }

  /** Show and say the point that keys have come to. */
  readPoint() {
    const found = this.pointRead();
    if (!found) {
      this.endReading();
      return;
    }
    const { curve, at } = found;
    const place = this.placeRead();
    this.show([found], place);
    this.dot.hidden = false;
    Object.assign(this.dot.style, { left: `${place[0]}px`, top: `${place[1]}px`, borderColor: curve.color });
    const text = `${curve.label}: ${textOf("linear", curve.y[at])} at ${this.spec.title} ${textOf(this.spec.xKind, curve.x[at])}`;
    if (this.spoken.textContent !== text) this.spoken.textContent = text;
    this.standOut(curve.key);
    this.onRead(curve.x[at], [curve.key]);
  }

  endReading() {
    if (!this.reader) return;
    this.reader = null;
    this.dot.hidden = true;
    this.readings.hidden = true;
    this.standOut(null);
    this.onRead(null, []);
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
    drawInto(svg, this.spec, ...SAVED);
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
