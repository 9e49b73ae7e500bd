// The dialog that adds or changes a panel: curves of metrics, or a chart of runs, `scatter(x, y, colour)`.

const $ = (id) => document.getElementById(id);
const dialog = $("panel-dialog");
const kind = $("panel-kind");
const CHART = /^\s*(scatter|parallel|importances|histogram)\(([^]*)\)\s*$/;
let changed = null; // the panel that another one takes the place of
let listener = () => {};

/** Call a function with the panel that is chosen, and the one that it replaces, or null. */
export function onPanel(action) {
  listener = action;
}

const inputs = () => [...dialog.querySelectorAll(".fields input")].filter((one) => one.closest("[data-kinds]").dataset.kinds.split(" ").includes(kind.value));

function showKind() {
  for (const part of dialog.querySelectorAll("[data-kinds]")) part.hidden = !part.dataset.kinds.split(" ").includes(kind.value);
  $("panel-text").required = !kind.value;
  for (const input of dialog.querySelectorAll(".fields input")) input.required = inputs().includes(input) && !input.closest("[data-optional]");
}

/** Fill the fields from those of a chart; the last input takes all that are left. */
function fill(fields) {
  const texts = fields.split(/,(?=(?:[^`]*`[^`]*`)*[^`]*$)/).map((one) => one.trim());
  inputs().forEach((input, at, all) => {
    input.value = (at === all.length - 1 ? texts.slice(at) : texts.slice(at, at + 1)).join(", ");
  });
}

/** Open the dialog for a new panel, or to change one. */
export function openPanelDialog(panel = null) {
  changed = panel;
  const [, ofChart, fields] = CHART.exec(panel ?? "") ?? [null, "", ""];
  kind.value = ofChart;
  showKind();
  fill(fields);
  const names = [...document.querySelectorAll("figure.panel:not([data-chart])")].map((figure) => figure.dataset.panel);
  $("metrics").replaceChildren(...names.map((name) => new Option(name)));
  $("panel-text").value = ofChart ? "" : panel ?? "";
  dialog.showModal();
  if (!ofChart) $("panel-text").focus();
}

kind.addEventListener("change", showKind);
$("add-panel").addEventListener("click", () => openPanelDialog());

dialog.querySelector("form").addEventListener("submit", () => {
  const given = inputs().map(({ value }) => value.trim()).filter(Boolean);
  const text = kind.value ? `${kind.value}(${given.join(", ")})` : $("panel-text").value.trim();
  if (text) listener(text, changed);
});
