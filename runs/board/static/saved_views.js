// Named views: a list to open and remove, and a form that saves what is shown.
import { announce, get, post, root, showError } from "./board.js";

const $ = (id) => document.getElementById(id);
const dialog = $("views-dialog");
const form = $("save-view");
let views = [];

function item(view) {
  const line = document.createElement("li");
  const link = Object.assign(document.createElement("a"), { href: view.url, textContent: view.name });
  const kind = Object.assign(document.createElement("span"), { className: "dim", textContent: `${view.shared ? "shared" : "private"}${view.default ? ", opens first" : ""}` });
  line.append(link, kind);
  if (form) {
    const remove = Object.assign(document.createElement("button"), { type: "button", textContent: "Remove", ariaLabel: `Remove ${view.name}` });
    remove.addEventListener("click", () => change(`${root}/list/view/remove`, [["version", view.version]]));
    line.append(remove);
  }
  return line;
}

async function load() {
  ({ views } = await (await get(`${root}/list/views`)).json());
  $("views-list").replaceChildren(...views.map(item));
  if (!views.length) $("views-list").append(Object.assign(document.createElement("li"), { className: "dim", textContent: "No view has been saved yet." }));
}

async function change(path, pairs) {
  const problem = form.querySelector(".problem");
  try {
    announce((await post(path, pairs)).done);
    showError(problem, null);
    form.reset();
    await load();
  } catch (error) {
    showError(problem, error);
    await load().catch(() => {});
  }
}

document.addEventListener("click", async (event) => {
  if (!event.target.closest("#show-views")) return;
  if ($("write-report")) $("write-report").search = location.search || "?where="; // what is shown now
  await load().then(() => dialog.showModal(), (error) => announce(error.message));
});

form?.addEventListener("submit", (event) => {
  event.preventDefault();
  const name = form.elements.name.value.trim();
  // The one of that name that the list shows is replaced, and no other.
  const known = views.find((view) => view.name === name && view.shared === form.elements.shared.checked);
  if (known && !form.dataset.sure?.includes(known.version)) {
    form.dataset.sure = known.version;
    form.querySelector(".problem").textContent = `There is a view ${name}; save again to replace it.`;
    return;
  }
  change(`${root}/list/view`, [...new FormData(form), ["query", location.search], ["version", known?.version ?? ""]]);
});
