// Shared by all pages: times in the local zone, keys, dialogs, and requests to the server.

/** What the addresses of a store's pages begin with; empty on a board of one store. */
export const root = document.documentElement.dataset.root;
const mayWrite = "writes" in document.documentElement.dataset;

/** Show the times below a node in the local zone. */
export function localise(node) {
  const pad = (number) => String(number).padStart(2, "0");
  for (const time of node.querySelectorAll("time[datetime]:not([title])")) {
    const date = new Date(time.dateTime);
    if (Number.isNaN(date.getTime())) continue;
    time.title = time.textContent;
    const day = `${date.getFullYear()}-${pad(date.getMonth() + 1)}-${pad(date.getDate())}`;
    time.textContent = `${day} ${pad(date.getHours())}:${pad(date.getMinutes())}`;
  }
}

/** Show a message, which screen readers read aloud. */
export function announce(text) {
  const place = document.getElementById("announce");
  place.textContent = text;
  place.classList.remove("hidden");
  clearTimeout(announce.timer);
  announce.timer = setTimeout(() => place.classList.add("hidden"), 4000);
}

/** Show an error at a place, which null empties. After the login ended, a link logs in again in another tab, so that nothing typed is lost. */
export function showError(place, error) {
  place.textContent = error?.message ?? "";
  const link = (text, more) => place.append(" ", Object.assign(document.createElement("a"), { href: location.href, textContent: text, ...more }));
  if (error?.isLoggedOut) link("Log in again in a new tab, then go on here", { target: "_blank" });
  else if (error?.found?.discarded && place.id === "outage" && mayWrite) link("Restore it");
}

/** Return the error of a request that needs a login, and tell of it on the page until a request succeeds. */
function loggedOut() {
  const error = Object.assign(new Error("Your login has expired or was revoked."), { isLoggedOut: true });
  showOutage(error);
  return error;
}

/** Return the answer to a request; throws an error with `isAway` without one. */
async function ask(url, options) {
  const answer = await fetch(url, options).catch(() => {
    throw Object.assign(new Error("the board does not answer"), { isAway: true });
  });
  if (answer.status === 401) throw loggedOut();
  if (outage?.isLoggedOut) showOutage(null);
  return answer;
}

/** Send a form to the server and return its answer; throws an error with the answer as `found`. */
export async function post(path, pairs) {
  const answer = await ask(path, { method: "POST", body: new URLSearchParams(pairs) });
  const text = await answer.text();
  let found;
  try {
    found = JSON.parse(text);
  } catch {
    found = { error: text };
  }
  if (!answer.ok) throw Object.assign(new Error(found.error || `the server answered ${answer.status}`), { found });
  return found;
}

let outage = null;

/** Show an error that keeps the page from following the store; null removes it. */
function showOutage(error) {
  if (error?.message !== outage?.message) { // screen readers read it once
    const isPlain = !error || error.isLoggedOut || error.found?.discarded;
    showError(document.getElementById("outage"), isPlain ? error : new Error(`This may be out of date: ${error.message}`));
  }
  outage = error;
}

/** Return the answer to a GET; throws the server's error, with `isAway` if the same request may succeed later. */
export async function get(url, options = {}) {
  const answer = await ask(url, { ...options, headers: { accept: "application/json", ...options.headers } });
  if (answer.ok || answer.status === 304) return answer;
  const found = await answer.json().catch(() => ({ error: `the server answered ${answer.status}` }));
  throw Object.assign(new Error(found.error), { found, isAway: answer.status >= 500 });
}

/** Call a function again and again while the page is visible; it returns the seconds to the next call. */
export function repeat(look) {
  let timer;
  const next = async () => {
    clearTimeout(timer);
    if (document.hidden) return;
    let seconds = 5;
    try {
      seconds = await look();
      showOutage(null);
    } catch (error) {
      showOutage(error); // it may come back
    }
    timer = setTimeout(next, 1000 * seconds);
  };
  document.addEventListener("visibilitychange", next);
  timer = setTimeout(next, 1000);
}

/** Call a function with the HTML of a page when that has changed, and return the answer to the request and the seconds to the next.
 *
 * `version` holds the tag of the HTML that is shown; clear it to get the HTML again.
 */
export async function watch(url, version, onChange) {
  const answer = await get(url, { headers: { "if-none-match": version.tag ?? "" } });
  if (answer.status === 200) {
    version.tag = answer.headers.get("etag");
    await onChange(await answer.text(), answer);
  }
  return { answer, seconds: Number(answer.headers.get("x-look-again-s")) || 5 };
}

/** Tell whether the user selects text, presses a button or plays something in a part of the page. */
export function isHeld(part) {
  const marked = getSelection();
  if (!marked.isCollapsed && marked.containsNode(part, true)) return true;
  return part.matches(":active") || [...part.querySelectorAll("audio, video")].some((one) => !one.paused && !one.ended);
}

// What tells an element from others of its kind.
const MARKS = ["id", "href", "name", "value", "aria-label", "data-key-of"];

/** Return a function that gives the focus back to an element of a part of the page, or to its like in what replaces the part. */
export function heldFocus(part) {
  const held = document.activeElement;
  if (held === part || !part.contains(held)) return () => {};
  const marks = MARKS.filter((name) => held.hasAttribute(name)).map((name) => `[${name}="${CSS.escape(held.getAttribute(name))}"]`);
  const alike = (place) => [...place.querySelectorAll(held.localName + marks.join(""))];
  const [at, text] = [alike(part).indexOf(held), held.textContent];
  return (place = part) => {
    const found = alike(place);
    const same = held.isConnected ? held : [found[at], ...found].find((one) => one?.textContent === text) ?? (held.matches("summary") ? found[at] : null);
    same?.focus({ preventScroll: true });
  };
}

/** Call a function for each element, once, when it comes near to the visible part of the page. */
export function whenSeen(elements, action, margin = "300px") {
  const observer = new IntersectionObserver((entries) => {
    for (const { isIntersecting, target } of entries) {
      if (!isIntersecting) continue;
      observer.unobserve(target);
      action(target);
    }
  }, { rootMargin: margin });
  for (const element of elements) observer.observe(element);
  return observer;
}

/** Keep a choice in the address, which others can open; an empty value removes it. */
export function keepInAddress(name, value) {
  const url = new URL(location.href);
  if (value) url.searchParams.set(name, value);
  else url.searchParams.delete(name);
  history.replaceState(null, "", url);
}

/** Return the two numbers of a range in the address, `name=5..9`; null without one. */
export function rangeInAddress(name) {
  const ends = (new URLSearchParams(location.search).get(name) ?? "").split("..");
  const [low, high] = ends.map((text) => (text.trim() ? Number(text) : NaN));
  return ends.length === 2 && low < high && Number.isFinite(low) && Number.isFinite(high) ? [low, high] : null;
}

// ---------------------------------------------------------------------- keys

const extraKeys = new Map();

/** Bind a key; `what` describes it in the list that `?` shows. */
export function onKey(key, what, action) {
  extraKeys.set(key, { what, action });
}

function keyOf(event) {
  return (event.shiftKey && event.key.length === 1 && event.key.toLowerCase() !== event.key ? "Shift+" : "") + event.key;
}

function isShown(element) {
  return element.getClientRects().length > 0;
}

function showKeys() {
  const dialog = document.createElement("dialog");
  dialog.setAttribute("aria-label", "Keys");
  const table = document.createElement("table");
  table.className = "facts";
  const add = (key, what) => {
    const row = table.insertRow();
    const head = document.createElement("th");
    head.scope = "row";
    const mark = document.createElement("kbd");
    mark.textContent = key;
    head.append(mark);
    row.append(head);
    row.insertCell().textContent = what;
  };
  for (const element of document.querySelectorAll("[data-key]")) {
    if (isShown(element)) add(element.dataset.key, element.ariaLabel || element.textContent.trim());
  }
  for (const [key, { what }] of extraKeys) add(key, what);
  const close = document.createElement("button");
  close.textContent = "Close";
  close.addEventListener("click", () => dialog.close());
  dialog.append(table, close);
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
  if (document.querySelector("dialog[open]")) return;
  const target = event.target;
  if (target.closest("textarea, select, [contenteditable], input:not([type=checkbox], [type=range])")) {
    if (event.key === "Escape") target.blur();
    return;
  }
  const key = keyOf(event);
  if (key === "?") {
    showKeys();
  } else if (extraKeys.has(key)) {
    extraKeys.get(key).action(event);
  } else {
    const found = [...document.querySelectorAll("[data-key]")].find((one) => one.dataset.key === key && isShown(one));
    if (!found) return;
    if (found.matches("input, textarea, select")) {
      found.focus();
      found.select?.();
    } else {
      found.click();
    }
  }
  event.preventDefault();
});

document.addEventListener("click", (event) => {
  if (event.target.closest("[data-close]")) event.target.closest("dialog").close();
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

localise(document);
