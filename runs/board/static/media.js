// Media of a run: of each series one step, which a slider chooses.
import { fetchMedium, show } from "./medium.js";

const run = document.querySelector("[data-run]").dataset.run;

for (const section of document.querySelectorAll(".medium-series")) {
  const place = section.querySelector(".medium");
  const entries = JSON.parse(place.dataset.entries);
  const slider = section.querySelector("input[type=range]");
  const shown = section.querySelector("output");
  let wanted = entries.length - 1;
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
  slider?.addEventListener("input", () => {
    wanted = Number(slider.value);
    shown.textContent = entries[wanted][1];
    slider.ariaValueText = `step ${entries[wanted][1]}`;
    follow();
  });
  // Of many series, those that are seen.
  new IntersectionObserver((found, observer) => {
    if (!found.some((one) => one.isIntersecting)) return;
    observer.disconnect();
    follow();
  }, { rootMargin: "300px" }).observe(section);
}
