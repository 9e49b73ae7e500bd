// The page of all runs: selecting, watching, columns, tags, deletion.
import { announce, localise, onKey, post, repeat, watch } from "./board.js";

const $ = (id) => document.getElementById(id);
const table = $("runs");
const group = $("group");

// The typed text is now part of the view, whose address others can open.
if (new URLSearchParams(location.search).has("add")) history.replaceState(null, "", $("finding").dataset.address);

// ---------------------------------------------------------------------- fields

let fields;

async function loadFields() {
  fields ??= fetch("/list/fields").then((answer) => answer.json()).then((found) => found.fields);
  return fields;
}

group.addEventListener("focus", async () => {
  if ($("fields").children.length) return;
  $("fields").append(...(await loadFields()).slice(0, 2000).map((name) => new Option(name)));
});

function addChoice(list, name, checked) {
  const label = document.createElement("label");
  const box = document.createElement("input");
  box.type = "checkbox";
  box.value = name;
  box.checked = checked;
  label.append(box, ` ${name}`);
  list.append(label);
}

$("choose-columns").addEventListener("click", async () => {
  const list = $("columns-list");
  list.replaceChildren();
  const chosen = [...document.querySelectorAll("thead th[scope=col] a")].map((link) => link.title).filter((n) => n !== "id");
  for (const name of chosen) addChoice(list, name, true);
  $("columns-dialog").showModal();
  const others = (await loadFields()).filter((name) => !chosen.includes(name) && name !== "id");
  // Of thousands of fields, show those that match the search.
  const show = () => {
    const words = $("columns-search").value.toLowerCase().split(/\s+/);
    const fits = (name) => words.every((word) => name.toLowerCase().includes(word));
    for (const label of [...list.children]) if (!label.firstChild.checked) label.remove();
    const there = new Set([...list.querySelectorAll("input")].map((box) => box.value));
    for (const name of others.filter((one) => fits(one) && !there.has(one)).slice(0, 300)) addChoice(list, name, false);
  };
  $("columns-search").oninput = show;
  show();
});

$("columns-apply").addEventListener("click", () => {
  const url = new URL(location.href);
  url.searchParams.delete("column");
  for (const box of $("columns-list").querySelectorAll("input:checked")) url.searchParams.append("column", box.value);
  location.assign(url);
});

// ---------------------------------------------------------------------- selecting

const boxes = () => [...table.querySelectorAll("tbody input[type=checkbox]")];
const selected = new Set();
let last = null;

/** Load the script of the plots early: who selects runs will probably compare them. */
function fetchPlots() {
  fetchPlots.asked ??= fetch(document.documentElement.dataset.plotly, { priority: "low" }).then((answer) => answer.blob(), () => {});
}

function showSelection() {
  if (selected.size) fetchPlots();
  for (const box of boxes()) {
    box.checked = selected.has(box.value);
    box.closest("tr").ariaSelected = box.checked ? "true" : null;
  }
  const all = boxes();
  $("all").checked = all.length > 0 && all.every((box) => box.checked);
  $("all").indeterminate = !$("all").checked && selected.size > 0;
  $("actions").hidden = selected.size === 0;
  const text = `${selected.size} ${selected.size === 1 ? "run" : "runs"}`;
  $("num-selected").textContent = `${text} selected`;
  for (const place of document.querySelectorAll("dialog .count")) place.textContent = text;
}

function select(box, on) {
  if (on) selected.add(box.value);
  else selected.delete(box.value);
}

function move(step) {
  const links = [...table.querySelectorAll("tbody th a")];
  const here = links.indexOf(document.activeElement.closest("tr")?.querySelector("th a"));
  links[Math.min(Math.max(here + step, 0), links.length - 1)]?.focus();
}

async function change(dialog, path, pairs) {
  const runs = [...selected].map((id) => ["run", id]);
  try {
    announce((await post(path, [...runs, ...pairs])).done);
    dialog.close();
    return true;
  } catch (error) {
    dialog.querySelector(".problem").textContent = error.message;
    return false;
  }
}

if (table) {
  table.addEventListener("click", (event) => {
    const box = event.target.closest("tbody input[type=checkbox]");
    if (!box) return;
    const all = boxes();
    const [from, to] = [all.indexOf(last), all.indexOf(box)].sort((a, b) => a - b);
    for (const one of event.shiftKey && from >= 0 ? all.slice(from, to + 1) : [box]) select(one, box.checked);
    last = box;
    showSelection();
  });
  $("all").addEventListener("change", () => {
    for (const box of boxes()) select(box, $("all").checked);
    showSelection();
  });
  $("unselect").addEventListener("click", () => {
    selected.clear();
    showSelection();
  });
  $("compare")?.addEventListener("click", () => {
    location.assign(`/compare?${new URLSearchParams([...selected].map((id) => ["run", id]))}`);
  });
  onKey("j", "Next run", () => move(1));
  onKey("k", "Previous run", () => move(-1));
  onKey("x", "Select the run", () => {
    const box = document.activeElement.closest("tr")?.querySelector("input[type=checkbox]");
    if (!box) return;
    select(box, !selected.has(box.value));
    showSelection();
  });
  $("discard")?.addEventListener("click", () => $("discard-dialog").showModal());
  $("discard-now")?.addEventListener("click", async () => {
    if (!(await change($("discard-dialog"), "/list/discard", []))) return;
    selected.clear();
    await look();
    showSelection();
  });
  $("tag")?.addEventListener("click", () => $("tag-dialog").showModal());
  $("tag-now")?.addEventListener("click", async () => {
    const pairs = [["add", $("tags-add").value], ["remove", $("tags-remove").value]];
    if (await change($("tag-dialog"), "/list/tag", pairs)) await look();
  });
  repeat(look);
}

// ---------------------------------------------------------------------- watching

const version = {};

async function look() {
  const { seconds } = await watch(table.dataset.watch, version, (html, answer) => {
    const focused = document.activeElement.closest("tbody tr")?.dataset.run;
    const isBox = document.activeElement.matches("input");
    const body = table.tBodies[0];
    body.innerHTML = html;
    localise(body);
    $("total").textContent = Number(answer.headers.get("x-total")).toLocaleString("en");
    showSelection();
    if (focused === undefined) return;
    const row = [...body.rows].find((one) => one.dataset.run === focused);
    row?.querySelector(isBox ? "input" : "th a").focus();
  });
  return seconds;
}
