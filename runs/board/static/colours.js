// Colours of runs and groups: distinct among those that are shown together. A run keeps its own while others come and
// go, as the tab remembers it; one that people chose is kept in the store.
import { announce, post, root, showError } from "./board.js";
import { isShown } from "./eyes.js";
import { scheme, viridis } from "./plots.js";
import { Scale } from "./scales.js";

// The hues of Tableau's ten, moved apart: CIEDE2000 of 25 between any two, and of 11 as people see them who lack one
// kind of cones (Machado et al. 2009, https://doi.org/10.1109/TVCG.2009.113).
const PALETTES = {
  light: ["#0c6197", "#ac6300", "#13955e", "#a00a12", "#9667e9", "#68495e", "#fb569c", "#5d5d4d", "#aea336", "#08b1c2"],
  dark: ["#0771ce", "#ff8d1b", "#289255", "#e10118", "#b18bff", "#bf8a91", "#c21d8f", "#6c6a67", "#bcb780", "#4bc2ca"],
};
const NUM_COLOURS = 10;
// Curves that share a colour differ in these.
export const DASHES = ["", "7 4", "2 3", "10 3 2 3", "12 3 2 3 2 3"];
// Curves that share a colour and dashes differ in these: marks along them, drawn from their middle.
export const MARKS = ["", "m-3 -3h6v6h-6Z", "m0 -4l4 7h-8Z", "m0 -4l4 4l-4 4l-4 -4Z", "m-3 0a3 3 0 1 0 6 0a3 3 0 1 0 -6 0Z"];
// Dashes of the metrics that share a panel; runs of one colour have marks then.
export const PART_DASHES = ["", "2 3", "7 4", "7 3 2 3"];
// Colours that are nearer, by CIEDE2000, are taken for the same.
const LEAST_DISTANCE = 10;
const UNKNOWN = { light: "#8a919c", dark: "#767e8b" };
const [KEPT, MOST_KEPT] = [`colours${root}`, 2_000];
const listeners = [];
const kept = JSON.parse(sessionStorage.getItem(KEPT) ?? '{"slots": []}');
const slots = new Map(kept.slots); // number of the style of each key
let present = new Set(); // the keys of the view
let chosen = new Map(); // styles of keys whose colour people chose
let shown = ""; // the styles of what the page shows
let shades = null; // styles by the value of a setting: its scale, and the values of keys

const palette = () => PALETTES[scheme.matches ? "dark" : "light"];

/** Return the colour of that number, as of bars and of the curves of a run alone. */
export const lineColour = (index) => palette()[index % NUM_COLOURS];

/** Return the style of the number that a run or group has. */
function styleAt(slot) {
  const turn = Math.floor(slot / NUM_COLOURS);
  return { color: lineColour(slot), dash: turn % DASHES.length, mark: Math.floor(turn / DASHES.length) % MARKS.length };
}

const plainStyle = (color) => ({ color, dash: 0, mark: 0 });
const unknownStyle = () => plainStyle(UNKNOWN[scheme.matches ? "dark" : "light"]);

/** Return the style of a run or group, {color, dash, mark}: places in `DASHES` and `MARKS`. */
export function styleOf(key) {
  if (shades) return shadeOf(shades.values.get(key));
  if (chosen.has(key)) return chosen.get(key);
  return present.has(key) ? styleAt(slots.get(key)) : unknownStyle();
}

/** Return curves with their colours and dashes; of several metrics each has its own, and runs of one colour have marks. */
export function styled(curves) {
  const areSeveral = curves.some(({ part }) => part);
  return curves.map((curve) => {
    const { color, dash, mark } = styleOf(curve.key);
    return { ...curve, color, dash: areSeveral ? PART_DASHES[curve.part % PART_DASHES.length] : DASHES[dash], mark: MARKS[areSeveral ? dash : mark] };
  });
}

/** Return the style of a value of the setting that colours the runs. */
export function shadeOf(value) {
  if (value === undefined || value === null || !shades) return unknownStyle();
  if (!shades.scale.isNumeric) return styleAt(Math.max(0, shades.scale.names.indexOf(String(value))));
  const share = Math.min(1, Math.max(0, shades.scale.place(value)));
  // Its brightest colours are lost on white, and its darkest on black.
  return plainStyle(viridis(scheme.matches ? 0.22 + 0.78 * share : 0.88 * share));
}

/** Return the scale of the setting that colours the runs; null if none does. */
export const shadeScale = () => shades?.scale ?? null;

/** Call a function when runs have other colours. */
export function onColours(listener) {
  listeners.push(listener);
}

/**
 * Give the runs or groups of a view their styles, those that are shown first.
 *
 * given: the colours that people chose, by key. view: says which runs there are; a run of another view may change its
 * style for one that is easier to see.
 */
export function assign(keys, given = new Map(), view = kept.view) {
  const most = NUM_COLOURS * Math.ceil(keys.length / NUM_COLOURS);
  const taken = new Set();
  present = new Set(keys);
  chosen = new Map();
  for (const [key, color] of given) {
    const dash = DASHES.findIndex((_, at) => ![...chosen.values()].some((one) => one.dash === at && isNear(one.color, color)));
    chosen.set(key, { ...plainStyle(color), dash: Math.max(0, dash) });
  }
  const isFree = (slot) => !taken.has(slot) && ![...chosen.values()].some(({ color, dash, mark }) => dash === styleAt(slot).dash && mark === styleAt(slot).mark && Object.values(PALETTES).some((one) => isNear(one[slot % NUM_COLOURS], color)));
  const waiting = keys.filter((key) => {
    if (chosen.has(key)) return false;
    const slot = slots.get(key);
    if (slot === undefined || !isFree(slot) || (view !== kept.view && slot >= most)) return true;
    taken.add(slot);
    return false;
  });
  let free = 0;
  const last = 2 * keys.length + NUM_COLOURS * DASHES.length * MARKS.length; // of too many there are equal ones
  for (const key of waiting) {
    while (free < last && !isFree(free)) free += 1;
    taken.add(free);
    slots.delete(key); // the last ones are remembered longest
    slots.set(key, free);
  }
  if (!document.getElementById("runs")) return; // the list of runs decides
  kept.view = view;
  kept.slots = [...slots].slice(-MOST_KEPT);
  sessionStorage.setItem(KEPT, JSON.stringify(kept));
}

// ---------------------------------------------------------------------- what the page shows

const swatches = () => [...document.querySelectorAll("[data-swatch]")];

/** Read from the page which runs there are, and give their swatches their colours. */
export function showColours() {
  const known = new Map(swatches().map((one) => [one.dataset.swatch, one]));
  const keys = [...known.keys()];
  const given = new Map([...known].filter(([, one]) => one.dataset.chosen).map(([key, one]) => [key, one.dataset.chosen]));
  const query = new URLSearchParams(location.search);
  const view = JSON.stringify([location.pathname, ...["run", "where", "words", "group", "page"].map((name) => query.getAll(name))]);
  assign([...keys.filter(isShown), ...keys.filter((key) => !isShown(key))], given, document.getElementById("runs") ? view : kept.view);
  const name = query.get("colour");
  const values = name && new Map([...known].map(([key, { dataset }]) => [key, dataset.value ? JSON.parse(dataset.value) : null]));
  shades = values ? { scale: new Scale(name, [...values.values()]), values } : null;
  if (shades?.scale.low > 0 && shades.scale.high >= 10 * shades.scale.low) shades.scale.isLog = true;
  repaint();
  const styles = JSON.stringify(keys.map((key) => [key, styleOf(key)]));
  if (styles !== shown) for (const listener of listeners) listener();
  shown = styles;
}

function repaint() {
  for (const one of swatches()) {
    const { color, dash, mark } = styleOf(one.dataset.swatch);
    one.style.color = color;
    one.toggleAttribute("data-dashed", dash > 0 || mark > 0);
    one.querySelector("path")?.setAttribute("stroke-dasharray", DASHES[dash]);
    one.querySelector(".mark")?.setAttribute("d", mark ? `M6 6${MARKS[mark]}` : "");
  }
}

scheme.addEventListener("change", () => {
  repaint();
  for (const listener of listeners) listener();
});

// ---------------------------------------------------------------------- choosing by hand

/** Open the dialog that chooses the colour of a run. */
export function chooseColour(key) {
  const dialog = document.getElementById("colour-dialog");
  const swatch = swatches().find((one) => one.dataset.swatch === key);
  if (!dialog || !swatch || !swatch.closest("[data-run]")) return; // groups are not in the store
  const input = dialog.querySelector("input");
  const form = dialog.querySelector("form");
  dialog.querySelector("h2").textContent = `Colour of run ${key}`;
  input.value = styleOf(key).color;
  dialog.querySelector(".palette").replaceChildren(...palette().map((color) => {
    const button = Object.assign(document.createElement("button"), { type: "button", ariaLabel: color });
    button.style.background = color;
    button.addEventListener("click", () => {
      input.value = color;
    });
    return button;
  }));
  const problem = dialog.querySelector(".problem");
  showError(problem, null);
  form.onsubmit = async (event) => {
    const { submitter } = event;
    if (submitter.value === "cancel") return;
    event.preventDefault();
    const colour = submitter.value === "none" ? "" : input.value;
    try {
      announce((await post(`${root}/list/colour`, [["run", key], ["colour", colour]])).done);
    } catch (error) {
      showError(problem, error);
      return;
    }
    dialog.close();
    for (const one of swatches()) if (one.dataset.swatch === key) one.dataset.chosen = colour;
    showColours();
  };
  dialog.showModal();
}

document.addEventListener("contextmenu", (event) => {
  const key = event.target.closest("[data-key-of]")?.dataset.keyOf;
  if (key === undefined || !document.getElementById("colour-dialog")) return;
  event.preventDefault();
  chooseColour(key);
});

// ---------------------------------------------------------------------- how far colours are apart

const distances = new Map();

function isNear(one, other) {
  const pair = one + other;
  if (!distances.has(pair)) distances.set(pair, distance(one, other));
  return distances.get(pair) < LEAST_DISTANCE;
}

function labOf(color) {
  const [red, green, blue] = [1, 3, 5].map((at) => Number.parseInt(color.slice(at, at + 2), 16) / 255).map((one) => (one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4));
  const [x, y, z] = [
    (0.4124564 * red + 0.3575761 * green + 0.1804375 * blue) / 0.95047,
    0.2126729 * red + 0.7151522 * green + 0.072175 * blue,
    (0.0193339 * red + 0.119192 * green + 0.9503041 * blue) / 1.08883,
  ].map((one) => (one > 216 / 24389 ? Math.cbrt(one) : (24389 / 27 * one + 16) / 116));
  return [116 * y - 16, 500 * (x - y), 200 * (y - z)];
}

/** Return the CIEDE2000 of two colours; Sharma et al. 2005, https://doi.org/10.1002/col.20070 */
export function distance(one, other) {
  const [[light1, a1, b1], [light2, a2, b2]] = [labOf(one), labOf(other)];
  const seventh = (chroma) => Math.sqrt(chroma ** 7 / (chroma ** 7 + 25 ** 7));
  const stretch = 1.5 - 0.5 * seventh((Math.hypot(a1, b1) + Math.hypot(a2, b2)) / 2);
  const [chroma1, chroma2] = [Math.hypot(a1 * stretch, b1), Math.hypot(a2 * stretch, b2)];
  const degrees = (a, b) => ((Math.atan2(b, a * stretch) * 180) / Math.PI + 360) % 360;
  const [hue1, hue2] = [degrees(a1, b1), degrees(a2, b2)];
  const cos = (angle) => Math.cos((angle * Math.PI) / 180);
  const isGrey = chroma1 * chroma2 === 0;
  const turn = isGrey ? 0 : ((hue2 - hue1 + 540) % 360) - 180;
  const hue = isGrey ? hue1 + hue2 : (hue1 + turn / 2 + 360) % 360;
  const [light, chroma] = [(light1 + light2) / 2, (chroma1 + chroma2) / 2];
  const weight = 1 - 0.17 * cos(hue - 30) + 0.24 * cos(2 * hue) + 0.32 * cos(3 * hue + 6) - 0.2 * cos(4 * hue - 63);
  const ofLight = (light2 - light1) / (1 + (0.015 * (light - 50) ** 2) / Math.sqrt(20 + (light - 50) ** 2));
  const ofChroma = (chroma2 - chroma1) / (1 + 0.045 * chroma);
  const ofHue = (2 * Math.sqrt(chroma1 * chroma2) * Math.sin((turn * Math.PI) / 360)) / (1 + 0.015 * chroma * weight);
  const rotated = -2 * seventh(chroma) * Math.sin((Math.PI / 3) * Math.exp(-(((hue - 275) / 25) ** 2)));
  return Math.sqrt(ofLight ** 2 + ofChroma ** 2 + ofHue ** 2 + rotated * ofChroma * ofHue);
}

showColours();
