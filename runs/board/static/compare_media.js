// Media of several runs side by side: of each series and run the last one up to the step of a slider.
import { keepInAddress, whenSeen } from "./board.js";
import { close, fetchMedium, keepTied, onTable, show } from "./medium.js";

const tied = document.getElementById("tied");
keepTied(tied);
const all = []; // with a slider: how each goes to a step, and keeps it in the address

for (const section of document.querySelectorAll(".medium-series")) {
  const steps = JSON.parse(section.dataset.steps);
  const slider = section.querySelector("input[type=range]");
  const places = [...section.querySelectorAll(".medium")].map((place) => ({ place, entries: JSON.parse(place.dataset.entries), shown: null }));

  const follow = async (one) => {
    const { place, entries } = one;
    const step = slider ? steps[Number(slider.value)] : Infinity;
    const entry = entries.findLast(([, at]) => !(at > step));
    const at = place.parentElement.querySelector(".at");
    if (!entry) {
      at.textContent = "";
      close(place);
      place.replaceChildren(entries.length ? "no entry up to this step" : "no entries");
      one.shown = null;
    } else if (one.shown !== entry[0]) {
      one.shown = entry[0];
      const html = await fetchMedium(place.dataset.run, entry[0], section.dataset.name);
      if (one.shown !== entry[0]) return; // the slider has moved on
      show(place, html);
      at.textContent = `step ${entry[1]}`;
    }
  };
  const choose = () => {
    section.querySelector("output").textContent = steps[Number(slider.value)];
    slider.ariaValueText = `step ${steps[Number(slider.value)]}`;
  };
  const goTo = (index) => {
    slider.value = index;
    choose();
    places.forEach(follow);
  };
  const word = `step.${section.dataset.name}`;
  const series = {
    goTo: (step) => goTo(Math.max(0, steps.findLastIndex((one) => one <= step))),
    keep: () => keepInAddress(word, slider.value === slider.max ? "" : String(steps[Number(slider.value)])),
  };
  if (slider) all.push(series);
  slider?.addEventListener("input", () => {
    goTo(slider.value);
    for (const other of tied.checked ? all : []) if (other !== series) other.goTo(steps[Number(slider.value)]);
  });
  slider?.addEventListener("change", () => (tied.checked ? all : [series]).forEach((one) => one.keep()));
  const named = steps.map(String).indexOf(new URLSearchParams(location.search).get(word));
  if (slider && named >= 0) {
    slider.value = named;
    choose();
  }
  onTable(section, () => Promise.all(places.map((one) => follow(Object.assign(one, { shown: null })))));
  whenSeen([section], () => places.forEach(follow));
}
