// Legends: a button for each run or group that lets its curves stand out, and hides or shows them.
import { DASHES, MARKS, PART_DASHES, shadeScale, styleOf } from "./colours.js";
import { isShown, toggle } from "./eyes.js";
import { viridis } from "./plots.js";
import { node } from "./svg.js";

const COUNT = 24; // stops of the bar of a scale

/**
 * Show entries {key, label} in a list; `onPoint` is called with the key that the pointer or the focus is at, or null.
 *
 * parts: the metrics that share a panel, {dash, label}.
 */
export function showLegend(list, entries, onPoint, parts = []) {
  const text = JSON.stringify([parts, entries]);
  if (list.dataset.entries !== text && !list.matches(":active")) {
    const focused = list.contains(document.activeElement) ? document.activeElement.dataset.keyOf : null;
    list.dataset.entries = text;
    list.replaceChildren(...parts.map(partItem), ...entries.map((entry) => item(entry, onPoint)));
    if (focused !== null) list.querySelector(`[data-key-of="${CSS.escape(focused)}"]`)?.focus();
  }
  const styles = new Set();
  for (const button of list.querySelectorAll("button")) {
    const { color, dash, mark } = styleOf(button.dataset.keyOf);
    styles.add(JSON.stringify([color, dash, parts.length ? 0 : mark]));
    button.ariaPressed = String(isShown(button.dataset.keyOf));
    button.firstChild.style.color = color;
    button.querySelector("path").setAttribute("stroke-dasharray", parts.length ? "" : DASHES[dash]);
    button.querySelector(".mark").setAttribute("d", `M11 4${MARKS[parts.length ? dash : mark]}`);
  }
  list.querySelector("li.dim")?.remove();
  if (styles.size === entries.length || shadeScale()) return; // on a scale equal values have equal colours
  list.append(Object.assign(document.createElement("li"), { className: "dim", textContent: `${entries.length} curves share ${styles.size} styles` }));
}

/** Return the metrics that share the panel of an answer, for its legend. */
export function partsOf(found) {
  const parts = found?.parts ?? [];
  return parts.length > 1 ? parts.map((label, at) => ({ label, dash: PART_DASHES[at % PART_DASHES.length] })) : [];
}

/** Return an element with a sample of a line and its label, in a line of the list. */
function labelled(tag, label, dash = "") {
  const made = Object.assign(document.createElement(tag), { title: label });
  const sample = node("svg", { viewBox: "0 0 22 8", "aria-hidden": "true" }, made);
  node("path", { d: "M0 4H22", stroke: "currentColor", "stroke-width": 2.5, "stroke-dasharray": dash }, sample);
  node("path", { class: "mark", fill: "currentColor" }, sample);
  made.append(Object.assign(document.createElement("b"), { textContent: label }));
  const line = document.createElement("li");
  line.append(made);
  return line;
}

const partItem = ({ dash, label }) => labelled("span", label, dash);

function item({ key, label }, onPoint) {
  const line = labelled("button", label);
  const button = line.firstChild;
  button.type = "button";
  button.dataset.keyOf = key;
  button.addEventListener("click", () => toggle(key));
  for (const kind of ["pointerenter", "focus"]) button.addEventListener(kind, () => onPoint(key));
  for (const kind of ["pointerleave", "blur"]) button.addEventListener(kind, () => onPoint(null));
  return line;
}

/** Show the scale of the setting that colours the runs; without one, or one of names, nothing. */
export function showScale(place) {
  const scale = shadeScale();
  place.hidden = !scale?.isNumeric;
  if (place.hidden) return;
  const [low, high] = [scale.low, scale.high].map((value) => scale.text(value));
  const bar = document.createElement("i");
  const isDark = matchMedia("(prefers-color-scheme: dark)").matches;
  const stops = Array.from({ length: COUNT }, (_, at) => viridis(isDark ? 0.22 + (0.78 * at) / (COUNT - 1) : (0.88 * at) / (COUNT - 1)));
  bar.style.background = `linear-gradient(to right, ${stops.join(",")})`;
  place.replaceChildren(`${scale.name}${scale.isLog ? " (log)" : ""}: ${low}`, bar, high);
}
