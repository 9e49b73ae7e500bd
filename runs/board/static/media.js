// Media of a run: one step of each series, chosen with a slider; by default the newest.
import { isHeld, keepInAddress, whenSeen } from "./board.js";
import { onLook } from "./follow.js";
import { fetchMedium, keepTied, onTable, show } from "./medium.js";

const run = document.querySelector("[data-run]").dataset.run;
const all = document.getElementById("media");
const tied = document.getElementById("tied");
const shownSeries = new Map();
const keyOf = ({ dataset }) => JSON.stringify([dataset.kind, dataset.name]);
const entriesOf = (section) => JSON.parse(section.querySelector(".medium").dataset.entries);

class Series {
  constructor(section) {
    this.section = section;
    this.place = section.querySelector(".medium");
    this.slider = section.querySelector("input[type=range]");
    this.entries = entriesOf(section);
    this.isSeen = this.isAsking = false;
    this.number = -1; // of the medium that is shown
    this.word = `step.${section.dataset.name}`;
    this.slider.addEventListener("input", () => {
      this.choose(Number(this.slider.value));
      this.follow();
      for (const other of tied.checked ? shownSeries.values() : []) if (other !== this) other.goTo(Number(this.entries[this.wanted][1]));
    });
    this.slider.addEventListener("change", () => (tied.checked ? [...shownSeries.values()] : [this]).forEach((one) => one.keep()));
    const step = new URLSearchParams(location.search).get(this.word);
    const named = this.entries.findLastIndex((entry) => entry[1] === step);
    this.choose(named >= 0 ? named : this.entries.length - 1);
    onTable(section, () => {
      this.number = -1;
      return this.follow();
    });
    whenSeen([section], () => {
      this.isSeen = true;
      this.follow();
    });
  }

  get isAtEnd() {
    return this.wanted === this.entries.length - 1;
  }

  /** Keep the step in the address; the newest needs none. */
  keep() {
    keepInAddress(this.word, this.isAtEnd ? "" : this.entries[this.wanted][1]);
  }

  /** Show the last medium up to a step, or the first. */
  goTo(step) {
    this.choose(Math.max(0, this.entries.findLastIndex((entry) => Number(entry[1]) <= step)));
    this.follow();
  }

  choose(index) {
    this.wanted = index;
    const step = this.entries[index][1];
    this.slider.max = this.entries.length - 1;
    this.slider.value = index;
    this.slider.hidden = this.entries.length < 2;
    this.slider.ariaValueText = `step ${step}`;
    this.section.querySelector("output").textContent = step;
  }

  /** Show the chosen medium; while one is loading, only the latest choice counts. */
  async follow() {
    if (this.isAsking || !this.isSeen) return;
    this.isAsking = true;
    for (let wish; (wish = this.entries[this.wanted][0]) !== this.number; ) {
      this.number = wish;
      const html = await fetchMedium(run, wish, this.section.dataset.name);
      if (this.number === wish) show(this.place, html);
    }
    this.isAsking = false;
  }

  /** Take over new media, but keep a chosen step and a medium that is played, or selected in. */
  renew(entries) {
    const [number] = this.entries[this.wanted];
    const kept = entries.findIndex((entry) => entry[0] === number);
    const index = (this.isAtEnd && !isHeld(this.place)) || kept < 0 ? entries.length - 1 : kept;
    this.entries = entries;
    this.choose(index);
    this.follow();
  }
}

function take(section) {
  shownSeries.set(keyOf(section), new Series(section));
}

keepTied(tied);
for (const section of all.children) take(section);
onLook((page) => {
  for (const section of page?.querySelectorAll(".medium-series") ?? []) {
    const known = shownSeries.get(keyOf(section));
    if (known) {
      known.renew(entriesOf(section));
    } else {
      all.append(section);
      take(section);
    }
  }
});
