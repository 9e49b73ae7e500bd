// Writing a report: the preview follows the text, which the browser keeps until it is saved; who comes second is told.
import { announce, get, localise, post, root, showError } from "./board.js";
import { showPanels } from "./report_panels.js";

const $ = (id) => document.getElementById(id);
const form = $("report-form");
const { title, text, shared } = form.elements;
const preview = $("preview");
const problem = $("report-problem");
const previewProblem = $("preview-problem");
const KEPT = `report ${root} ${form.dataset.id || "new"}`;
const WAIT_MS = 400;
const saved = { title: title.value, text: text.value };
let timer;
let numAsked = 0;

// ---------------------------------------------------------------------- preview

async function look() {
  const number = (numAsked += 1);
  try {
    const answer = await get(`${root}/reports/preview`, { method: "POST", body: new URLSearchParams([["text", text.value]]) });
    if (number < numAsked) return;
    preview.innerHTML = await answer.text(); // of the server, which escapes all but Markdown
    showError(previewProblem, null);
    localise(preview);
    showPanels(preview);
  } catch (error) {
    showError(previewProblem, error);
  }
}

// ---------------------------------------------------------------------- drafts

function keepDraft() {
  const isChanged = title.value !== saved.title || text.value !== saved.text;
  if (isChanged) localStorage.setItem(KEPT, JSON.stringify({ title: title.value, text: text.value }));
  else localStorage.removeItem(KEPT);
}

function readDraft() {
  try {
    const draft = JSON.parse(localStorage.getItem(KEPT));
    return draft && (draft.text !== saved.text || draft.title !== saved.title) ? draft : null;
  } catch {
    return null;
  }
}

const draft = readDraft();
$("draft").hidden = !draft;
$("take-draft").addEventListener("click", () => {
  [title.value, text.value] = [draft.title, draft.text];
  $("draft").hidden = true;
  text.focus();
  look();
});
$("drop-draft").addEventListener("click", () => {
  localStorage.removeItem(KEPT);
  $("draft").hidden = true;
  text.focus();
});

form.addEventListener("input", () => {
  $("draft").hidden = true;
  keepDraft();
  clearTimeout(timer);
  timer = setTimeout(look, WAIT_MS);
});

// ---------------------------------------------------------------------- blocks and saving

document.addEventListener("click", (event) => {
  const block = event.target.closest("[data-insert]")?.dataset.insert;
  if (!block) return;
  const at = text.selectionStart;
  const before = text.value.slice(0, at);
  const gap = block.startsWith("{{value") || !before || before.endsWith("\n\n") ? "" : before.endsWith("\n") ? "\n" : "\n\n";
  text.setRangeText(`${gap}${block}`, at, text.selectionEnd, "end");
  text.focus();
  form.dispatchEvent(new Event("input"));
});

document.addEventListener("keydown", (event) => {
  if (!(event.ctrlKey || event.metaKey) || !["Enter", "s"].includes(event.key)) return;
  event.preventDefault();
  form.requestSubmit();
});

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  try {
    const pairs = [["id", form.dataset.id], ["version", form.dataset.version], ["title", title.value], ["text", text.value], ["shared", shared.checked ? "1" : ""]];
    const { done, url } = await post(`${root}/reports/save`, pairs);
    localStorage.removeItem(KEPT);
    announce(done);
    location.assign(url);
  } catch (error) {
    showError(problem, error);
    if (!error.found?.version) return;
    form.dataset.version = error.found.version; // who has seen it may replace it
    $("theirs").hidden = false;
    $("theirs").querySelector("pre").textContent = error.found.text;
    problem.textContent += "; the other text is below, yours is unchanged";
  }
});

if (text.value) look();
