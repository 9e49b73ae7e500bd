// A page follows what it shows, a run or the runs of all stores: it requests itself again and replaces the parts that have changed.
import { heldFocus, isHeld, localise, repeat, watch } from "./board.js";

const followed = document.querySelector("[data-followed]")?.dataset.followed || location.pathname + location.search;
const listeners = [];
// The HTML of each part of the page as the server sent it; scripts change the page itself.
const said = new Map([...document.querySelectorAll("[data-live]")].map((part) => [part.dataset.live, part.innerHTML]));
const version = {};

/** Call a function at each look, with the new page, null if it has not changed, and whether the run may still change.
 *
 * The function may return the seconds to the next look.
 */
export function onLook(listener) {
  listeners.push(listener);
}

/** Tell whether the user types, selects, presses or plays something in a part of the page. */
function isUsed(part) {
  return isHeld(part) || (document.activeElement.matches("input, select, textarea") && part.contains(document.activeElement));
}

/** Replace the content of a part of the page, and keep focus, scroll positions and what is open. */
function replace(part, fresh) {
  const refocus = heldFocus(part);
  const open = [...part.querySelectorAll("details")].map((one) => one.open);
  const scrolled = [...part.querySelectorAll(".scroll, pre, ul")].map((one) => [one.scrollLeft, one.scrollTop]);
  part.replaceChildren(...fresh.childNodes);
  [...part.querySelectorAll(".scroll, pre, ul")].forEach((one, index) => one.scrollTo(...(scrolled[index] ?? [0, 0])));
  for (const [index, one] of [...part.querySelectorAll("details")].entries()) one.open = open[index] ?? one.open;
  part.dispatchEvent(new Event("renewed", { bubbles: true }));
  refocus();
}

/** Look now, as after a change of one's own. */
export async function look() {
  let page = null;
  let isOutdated = false;
  const { answer, seconds } = await watch(followed, version, (html) => {
    page = new DOMParser().parseFromString(html, "text/html");
    localise(page);
    for (const fresh of page.querySelectorAll("[data-live]")) {
      const name = fresh.dataset.live;
      const part = document.querySelector(`[data-live="${name}"]`);
      if (!part || said.get(name) === fresh.innerHTML) continue;
      if (isUsed(part)) {
        isOutdated = true;
        continue;
      }
      said.set(name, fresh.innerHTML);
      replace(part, fresh);
    }
  });
  if (isOutdated) version.tag = ""; // ask again
  const isOpen = answer.headers.get("x-open") === "1";
  let longest = seconds;
  for (const listener of listeners) longest = Math.max(longest, (await listener(page, isOpen)) ?? 0);
  return longest;
}

repeat(look);
