// Fields of the runs: offered for grouping, and chosen as columns.
import { get, root, showError } from "./board.js";
import { go } from "./navigation.js";

const $ = (id) => document.getElementById(id);
let fields;

async function loadFields() {
  fields ??= (await (await get(`${root}/list/fields`)).json()).fields;
  return fields;
}

document.addEventListener("focusin", async ({ target }) => {
  if (target.getAttribute("list") !== "fields" || $("fields").children.length) return;
  const names = await loadFields().catch(() => []); // they are only offered
  $("fields").append(...names.slice(0, 2000).map((name) => new Option(name)));
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

async function choose() {
  const list = $("columns-list");
  list.replaceChildren();
  const heads = [...document.querySelectorAll("#runs thead th[scope=col]")].map((head) => head.querySelector("a")?.title ?? head.title);
  const chosen = heads.filter((name) => name && name !== "id");
  for (const name of chosen) addChoice(list, name, true);
  const problem = $("columns-dialog").querySelector(".problem");
  showError(problem, null);
  $("columns-dialog").showModal();
  const names = await loadFields().catch((error) => {
    showError(problem, error);
    return [];
  });
  const others = names.filter((name) => !chosen.includes(name) && name !== "id");
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
}

document.addEventListener("click", (event) => {
  if (event.target.closest("#choose-columns")) choose();
});

function apply(names) {
  $("columns-dialog").close();
  const url = new URL(location.href);
  url.searchParams.delete("column");
  for (const name of names) url.searchParams.append("column", name);
  go(url);
}

$("columns-apply").addEventListener("click", () => apply([...$("columns-list").querySelectorAll("input:checked")].map((box) => box.value)));
$("columns-usual").addEventListener("click", () => apply([]));
