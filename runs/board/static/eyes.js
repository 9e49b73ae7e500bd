// Eyes: of which runs and groups the curves are shown. The address keeps it: `hide=3` for each that is hidden, or
// `hide=*`, and `eye=3` for each that is shown.

const ALL = "*";
const listeners = [];
let [hidden, seen] = [new Set(), new Set()];

/** Take over what the address says. */
export function readEyes() {
  const query = new URLSearchParams(location.search);
  [hidden, seen] = ["hide", "eye"].map((name) => new Set(query.getAll(name)));
}

/** Tell whether the curves of a run or group are shown. */
export function isShown(key) {
  return hidden.has(ALL) ? seen.has(key) : !hidden.has(key);
}

/** Call a function when that has changed. */
export function onEyes(listener) {
  listeners.push(listener);
}

/** Show or hide the curves of a run or group. */
export function toggle(key) {
  const [among, is] = hidden.has(ALL) ? [seen, !seen.has(key)] : [hidden, !hidden.has(key)];
  if (is) among.add(key);
  else among.delete(key);
  keep();
}

/** Show the curves of all, or of one run or group alone, or of none. */
export function showAll() {
  [hidden, seen] = [new Set(), new Set()];
  keep();
}

export function showOnly(...keys) {
  [hidden, seen] = [new Set([ALL]), new Set(keys)];
  keep();
}

function keep() {
  const url = new URL(location.href);
  for (const [name, keys] of [["hide", hidden], ["eye", seen]]) {
    url.searchParams.delete(name);
    for (const key of keys) url.searchParams.append(name, key);
  }
  history.replaceState(history.state, "", url);
  for (const listener of listeners) listener();
}

readEyes();
