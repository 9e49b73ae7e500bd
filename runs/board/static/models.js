// Models and artifacts: tables sort, and aliases move on the page of an artifact.
import { announce, post, root, showError } from "./board.js";
import { makeSortable } from "./tables.js";

const sortAll = (node) => node.querySelectorAll("table[data-sortable]").forEach(makeSortable);
sortAll(document);
document.addEventListener("renewed", ({ target }) => sortAll(target));

const form = document.getElementById("alias");
const problem = document.getElementById("alias-problem");
// The version that an alias names as this page shows it; empty for a new one. The server refuses the move if it has moved since.
const shown = (alias) => document.querySelector(`[data-alias="${CSS.escape(alias)}"]`)?.dataset.version ?? "";

async function move(alias, version) {
  try {
    const { done } = await post(`${root}/artifact-alias`, { name: form.dataset.artifact, alias, version, was: shown(alias) });
    sessionStorage.setItem("alias-moved", done);
    location.reload();
  } catch (error) {
    showError(problem, error);
  }
}

form?.addEventListener("submit", (event) => {
  event.preventDefault();
  move(form.elements.alias.value.trim(), form.elements.version.value);
});
document.addEventListener("click", ({ target }) => {
  const { removeAlias } = target.dataset ?? {};
  if (removeAlias) move(removeAlias, "");
});

const moved = sessionStorage.getItem("alias-moved");
if (moved) {
  sessionStorage.removeItem("alias-moved");
  announce(moved);
}
