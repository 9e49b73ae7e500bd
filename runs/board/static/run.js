// The page of a run: searching and sorting tables, the note, copying commands, output as it comes.
import { announce, get, localise, post, repeat } from "./board.js";

const head = document.querySelector("[data-run]");
const run = head.dataset.run;

// ---------------------------------------------------------------------- tables

document.addEventListener("input", (event) => {
  if (!event.target.matches(".sieve")) return;
  const words = event.target.value.toLowerCase().split(/\s+/);
  const place = event.target.dataset.sieve
    ? document.getElementById(event.target.dataset.sieve)
    : event.target.parentElement.querySelector("table");
  for (const row of place.querySelectorAll("tbody tr, section.chart")) {
    const text = (row.dataset.metric ?? row.textContent).toLowerCase();
    row.hidden = !words.every((word) => text.includes(word));
  }
});

/** Let a click on the head of a column sort the rows of its table. */
export function makeSortable(table) {
  for (const [index, headCell] of [...table.tHead.rows[0].cells].entries()) {
    const button = document.createElement("button");
    button.className = "plain";
    button.append(...headCell.childNodes);
    headCell.append(button);
    button.addEventListener("click", () => {
      const direction = headCell.ariaSort === "descending" ? 1 : -1;
      for (const cell of table.tHead.rows[0].cells) cell.ariaSort = null;
      headCell.ariaSort = direction < 0 ? "descending" : "ascending";
      const key = (row) => row.cells[index]?.textContent ?? "";
      const compare = (a, b) => {
        const [x, y] = [Number(key(a) || NaN), Number(key(b) || NaN)];
        if (!Number.isNaN(x) && !Number.isNaN(y)) return x - y;
        return Number.isNaN(x) - Number.isNaN(y) || key(a).localeCompare(key(b));
      };
      table.tBodies[0].append(...[...table.tBodies[0].rows].sort((a, b) => direction * compare(a, b)));
    });
  }
}
document.querySelectorAll("table[data-sortable]").forEach(makeSortable);

// ---------------------------------------------------------------------- note and commands

const form = document.getElementById("note-form");
form?.addEventListener("submit", async (event) => {
  event.preventDefault();
  const state = document.getElementById("note-state");
  try {
    state.textContent = (await post("/list/note", [["run", run], ["note", document.getElementById("note").value]])).done;
  } catch (error) {
    state.textContent = error.message;
  }
});

document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  const code = button.parentElement.querySelector("code");
  try {
    await navigator.clipboard.writeText(code.textContent);
    announce("copied");
  } catch {
    getSelection().selectAllChildren(code); // where the clipboard is not allowed, as without TLS
  }
});

// The last lines say what went wrong.
const trace = document.querySelector("pre.trace");
if (trace) trace.scrollTop = trace.scrollHeight;

// ---------------------------------------------------------------------- output

const output = document.getElementById("output");
if (output && output.dataset.living) {
  let next = output.dataset.next;
  const lines = document.createElement("span");
  const line = document.createElement("span");
  output.append(lines, line);
  let isFirst = true;
  repeat(async () => {
    const answer = await get(`/output?${new URLSearchParams({ run, from: next })}`);
    const found = await answer.json();
    // What the page itself ends with is the beginning of this line.
    if (isFirst) trimLastLine();
    isFirst = false;
    const isAtEnd = window.innerHeight + window.scrollY >= document.body.scrollHeight - 40;
    lines.insertAdjacentHTML("beforeend", found.lines);
    line.innerHTML = found.line;
    next = found.next;
    if (isAtEnd) window.scrollTo(0, document.body.scrollHeight);
    return found.over ? null : 1;
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
