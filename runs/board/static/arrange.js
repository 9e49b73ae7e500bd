// The arrangement of the panels: pinned ones in their order, full width, open sections. The address keeps it.
import { go } from "./navigation.js";
import { onPanel, openPanelDialog } from "./panel_dialog.js";

const inAddress = (name) => new URLSearchParams(location.search).getAll(name);
let dragged = null;

/** Keep a list in the address, and let the server arrange the panels as it says. */
async function keep(name, values) {
  const url = new URL(location.href);
  url.searchParams.delete(name);
  for (const value of values) url.searchParams.append(name, value);
  history.replaceState(history.state, "", url);
  await go(url, { isBack: true });
  window.dispatchEvent(new Event("resize"));
}

const toggled = (values, value) => (values.includes(value) ? values.filter((one) => one !== value) : [...values, value]);

/** Return a list in which an item is at another place. */
function moved(values, value, place) {
  const rest = values.filter((one) => one !== value);
  rest.splice(Math.max(0, place), 0, value);
  return rest;
}

const ACTIONS = {
  change: (panel) => openPanelDialog(panel),
  pin: (panel) => keep("panel", toggled(inAddress("panel"), panel)),
  wide: (panel) => keep("wide", toggled(inAddress("wide"), panel)),
  earlier: (panel) => keep("panel", moved(inAddress("panel"), panel, inAddress("panel").indexOf(panel) - 1)),
  later: (panel) => keep("panel", moved(inAddress("panel"), panel, inAddress("panel").indexOf(panel) + 1)),
};

document.addEventListener("click", async (event) => {
  const what = event.target.closest("[data-arrange]")?.dataset.arrange;
  if (!what) return;
  const { panel } = event.target.closest("figure").dataset;
  await ACTIONS[what](panel);
  if (what === "change") return;
  document.querySelector(`figure[data-panel="${CSS.escape(panel)}"] [data-arrange=${what}]`)?.focus();
});

// A panel of the dialog is added, or takes the place of another one.
onPanel((text, changed) => {
  const order = inAddress("panel");
  return keep("panel", [...new Set(changed ? order.map((one) => (one === changed ? text : one)) : [...order, text])]);
});

for (const [kind, action] of Object.entries({
  dragstart: (figure) => {
    dragged = figure.dataset.panel;
  },
  dragover: (figure, event) => dragged !== null && event.preventDefault(),
  drop: (figure, event) => {
    event.preventDefault();
    const order = inAddress("panel");
    if (dragged !== null) keep("panel", moved(order, dragged, order.indexOf(figure.dataset.panel)));
  },
  dragend: () => {
    dragged = null;
  },
})) {
  document.addEventListener(kind, (event) => {
    const figure = event.target.closest?.(".section[data-section='/'] figure");
    if (figure) action(figure, event);
  });
}
