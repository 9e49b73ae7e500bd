// Media of several runs side by side: of each series and run the last one up to the step that a slider chooses.
import { makeSortable } from "./run.js";

for (const section of document.querySelectorAll(".medium-series")) {
  const steps = JSON.parse(section.dataset.steps);
  const slider = section.querySelector("input[type=range]");
  const places = [...section.querySelectorAll(".medium")].map((place) => ({ place, entries: JSON.parse(place.dataset.entries), shown: null }));

  const show = async (one) => {
    const { place, entries } = one;
    const step = slider ? steps[Number(slider.value)] : Infinity;
    const entry = entries.findLast(([, at]) => !(at > step));
    const at = place.parentElement.querySelector(".at");
    if (!entry) {
      at.textContent = "";
      place.replaceChildren(entries.length ? "nothing up to this step" : "it logged none");
      one.shown = null;
    } else if (one.shown !== entry[0]) {
      one.shown = entry[0];
      const answer = await fetch(`/medium?${new URLSearchParams({ run: place.dataset.run, number: entry[0] })}`);
      const text = answer.ok ? await answer.text() : '<p class="problem">It cannot be read.</p>';
      if (one.shown !== entry[0]) return; // the slider has moved on
      place.innerHTML = text;
      at.textContent = `step ${entry[1]}`;
      place.querySelectorAll("table[data-sortable]").forEach(makeSortable);
    }
  };
  slider?.addEventListener("input", () => {
    section.querySelector("output").textContent = steps[Number(slider.value)];
    slider.ariaValueText = `step ${steps[Number(slider.value)]}`;
    places.forEach(show);
  });
  new IntersectionObserver((found, observer) => {
    if (!found.some((one) => one.isIntersecting)) return;
    observer.disconnect();
    places.forEach(show);
  }, { rootMargin: "300px" }).observe(section);
}
