// The page of a run follows the run: it asks for itself again, and takes from the answer what is new.
import { get, localise, repeat } from "./board.js";

const followed = document.querySelector("[data-run]").dataset.followed || location.pathname + location.search;
const listeners = [];
// What the server said, by the name of a part of the page: scripts add to it.
const said = new Map([...document.querySelectorAll("[data-live]")].map((part) => [part.dataset.live, part.innerHTML]));
let tag = "";

/** Call a function at each look, with the page as it is now, null if it is as it was, and whether more is to come.
 *
 * It may return the seconds to the next look.
 */
export function onLook(listener) {
  listeners.push(listener);
}

/** Tell whether somebody writes, marks or plays something in a part of the page. */
function isUsed(part) {
  const marked = getSelection();
  if (!marked.isCollapsed && marked.containsNode(part, true)) return true;
  if ([...part.querySelectorAll("audio, video")].some((one) => !one.paused && !one.ended)) return true;
  return document.activeElement.matches("input") && part.contains(document.activeElement);
}

/** Put new content into a part of the page, in which focus and scrolling stay where they are. */
function replace(part, fresh) {
  const link = part.contains(document.activeElement) && document.activeElement.getAttribute("href");
  const scrolled = [...part.querySelectorAll(".scroll, pre, ul")].map((one) => [one.scrollLeft, one.scrollTop]);
  part.replaceChildren(...fresh.childNodes);
  [...part.querySelectorAll(".scroll, pre, ul")].forEach((one, index) => one.scrollTo(...(scrolled[index] ?? [0, 0])));
  if (link) part.querySelector(`a[href="${CSS.escape(link)}"]`)?.focus();
  part.dispatchEvent(new Event("renewed", { bubbles: true }));
}

repeat(async () => {
  const answer = await get(followed, { headers: { "if-none-match": tag } });
  const isOpen = answer.headers.get("x-open") === "1";
  let page = null;
  if (answer.status === 200) {
    page = new DOMParser().parseFromString(await answer.text(), "text/html");
    localise(page);
    tag = answer.headers.get("etag");
    for (const fresh of page.querySelectorAll("[data-live]")) {
      const name = fresh.dataset.live;
      const part = document.querySelector(`[data-live="${name}"]`);
      if (!part || said.get(name) === fresh.innerHTML) continue;
      if (isUsed(part)) {
        tag = ""; // and ask again
        continue;
      }
      said.set(name, fresh.innerHTML);
      replace(part, fresh);
    }
  }
  let seconds = Number(answer.headers.get("x-look-again-s")) || 5;
  for (const listener of listeners) seconds = Math.max(seconds, (await listener(page, isOpen)) ?? 0);
  return seconds;
});
