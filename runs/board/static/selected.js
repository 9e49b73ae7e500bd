// The runs that are selected. The selection lasts over pages and reloads, as long as the tab is open.

import { root } from "./board.js";

const KEPT = `selected runs${root}`;
const listeners = [];

export const selected = new Set(JSON.parse(sessionStorage.getItem(KEPT) ?? "[]"));

/** Call a function when other runs are selected. */
export function onSelected(listener) {
  listeners.push(listener);
}

/** Say that the selection has changed. */
export function keepSelected() {
  sessionStorage.setItem(KEPT, JSON.stringify([...selected]));
  for (const listener of listeners) listener();
}

/** Select more runs. */
export function addSelected(ids) {
  for (const id of ids) selected.add(id);
  keepSelected();
}
