// Brushes: the parts of the axes that choose trials. They are dragged in the plot, typed into a form, and kept in the
// address: `brush.lr=0.001..0.1` between two numbers, either of which may be left away, `brush.model=mlp` for each name.

const PREFIX = "brush.";
const MOST_NAMES = 40;
const listeners = [];
const taken = new Set(); // axes whose brush in the address is taken over
let asked = new URLSearchParams(location.search);

/** The brushes, {low, high} or {names}, by the name of their axis: those of all plots that have it. */
export const brushes = new Map();

/** Call a function when brushes change, with the control that changed them. */
export function onBrushes(listener) {
  listeners.push(listener);
}

/** Say that brushes have changed. */
export function brushed(control) {
  const url = new URL(location.href);
  writeBrushes(url.searchParams);
  history.replaceState(history.state, "", url);
  for (const listener of listeners) listener(control);
}

/** Take over the brushes that the address has now. */
export function readBrushes() {
  brushes.clear();
  taken.clear();
  asked = new URLSearchParams(location.search);
}

/** Take over the brushes that the address has for axes, which must have values; return how many of the axes have one. */
export function takeBrushes(scales) {
  const fresh = scales.filter(({ name }) => !taken.has(name));
  for (const [name, brush] of brushesOf(asked, fresh)) brushes.set(name, brush);
  for (const { name } of fresh) taken.add(name);
  return scales.filter(({ name }) => brushes.has(name)).length;
}

/** Copy the brushes of one query of an address into another. */
export function copyBrushes(from, to) {
  for (const key of [...to.keys()]) if (key.startsWith(PREFIX)) to.delete(key);
  for (const [key, value] of from) if (key.startsWith(PREFIX)) to.append(key, value);
}

/** Tell whether a brush, {low, high} or {names}, covers a value. */
export function covers(brush, value) {
  if (value === null || value === undefined) return false;
  if (brush.names) return brush.names.has(String(value));
  return typeof value === "number" && (brush.low === null || value >= brush.low) && (brush.high === null || value <= brush.high);
}

/** Return the number of a text; null where there is none. */
function numberOf(text) {
  const found = text.trim() === "" ? NaN : Number(text);
  return Number.isFinite(found) ? found : null;
}

/** Return the brushes of the axes that an address says, by the name of the axis. */
function brushesOf(query, scales) {
  const found = new Map();
  for (const { name, isNumeric } of scales) {
    const texts = query.getAll(PREFIX + name);
    if (!texts.length) continue;
    if (!isNumeric) {
      found.set(name, { names: new Set(texts) });
      continue;
    }
    const [low, high] = texts[0].split("..").map(numberOf);
    if (low !== null || (high ?? null) !== null) found.set(name, { low, high: high ?? null });
  }
  return found;
}

/** Put brushes into the query of an address, in the place of those that are there. */
function writeBrushes(query) {
  for (const key of [...query.keys()]) if (key.startsWith(PREFIX)) query.delete(key);
  for (const [name, { names, low, high }] of brushes) {
    for (const one of names ?? [`${low ?? ""}..${high ?? ""}`]) query.append(PREFIX + name, one);
  }
}

function labelled(text, control) {
  const label = document.createElement("label");
  label.append(control, text);
  return label;
}

function control(attributes) {
  return Object.assign(document.createElement("input"), { autocomplete: "off", ...attributes });
}

/**
 * Fill a form with a group of controls for each axis, and return a function that shows the brushes in it.
 *
 * noun: what the brushes choose, such as "trial".
 */
export function makeForm(form, scales, noun) {
  const groups = scales.map((scale) => {
    const group = document.createElement("fieldset");
    const legend = document.createElement("legend");
    legend.textContent = scale.name;
    group.append(legend);
    return { group, ...(scale.isNumeric ? ends(scale, group) : names(scale, group)) };
  });
  const clear = Object.assign(document.createElement("button"), { type: "button", textContent: `Choose all ${noun}s` });
  clear.addEventListener("click", () => {
    brushes.clear();
    brushed();
  });
  form.replaceChildren(...groups.map(({ group }) => group), clear);
  form.oninput = (event) => {
    groups.find(({ group }) => group.contains(event.target))?.take();
    brushed(event.target);
  };
  form.onsubmit = (event) => event.preventDefault();
  return (except) => groups.forEach(({ show }) => show(except));
}

/** Add the two ends of an axis of numbers. */
function ends(scale, group) {
  const least = control({ type: "number", step: "any", placeholder: String(Number(scale.low?.toPrecision(4))) });
  const most = control({ type: "number", step: "any", placeholder: String(Number(scale.high?.toPrecision(4))) });
  least.setAttribute("aria-label", `${scale.name}, at least`);
  most.setAttribute("aria-label", `${scale.name}, at most`);
  group.append(least, " to ", most);
  return {
    take() {
      const [low, high] = [numberOf(least.value), numberOf(most.value)];
      if (low === null && high === null) brushes.delete(scale.name);
      else brushes.set(scale.name, { low, high });
    },
    show(except) {
      const brush = brushes.get(scale.name);
      if (least !== except) least.value = brush?.low ?? "";
      if (most !== except) most.value = brush?.high ?? "";
    },
  };
}

/** Add a box for each name of an axis; all are checked where there is no brush. */
function names(scale, group) {
  const boxes = scale.names.slice(0, MOST_NAMES).map((value) => control({ type: "checkbox", value }));
  group.append(...boxes.map((box) => labelled(` ${box.value.slice(0, 60)}`, box)));
  return {
    take() {
      const without = new Set(boxes.filter((box) => !box.checked).map((box) => box.value));
      const rest = scale.names.filter((name) => !without.has(name));
      // Of none there would be nothing to see, nor an address.
      if (!without.size || !rest.length) brushes.delete(scale.name);
      else brushes.set(scale.name, { names: new Set(rest) });
    },
    show() {
      const brush = brushes.get(scale.name);
      for (const box of boxes) box.checked = !brush || brush.names.has(box.value);
    },
  };
}
