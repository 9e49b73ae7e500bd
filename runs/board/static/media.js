// Media of a run: of each series one step, which a slider chooses.
import { makeSortable } from "./run.js";

const run = document.querySelector("[data-run]").dataset.run;

for (const section of document.querySelectorAll(".medium-series")) {
  const place = section.querySelector(".medium");
  const entries = JSON.parse(place.dataset.entries);
  const slider = section.querySelector("input[type=range]");
  const shown = section.querySelector("output");
  let wanted = entries.length - 1;
  let asking = false;

  const show = async () => {
    if (asking) return; // the newest wish is shown when that is answered
    asking = true;
    for (let now = -1; now !== wanted; ) {
      now = wanted;
      const answer = await fetch(`/medium?${new URLSearchParams({ run, number: entries[now][0] })}`);
      place.innerHTML = answer.ok ? await answer.text() : '<p class="problem">It cannot be read.</p>';
    }
    place.querySelectorAll("table[data-sortable]").forEach(makeSortable);
    asking = false;
  };
  slider?.addEventListener("input", () => {
    wanted = Number(slider.value);
    shown.textContent = entries[wanted][1];
    slider.ariaValueText = `step ${entries[wanted][1]}`;
    show();
  });
  // Of many series, those that are seen.
  new IntersectionObserver((found, observer) => {
    if (!found.some((one) => one.isIntersecting)) return;
    observer.disconnect();
    show();
  }, { rootMargin: "300px" }).observe(section);
}
