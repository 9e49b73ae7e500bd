// The page of a run: its tables, the note, copying commands, output as it comes.
import { announce, get, localise, post, repeat, root, showError } from "./board.js";
import { chooseColour, showColours } from "./colours.js";
import { look, onLook } from "./follow.js";
import { makeSortable } from "./tables.js";

const head = document.querySelector("[data-run]");
const run = head.dataset.run;

// ---------------------------------------------------------------------- tables

document.querySelectorAll("table[data-sortable]").forEach(makeSortable);
document.addEventListener("renewed", ({ target }) => {
  target.querySelectorAll("table[data-sortable]").forEach(makeSortable);
  showEndOfTrace();
  showColours();
});

// ---------------------------------------------------------------------- name, tags and colour

document.getElementById("choose-colour")?.addEventListener("click", () => chooseColour(run));

const name = document.getElementById("display-name");
const newTags = document.getElementById("new-tags");

/** Send a change of the run's head, and show it; returns the answer, null after an error, which is shown. */
async function change(path, ...pairs) {
  const problem = document.getElementById("head-problem");
  problem.textContent = "";
  try {
    const found = await post(path, [["run", run], ...pairs]);
    announce(found.done);
    await look().catch(() => {}); // the page looks again by itself
    return found;
  } catch (error) {
    showError(problem, error);
    if (error.found?.name !== undefined) name.dataset.version = error.found.version; // saving again replaces it
    return null;
  }
}

onLook((page) => {
  const found = page?.getElementById("display-name");
  if (!found || name.value !== name.defaultValue) return;
  name.value = name.defaultValue = found.defaultValue;
  name.dataset.version = found.dataset.version;
});

document.addEventListener("submit", async (event) => {
  if (!event.target.dataset.names) return;
  event.preventDefault();
  if (event.target.dataset.names === "new-tags") {
    if (newTags.value.trim() && (await change(`${root}/list/tag`, ["add", newTags.value]))) {
      newTags.value = "";
      newTags.blur();
    }
    return;
  }
  const found = await change(`${root}/list/rename`, ["name", name.value], ["version", name.dataset.version]);
  if (!found) return;
  name.value = name.defaultValue = found.name;
  name.dataset.version = found.version;
  name.blur(); // keys are shortcuts again
});

document.addEventListener("keydown", ({ key, target }) => {
  if (key !== "Escape" || ![name, newTags].includes(target)) return;
  target.value = target.defaultValue;
  document.getElementById("head-problem").textContent = "";
});

document.addEventListener("click", async ({ target }) => {
  const tag = target.closest("[data-untag]")?.dataset.untag;
  if (tag === undefined) return;
  newTags.focus(); // the button goes
  await change(`${root}/list/tag`, ["untag", tag]);
});

// ---------------------------------------------------------------------- note and commands

const form = document.getElementById("note-form");
const note = document.getElementById("note");
// A note that others wrote is shown where nobody writes.
if (form) {
  onLook((page) => {
    const found = page?.getElementById("note");
    if (!found || note.value !== note.defaultValue || note === document.activeElement) return;
    note.value = note.defaultValue = found.defaultValue;
    note.dataset.version = found.dataset.version;
  });
}
form?.addEventListener("submit", async (event) => {
  event.preventDefault();
  const state = document.getElementById("note-state");
  const theirs = document.getElementById("note-theirs");
  const text = note.value;
  try {
    const found = await post(`${root}/list/note`, [["run", run], ["note", text], ["version", note.dataset.version]]);
    note.defaultValue = text;
    note.dataset.version = found.version;
    theirs.hidden = true;
    state.textContent = found.done;
  } catch (error) {
    showError(state, error);
    if (!error.found?.version) return;
    // Who has seen it may replace it.
    note.dataset.version = error.found.version;
    theirs.textContent = error.found.note;
    theirs.hidden = false;
  }
});

// The last lines say what went wrong.
function showEndOfTrace() {
  const trace = document.querySelector("pre.trace");
  if (trace) trace.scrollTop = trace.scrollHeight;
}
showEndOfTrace();

// ---------------------------------------------------------------------- output

const output = document.getElementById("output");
if (output?.dataset.next) {
  let next = output.dataset.next;
  const lines = document.createElement("span");
  const line = document.createElement("span");
  output.append(lines, line);
  let isFirst = true;
  repeat(async () => {
    const answer = await get(`${root}/output?${new URLSearchParams({ run, from: next })}`);
    const found = await answer.json();
    // What the page itself ends with is the beginning of this line.
    if (isFirst) trimLastLine();
    isFirst = false;
    if (found.lines || found.line) document.getElementById("no-output")?.remove();
    const isAtEnd = window.innerHeight + window.scrollY >= document.body.scrollHeight - 40;
    lines.insertAdjacentHTML("beforeend", found.lines);
    line.innerHTML = found.line;
    next = found.next;
    if (isAtEnd) window.scrollTo(0, document.body.scrollHeight);
    return found.over ? 10 : 1; // it may be resumed
  });

  /** Remove what is behind the last line's end, which is sent again. */
  function trimLastLine() {
    const nodes = [];
    const walker = document.createTreeWalker(output, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) nodes.push(walker.currentNode);
    for (const node of nodes.reverse()) {
      const end = node.data.lastIndexOf("\n");
      node.data = node.data.slice(0, end + 1);
      if (end >= 0) return;
    }
  }
}

localise(document);
