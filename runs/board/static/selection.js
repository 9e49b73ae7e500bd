// The selection of runs, and what is done with it.
import { announce, get, onKey, post, root, showError } from "./board.js";
import { go, onView } from "./navigation.js";
import { download } from "./plots.js";
import { keepSelected, onSelected, selected } from "./selected.js";

const $ = (id) => document.getElementById(id);
const boxes = () => [...document.querySelectorAll("#runs tbody input[type=checkbox]")];
const PART = 200;
// Runs that a dialog lists by name.
const LISTED = 200;
// Runs of a block of a report.
const MOST_IN_REPORT = 500;
let last = null; // the run whose box was clicked

/** Show which rows are selected, and what can be done with them. */
export function showSelection() {
  for (const box of boxes()) {
    box.checked = selected.has(box.value);
    box.closest("tr").ariaSelected = box.checked ? "true" : null;
  }
  const all = boxes();
  if (!$("all")) return;
  $("all").checked = all.length > 0 && all.every((box) => box.checked);
  $("all").indeterminate = !$("all").checked && selected.size > 0;
  $("actions").hidden = selected.size === 0;
  $("select-all").hidden = !$("all").checked || !document.querySelector("#list [rel=next], #list [rel=prev]");
  $("select-all").textContent = `Select all ${$("total").textContent} that match`;
  const text = countOf(selected.size);
  $("num-selected").textContent = `${text} selected`;
  const num = unseen().length;
  $("unseen").hidden = num === 0;
  $("num-unseen").textContent = `${num.toLocaleString("en")} of them ${num === 1 ? "is" : "are"} not shown`;
  for (const place of document.querySelectorAll("dialog .count")) place.textContent = text;
}

const countOf = (num) => `${num.toLocaleString("en")} ${num === 1 ? "run" : "runs"}`;

/** Return the selected runs without a row on the page. */
function unseen() {
  const shown = new Set(boxes().map((box) => box.value));
  return [...selected].filter((id) => !shown.has(id));
}

/** Open a dialog that says which runs it is about, those without a row on the page first. */
async function open(dialog) {
  const place = dialog.querySelector("[data-chosen]");
  const away = new Set(unseen());
  const all = [...away, ...[...selected].filter((id) => !away.has(id))];
  place.replaceChildren();
  showError(dialog.querySelector(".problem"), null);
  dialog.showModal();
  const asked = all.slice(0, LISTED);
  const { runs } = await (await get(`${root}/list/names?${new URLSearchParams(asked.map((id) => ["run", id]))}`)).json();
  const known = new Set(runs.map(({ id }) => id));
  const gone = asked.filter((id) => !known.has(id));
  for (const id of gone) selected.delete(id);
  const parts = [[`Not shown on the page: ${away.size.toLocaleString("en")}`, runs.filter(({ id }) => away.has(id))], ["Shown", runs.filter(({ id }) => !away.has(id))]];
  for (const [title, some] of away.size ? parts : [["", runs]]) {
    if (title && some.length) place.append(Object.assign(document.createElement("h3"), { textContent: title }));
    const list = document.createElement("ul");
    list.append(...some.map(({ id, name, status }) => Object.assign(document.createElement("li"), { textContent: `${id}  ${name}, ${status}` })));
    if (some.length) place.append(list);
  }
  const notes = [all.length > LISTED ? `and ${countOf(all.length - LISTED)} more` : "", gone.length ? `${countOf(gone.length)} no longer in the store left the selection` : ""];
  for (const text of notes.filter(Boolean)) place.append(Object.assign(document.createElement("p"), { className: "dim", textContent: text }));
  if (gone.length) keepSelected();
}

function select(box, on) {
  if (on) selected.add(box.value);
  else selected.delete(box.value);
}

/** Return the row of a run or group that has the focus. */
export function focusedRow() {
  return document.activeElement.closest("#runs tbody tr");
}

function move(step) {
  const rows = [...document.querySelectorAll("#runs tbody tr")];
  const row = rows[Math.min(Math.max(rows.indexOf(focusedRow()) + step, 0), rows.length - 1)];
  (row?.querySelector("th a") ?? row?.querySelector("button.eye"))?.focus();
}

/** Return the selected runs in parts, which one request can hold. */
function parts() {
  const ids = [...selected];
  return Array.from({ length: Math.ceil(ids.length / PART) }, (_, at) => ids.slice(at * PART, (at + 1) * PART).map((id) => ["run", id]));
}

async function change(dialog, path, pairs) {
  const all = parts();
  try {
    let done = "";
    for (const [number, runs] of all.entries()) {
      ({ done } = await post(path, [...runs, ...pairs]));
      if (all.length > 1) done = `${number + 1} of ${all.length} parts done`;
      announce(done);
    }
    dialog.close();
    return true;
  } catch (error) {
    showError(dialog.querySelector(".problem"), error);
    return false;
  }
}

const chosen = (path, most) => `${path}?${new URLSearchParams([...selected].slice(0, most).map((id) => ["run", id]))}`;
async function selectAll() {
  const { ids, most } = await (await get(`${root}/list/ids${location.search}`)).json();
  for (const id of ids) selected.add(id);
  if (ids.length === most) announce(`the first ${most} are selected`);
  keepSelected();
}

async function exportTable() {
  const columns = [...document.querySelectorAll("#runs thead th a")].map((link) => ["column", link.title]);
  const texts = [];
  for (const [number, runs] of parts().entries()) {
    const query = new URLSearchParams([...runs, ...columns, ...(number ? [["part", number]] : [])]);
    texts.push(await (await get(`${root}/list/table?${query}`)).text());
  }
  download("runs.csv", new Blob(texts, { type: "text/csv" }));
}

async function report() {
  const query = new URLSearchParams([...[...selected].map((id) => ["run", id]), ...new URLSearchParams(location.search)].filter(([name, value]) => name !== "run" || selected.has(value)));
  download("report.html", await (await get(`${root}/list/report?${query}`)).blob());
}

const ACTIONS = {
  "select-all": selectAll,
  "drop-unseen": () => unseen().forEach((id) => selected.delete(id)),
  export: () => open($("export-dialog")),
  unselect: () => selected.clear(),
  only: () => go(chosen(`${root}/runs`)),
  compare: () => location.assign(chosen(`${root}/compare`)),
  tag: () => open($("tag-dialog")),
  discard: async () => {
    $("discard-now").disabled = true;
    try {
      await open($("discard-dialog"));
    } catch (error) {
      $("discard-dialog").close(); // nobody deletes runs that it does not name
      throw error;
    }
    $("discard-now").disabled = selected.size === 0;
  },
};

function showProblem(error) {
  const place = document.querySelector("dialog[open] .problem");
  if (place) showError(place, error);
  else announce(error.message);
}

/** Save what a function makes of the selection, and close the dialog. */
async function save(make) {
  const dialog = $("export-dialog");
  try {
    await make();
    dialog.close();
  } catch (error) {
    showError(dialog.querySelector(".problem"), error);
  }
}

/** Make the page select and change runs; `look` shows what has changed. */
export function startSelection(look) {
  document.addEventListener("click", (event) => {
    const action = event.target.closest("#actions button")?.id;
    if (action) Promise.resolve(ACTIONS[action]()).catch(showProblem);
    const box = event.target.closest("#runs tbody input[type=checkbox]");
    if (box) {
      const all = boxes();
      const [from, to] = [all.findIndex(({ value }) => value === last), all.indexOf(box)].sort((a, b) => a - b);
      for (const one of event.shiftKey && from >= 0 ? all.slice(from, to + 1) : [box]) select(one, box.checked);
      last = box.value;
    }
    if (action || box) keepSelected();
  });
  document.addEventListener("change", ({ target }) => {
    if (target.id !== "all") return;
    for (const box of boxes()) select(box, target.checked);
    keepSelected();
  });
  $("export-csv").addEventListener("click", () => save(exportTable));
  $("export-written")?.addEventListener("click", () => location.assign(chosen(`${root}/reports/new`, MOST_IN_REPORT)));
  $("export-report").addEventListener("click", () => save(report));
  $("discard-now")?.addEventListener("click", async () => {
    if (!(await change($("discard-dialog"), `${root}/list/discard`, []))) return;
    selected.clear();
    await look();
    keepSelected();
  });
  $("tag-now")?.addEventListener("click", async () => {
    const pairs = [["add", $("tags-add").value], ["remove", $("tags-remove").value]];
    if (await change($("tag-dialog"), `${root}/list/tag`, pairs)) await look();
  });
  onView(showSelection);
  onSelected(showSelection);
  showSelection();
}

onKey("j", "Next run", () => move(1));
onKey("k", "Previous run", () => move(-1));
onKey("x", "Select the run", () => {
  const box = focusedRow()?.querySelector("input[type=checkbox]");
  if (!box) return;
  select(box, !selected.has(box.value));
  keepSelected();
});
