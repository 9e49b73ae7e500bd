// The workspace: runs with eyes beside their curves. The page follows the store.
import { heldFocus, keepInAddress, localise, onKey, repeat, watch } from "./board.js";
import { isShown, onEyes, showAll, showOnly, toggle } from "./eyes.js";
import { chooseColour, showColours } from "./colours.js";
import { go, onView } from "./navigation.js";
import { followPanels, onCurve, renewPanels, standOut } from "./panels.js";
import { focusedRow, showSelection, startSelection } from "./selection.js";
import "./arrange.js";
import "./columns.js";
import "./saved_views.js";
import "./tables.js";

const $ = (id) => document.getElementById(id);
const table = () => $("runs");
const eyes = () => [...table().tBodies[0].querySelectorAll("button.eye")];
const keyOf = (row) => row?.querySelector("button.eye")?.dataset.keyOf ?? null;

// The typed text is now part of the view, whose address others can open.
if (new URLSearchParams(location.search).has("add")) history.replaceState(null, "", document.querySelector("#finding form").dataset.address);

// ---------------------------------------------------------------------- eyes

function showEyes() {
  for (const button of eyes()) {
    button.setAttribute("aria-pressed", String(isShown(button.dataset.keyOf)));
    button.closest("tr").classList.toggle("unseen", !isShown(button.dataset.keyOf));
  }
  const num = eyes().filter((button) => isShown(button.dataset.keyOf)).length;
  $("eyes").setAttribute("aria-pressed", num === eyes().length ? "true" : num ? "mixed" : "false");
}

onEyes(showEyes);

document.addEventListener("click", (event) => {
  const button = event.target.closest("button.eye");
  if (!button) return;
  if (button.id !== "eyes") toggle(button.dataset.keyOf);
  else if (eyes().every((one) => isShown(one.dataset.keyOf))) showOnly();
  else showAll();
});

onKey("v", "Show or hide the curves of the run", () => keyOf(focusedRow()) !== null && toggle(keyOf(focusedRow())));
onKey("Shift+V", "Show the curves of this run only, or of all again", () => {
  const key = keyOf(focusedRow());
  if (key === null) return;
  if (eyes().every((one) => isShown(one.dataset.keyOf) === (one.dataset.keyOf === key))) showAll();
  else showOnly(key);
});

if ($("colour-dialog")) onKey("p", "Choose the colour of the run", () => keyOf(focusedRow()) !== null && chooseColour(keyOf(focusedRow())));

// A row and its curves point at each other.
let pointed = null;
function point(key) {
  if (key !== pointed) standOut(key);
  pointed = key;
}
for (const kind of ["pointerover", "focusin"]) document.addEventListener(kind, ({ target }) => point(keyOf(target.closest?.("#runs tbody tr"))));
onCurve((key) => {
  for (const row of table().tBodies[0].rows) row.classList.toggle("lit", key !== null && keyOf(row) === key);
});

// The store tells the values that colour runs.
document.querySelector("#settings input[name=colour]").addEventListener("change", ({ target }) => {
  keepInAddress("colour", target.value.trim());
  go(location.href, { isBack: true });
});

// ---------------------------------------------------------------------- layout

document.addEventListener("click", (event) => {
  const layout = event.target.closest("[data-layout]:is(button)")?.dataset.layout;
  if (!layout) return;
  $("workspace").dataset.layout = layout;
  keepInAddress("layout", layout === "both" ? "" : layout);
  showLayout();
});

function showLayout() {
  const { layout } = $("workspace").dataset;
  for (const button of document.querySelectorAll("button[data-layout]")) button.setAttribute("aria-pressed", String(button.dataset.layout === layout));
  window.dispatchEvent(new Event("resize")); // the charts take the room
}

// ---------------------------------------------------------------------- following the store

const version = {};
const said = new WeakMap(); // of each row its HTML as the server sent it

/** Renew the rows that have changed; what is focused, selected or pressed in the others stays. */
function renewRows(body, fresh) {
  const refocus = heldFocus(body);
  const index = focusedRow()?.sectionRowIndex;
  const known = new Map([...body.rows].map((row) => [keyOf(row), row]));
  const rows = [...fresh.rows].map((row) => {
    const old = known.get(keyOf(row));
    const html = row.outerHTML;
    if (old && said.get(old) === html) return old;
    said.set(row, html);
    return row;
  });
  for (const row of known.values()) if (!rows.includes(row)) row.remove();
  for (const [at, row] of rows.entries()) if (body.rows[at] !== row) body.insertBefore(row, body.rows[at] ?? null);
  refocus();
  if (index === undefined || body.contains(document.activeElement)) return;
  const next = body.rows[Math.min(index, body.rows.length - 1)]; // its row is gone
  (next?.querySelector("th a") ?? next?.querySelector("button.eye"))?.focus({ preventScroll: true });
}

onView(() => {
  version.tag = "";
  showEyes();
  showLayout();
});

async function look() {
  const asked = table().dataset.watch;
  const { seconds } = await watch(asked, version, (html, answer) => {
    if (asked !== table().dataset.watch) return; // another view came in between
    if (table().matches(":active") || $("panels").matches(":active")) {
      version.tag = ""; // no button or chart is replaced below a finger; ask again
      return;
    }
    const page = new DOMParser().parseFromString(html, "text/html");
    localise(page);
    renewRows(table().tBodies[0], page.querySelector("tbody"));
    if ($("total")) $("total").textContent = Number(answer.headers.get("x-total")).toLocaleString("en");
    showSelection();
    showEyes();
    showColours();
    renewPanels(page.getElementById("panels"));
  });
  return Math.max(seconds, await followPanels());
}

startSelection(look);
showEyes();
repeat(look);
