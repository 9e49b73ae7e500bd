// Ranges of y, one for each panel: the address keeps them as `y=0..5 train/loss`; either end may be left away.

const dialog = document.getElementById("range-dialog");
let ranges = new Map();
let listener = () => {};
let panel = null;

const numberOf = (text) => (text.trim() === "" || !Number.isFinite(Number(text)) ? null : Number(text));

/** Take over what the address says. */
export function readRanges() {
  ranges = new Map(new URLSearchParams(location.search).getAll("y").flatMap((text) => {
    const [, ends, name] = /^(\S+) ([^]+)$/.exec(text) ?? [null, "", ""];
    const [low, high] = ends.split("..").map(numberOf);
    return (low ?? high ?? null) === null || (low !== null && (high ?? null) !== null && low >= high) ? [] : [[name, [low, high ?? null]]];
  }));
}

/** Return the range of a panel, [low, high], of which one may be null; null without one. */
export const rangeOf = (name) => ranges.get(name) ?? null;

/** Call a function with the name of a panel whose range has changed. */
export function onRanges(action) {
  listener = action;
}

/** Set the range of a panel, or end it by null. */
export function setRange(name, range) {
  if (range && (range[0] ?? range[1]) !== null) ranges.set(name, range);
  else if (!ranges.delete(name)) return;
  const url = new URL(location.href);
  url.searchParams.delete("y");
  for (const [one, [low, high]] of ranges) url.searchParams.append("y", `${low ?? ""}..${high ?? ""} ${one}`);
  history.replaceState(history.state, "", url);
  listener(name);
}

/** Open the dialog for a panel that shows a range, of which the numbers are offered. */
export function openRangeDialog(name, shown) {
  panel = name;
  const form = dialog.querySelector("form");
  dialog.querySelector("h2").textContent = `Range of y: ${name}`;
  const own = rangeOf(name) ?? [null, null];
  [form.elements.low, form.elements.high].forEach((input, at) => {
    input.value = own[at] ?? "";
    input.placeholder = String(Number(shown[at].toPrecision(4)));
    input.setCustomValidity("");
  });
  dialog.showModal();
}

dialog?.addEventListener("input", ({ target }) => target.form.elements.high.setCustomValidity(""));
dialog?.querySelector("form").addEventListener("submit", (event) => {
  const { low, high } = event.target.elements;
  if (event.submitter.value === "reset") return setRange(panel, null);
  if (event.submitter.value !== "set") return;
  const ends = [low, high].map((input) => numberOf(input.value));
  if (ends[0] !== null && ends[1] !== null && ends[0] >= ends[1]) {
    event.preventDefault();
    high.setCustomValidity(`expected more than ${ends[0]}`);
    high.reportValidity();
    return;
  }
  setRange(panel, ends);
});

readRanges();
