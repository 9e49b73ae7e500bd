// Axes of any values, and their bins.

const MOST_BINS = 12;

/** An axis: places of values between 0 and 1, and ticks. */
export class Scale {
  /** `text` writes a number of the axis; by default it has three digits. */
  constructor(name, values, text = (value) => String(Number(value.toPrecision(3)))) {
    this.name = name;
    this.text = text;
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

  /** Return the number at a place. */
  value(place) {
    return this.isLog ? this.low * (this.high / this.low) ** place : this.low + (this.high - this.low) * place;
  }

  /** Return the part of the axis between two places: what `brushes.js` calls a brush; null for all of it. */
  between(low, high) {
    if (!this.isNumeric) {
      const names = this.names.filter((name) => this.place(name) >= low && this.place(name) <= high);
      return names.length && names.length < this.names.length ? { names: new Set(names) } : null;
    }
    const value = (place) => Number(this.value(place).toPrecision(4));
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
    return at.map((place) => [place, this.text(this.value(place))]);
  }
}

/** Return bins of an axis: their labels, and the bin of a value, -1 for none. */
export function binned(scale, values) {
  const own = [...new Set(values.filter((one) => one !== null && one !== undefined))];
  if (!scale.isNumeric || (own.length <= MOST_BINS && own.length <= values.length / 2)) {
    const sorted = scale.isNumeric ? own.toSorted((a, b) => a - b) : scale.names;
    return { labels: sorted.map((one) => (scale.isNumeric ? scale.text(one) : one)), of: (value) => sorted.indexOf(scale.isNumeric ? value : String(value)) };
  }
  if (scale.high === scale.low) return { labels: [scale.text(scale.low)], of: (value) => (value === null || value === undefined ? -1 : 0) };
  const num = Math.min(MOST_BINS, Math.max(4, Math.ceil(Math.sqrt(values.length))));
  const edges = Array.from({ length: num + 1 }, (_, at) => scale.value(at / num));
  const labels = edges.slice(1).map((high, at) => `${scale.text(edges[at])}–${scale.text(high)}`);
  return { labels, of: (value) => (value === null || value === undefined ? -1 : Math.min(num - 1, Math.floor(scale.place(value) * num))) };
}
