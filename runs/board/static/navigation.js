// Going to another view of the workspace in place: the parts of the page that change are replaced, the charts stay.
import { heldFocus, localise, root } from "./board.js";
import { copyBrushes, readBrushes } from "./brushes.js";
import { readEyes } from "./eyes.js";
import { readAddress, renewPanels } from "./panels.js";
import { showColours } from "./colours.js";

// What the scripts of the page keep in the address; a link may be older than that.
const OWN = ["hide", "eye", "layout", "x", "smoothing", "log_x", "log_y", "joined", "band", "zoom", "panel", "wide", "closed", "y", "ignore_outliers", "legend", "colour"];
const listeners = [];
let numAsked = 0;

/** Call a function when the page shows another view. */
export function onView(listener) {
  listeners.push(listener);
}

/** Show the view of an address; `add` changes the query of the present one. */
export async function go(address, { isBack = false, focus = "" } = {}) {
  const url = new URL(address, location.href);
  if (!isBack) keepOwn(url);
  const number = (numAsked += 1);
  const before = document.activeElement;
  const text = before.value;
  let answer;
  try {
    answer = await fetch(url, { headers: { accept: "text/html" } });
    if (answer.status === 202 || !answer.headers.get("content-type")?.startsWith("text/html")) throw new Error();
  } catch {
    location.assign(url); // the browser says what is wrong
    return;
  }
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  if (number < numAsked) return;
  const fresh = ["finding", "list", "panels"].map((id) => page.getElementById(id));
  if (fresh.includes(null)) {
    location.assign(url);
    return;
  }
  localise(page);
  const [finding, list, panels] = fresh;
  if (!isBack) history.pushState(null, "", ownAddress(finding.querySelector("form").dataset.address));
  readEyes();
  readBrushes();
  const now = document.activeElement;
  const isElsewhere = now !== before || now.value !== text; // who went on meanwhile stays there
  const typed = isElsewhere && now.matches("#finding input") ? now : null;
  const refocus = [[document.getElementById("finding"), finding], [document.getElementById("list"), list]].map(([old, fresh]) => {
    const again = heldFocus(old);
    old.replaceWith(fresh);
    return () => again(fresh);
  });
  const field = typed && finding.querySelector(`input[name="${CSS.escape(typed.name)}"]`);
  if (field) field.replaceWith(typed);
  readAddress();
  showColours();
  for (const listener of listeners) listener();
  if (focus && !isElsewhere) document.querySelector(focus)?.focus({ preventScroll: true });
  else refocus.forEach((again) => again());
  await renewPanels(panels);
}

/** Return an address of the server with what the scripts keep. */
function ownAddress(address) {
  const url = new URL(address, location.href);
  keepOwn(url);
  return url;
}

function keepOwn(url) {
  const here = new URLSearchParams(location.search);
  for (const name of OWN) {
    url.searchParams.delete(name);
    for (const value of here.getAll(name)) url.searchParams.append(name, value);
  }
  copyBrushes(here, url.searchParams);
}

document.addEventListener("click", (event) => {
  const link = event.target.closest("#finding a[href], #list a[href]");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey || event.button) return;
  if (new URL(link.href).pathname !== `${root}/runs`) return;
  event.preventDefault();
  const head = link.closest("th[scope=col]") ? `th a[title="${CSS.escape(link.title)}"]` : "";
  go(link.href, { focus: head || (link.dataset.key ? `[data-key="${CSS.escape(link.dataset.key)}"]` : "") });
});

document.addEventListener("submit", (event) => {
  const form = event.target.closest("#finding form");
  if (!form) return;
  event.preventDefault();
  const pairs = [...new FormData(form)].filter(([, value]) => value.trim());
  go(`${root}/runs?${new URLSearchParams(pairs)}`, { focus: "#main" }); // keys are shortcuts again
});

window.addEventListener("popstate", () => go(location.href, { isBack: true }));
