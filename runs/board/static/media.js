// Media of a run: of each series one step, which a slider chooses.
import { keepInAddress } from "./board.js";
import { fetchMedium, show } from "./medium.js";

const run = document.querySelector("[data-run]").dataset.run;

for (const section of document.querySelectorAll(".medium-series")) {
  const place = section.querySelector(".medium");
  const entries = JSON.parse(place.dataset.entries);
  const slider = section.querySelector("input[type=range]");
  const shown = section.querySelector("output");
  const word = `step.${section.dataset.name}`;
  const step = new URLSearchParams(location.search).get(word);
  const last = entries.length - 1;
  let wanted = last;
  let asking = false;

  const follow = async () => {
    if (asking) return; // the newest wish is shown when that is answered
    asking = true;
    for (let now = -1; now !== wanted; ) {
      now = wanted;
      show(place, await fetchMedium(run, entries[now][0]));
    }
    asking = false;
  };
  const choose = (index) => {
    wanted = index;
    shown.textContent = entries[wanted][1];
    slider.ariaValueText = `step ${entries[wanted][1]}`;
  };
  slider?.addEventListener("input", () => {
    choose(Number(slider.value));
    follow();
  });
  slider?.addEventListener("change", () => keepInAddress(word, wanted === last ? "" : entries[wanted][1]));
  const named = entries.findLastIndex((entry) => entry[1] === step);
  if (slider && named >= 0) {
    slider.value = named;
    choose(named);
  }
  // Of many series, those that are seen.
  new IntersectionObserver((found, observer) => {
    if (!found.some((one) => one.isIntersecting)) return;
    observer.disconnect();
    follow();
  }, { rootMargin: "300px" }).observe(section);
}
