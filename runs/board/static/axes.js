// Axes of plots: places of values in pixels, and ticks at round values.

// Steps of dates, in seconds.
const DATES = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400, 172_800, 604_800, 2_592_000, 7_776_000, 31_536_000];
const MOST_TICKS = 30;

/** Return the least round number that is not below a number. */
function roundUp(number) {
  const power = 10 ** Math.floor(Math.log10(number));
  return [1, 2, 5, 10].find((one) => one * power >= number * 0.999) * power;
}

/** Return how numbers are written that are multiples of a step. */
function writer(step) {
  const place = Math.floor(Math.log10(step) + 1e-9);
  return (value) => {
    if (value === 0) return "0";
    const size = Math.floor(Math.log10(Math.abs(value)) + 1e-9);
    if (size < 6 && place > -5) return value.toFixed(Math.max(0, -place));
    return value.toExponential(Math.min(12, Math.max(0, size - place))).replace("e+", "e");
  };
}

/** Return a number or a date as a text. */
export function textOf(kind, value) {
  if (kind !== "date") return String(Number.isInteger(value) ? value : Number(value.toPrecision(6)));
  const date = new Date(Math.round(value * 1000));
  return Number.isNaN(date.getTime()) ? "" : date.toISOString().slice(0, 19).replace("T", " ");
}

/** An axis of the kind "linear", "log" or "date" (seconds since 1970), from one pixel to another. */
export class Axis {
  constructor(kind, [low, high], from, to) {
    this.kind = kind;
    [this.of, this.back] = kind === "log" ? [Math.log10, (place) => 10 ** place] : [Number, Number];
    // A range of nothing is widened, and one beyond all numbers narrowed.
    let [first, last] = [low, high].map((value) => Math.min(8e307, Math.max(-8e307, this.of(value))));
    const isDate = kind === "date";
    if (!(last - first > (isDate ? 0.002 : 1e-12 * Math.max(Math.abs(first), Math.abs(last))))) {
      const room = isDate ? 1 : Math.abs(first) / 5 || 1;
      [first, last] = [first - room, first + room];
    }
    [this.low, this.from, this.scale] = [first, from, (to - from) / (last - first)];
    this.range = [first, last].map(this.back);
  }

  /** Return the pixel of a value; it is not finite for one that the axis lacks. */
  at(value) {
    return this.from + (this.of(value) - this.low) * this.scale;
  }

  /** Return the value at a pixel, with the digits that tell pixels apart. */
  value(pixel) {
    const found = this.back(this.low + (pixel - this.from) / this.scale);
    if (this.kind === "log") return Number(found.toPrecision(5));
    return Number(found.toFixed(Math.min(100, Math.max(0, Math.ceil(Math.log10(Math.abs(this.scale)))))));
  }

  /** Return ticks as pairs of a value and its text. */
  ticks(most) {
    const [low, high] = this.range;
    if (this.kind === "log" && high / low >= 10) return this.decades(Math.log10(low), Math.log10(high), most);
    const rough = (high - low) / most;
    const step = (this.kind === "date" && rough > 0.5 && DATES.find((one) => one >= rough)) || roundUp(rough);
    const write = this.kind === "date" ? (value) => this.date(value, step) : writer(step);
    const ticks = [];
    for (let number = Math.ceil(low / step); number * step <= high && ticks.length < MOST_TICKS; number += 1) ticks.push([number * step, write(number * step)]);
    return ticks;
  }

  decades(low, high, most) {
    const step = Math.max(1, Math.ceil((high - low) / most));
    const within = high - low < 2 ? [1, 2, 5] : [1];
    const ticks = [];
    for (let power = Math.floor(low); power <= high && ticks.length < MOST_TICKS; power += step) {
      for (const digit of within) {
        const place = power + Math.log10(digit);
        if (place >= low && place <= high) ticks.push([10 ** place, writer(10 ** power)(digit * 10 ** power)]);
      }
    }
    return ticks;
  }

  /** Return a date, with the parts that tell ticks apart. */
  date(seconds, step) {
    const text = textOf("date", seconds);
    if (step >= 86_400) return text.slice(0, 10);
    const digits = step < 1 ? new Date(Math.round(seconds * 1000)).toISOString().slice(19, 20 + Math.min(3, Math.ceil(-Math.log10(step)))) : "";
    const time = text.slice(11, step < 60 ? 19 : 16) + digits;
    return this.range[1] - this.range[0] > 86_400 ? `${text.slice(5, 10)} ${time}` : time;
  }
}
