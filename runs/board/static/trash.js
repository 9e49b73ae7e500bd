// Runs come back from the trash: those that are selected in it, or the one whose page says that it was deleted.
import { announce, post, root, showError } from "./board.js";
import "./tables.js";

const PART = 200;
const form = document.getElementById("trash");
const problem = document.getElementById("trash-problem");
const chosen = () => [...form.querySelectorAll("tbody input:checked")];

const restore = (keys) => post(`${root}/trash/restore`, keys.map((key) => ["run", key]));

document.querySelector("[data-restore]")?.addEventListener("click", async ({ target }) => {
  try {
    location.assign((await restore([target.dataset.restore])).url);
  } catch (error) {
    showError(problem, error);
  }
});

function showNumber() {
  const num = chosen().length;
  const button = form.querySelector("button.main");
  button.disabled = num === 0;
  button.textContent = num ? `Restore ${num} ${num === 1 ? "run" : "runs"}` : "Restore";
}

form?.addEventListener("change", ({ target }) => {
  if (target.id === "all") for (const box of form.querySelectorAll("tbody tr:not([hidden]) input")) box.checked = target.checked;
  showNumber();
});

form?.addEventListener("submit", async (event) => {
  event.preventDefault();
  const boxes = chosen();
  form.querySelector("button.main").disabled = true;
  try {
    for (let at = 0; at < boxes.length; at += PART) {
      const part = boxes.slice(at, at + PART);
      announce((await restore(part.map((box) => box.value))).done);
      for (const box of part) box.closest("tr").remove();
    }
    showError(problem, null);
  } catch (error) {
    showError(problem, error);
  }
  showNumber();
});
