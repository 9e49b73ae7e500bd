// The selection of runs, and what is done with it.
import { announce, get, onKey, post, root } from "./board.js";
import { go, onView } from "./navigation.js";
import { download } from "./plots.js";
import { keepSelected, onSelected, selected } from "./selected.js";

const $ = (id) => document.getElementById(id);
const boxes = () => [...document.querySelectorAll("#runs tbody input[type=checkbox]")];
const PART = 200;
let last = null;

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
  const text = `${selected.size.toLocaleString("en")} ${selected.size === 1 ? "run" : "runs"}`;
  $("num-selected").textContent = `${text} selected`;
  for (const place of document.querySelectorAll("dialog .count")) place.textContent = text;
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
    dialog.querySelector(".problem").textContent = error.message;
    return false;
  }
}

const chosen = (path) => `${path}?${new URLSearchParams([...selected].map((id) => ["run", id]))}`;
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
  export: exportTable,
  report,
  unselect: () => selected.clear(),
  only: () => go(chosen(`${root}/runs`)),
  compare: () => location.assign(chosen(`${root}/compare`)),
  tag: () => $("tag-dialog").showModal(),
  discard: () => $("discard-dialog").showModal(),
};

/** Make the page select and change runs; `look` shows what has changed. */
export function startSelection(look) {
  document.addEventListener("click", (event) => {
    const action = event.target.closest("#actions button")?.id;
    if (action) Promise.resolve(ACTIONS[action]()).catch((error) => announce(error.message));
    const box = event.target.closest("#runs tbody input[type=checkbox]");
    if (box) {
      const all = boxes();
      const [from, to] = [all.indexOf(last), all.indexOf(box)].sort((a, b) => a - b);
      for (const one of event.shiftKey && from >= 0 ? all.slice(from, to + 1) : [box]) select(one, box.checked);
      last = box;
    }
    if (action || box) keepSelected();
  });
  document.addEventListener("change", ({ target }) => {
    if (target.id !== "all") return;
    for (const box of boxes()) select(box, target.checked);
    keepSelected();
  });
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
