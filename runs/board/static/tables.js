// Tables: searching them, and sorting them by a column.

/** Show the rows and charts that have the words of a search. */
export function sieve(field) {
  const words = field.value.toLowerCase().split(/\s+/);
  const place = field.dataset.sieve ? document.getElementById(field.dataset.sieve) : field.parentElement.querySelector("table");
  for (const row of place.querySelectorAll("tbody tr, figure.panel")) {
    const text = (row.dataset.panel ?? row.textContent).toLowerCase();
    row.hidden = !words.every((word) => text.includes(word));
  }
  for (const fold of place.querySelectorAll("details")) {
    fold.open ||= field.value !== "";
    if (fold.matches(".section")) fold.hidden = !fold.querySelector("figure:not([hidden])");
  }
}
document.addEventListener("input", (event) => event.target.matches(".sieve") && sieve(event.target));
document.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || !event.target.matches(".sieve")) return;
  event.preventDefault(); // no form around it is meant
  event.target.blur();
});

const sorts = new Map(); // how tables with a name are sorted, which are renewed

/** Let a click on the head of a column sort the rows of its table. */
export function makeSortable(table) {
  for (const [index, headCell] of [...table.tHead.rows[0].cells].entries()) {
    const button = document.createElement("button");
    button.className = "plain";
    button.append(...headCell.childNodes);
    headCell.append(button);
    button.addEventListener("click", () => {
      const direction = headCell.ariaSort === "descending" ? 1 : -1;
      sorts.set(table.dataset.sortable, [headCell.textContent, direction]);
      for (const cell of table.tHead.rows[0].cells) cell.ariaSort = null;
      headCell.ariaSort = direction < 0 ? "descending" : "ascending";
      const key = (row) => row.cells[index]?.textContent ?? "";
      const compare = (a, b) => {
        const [x, y] = [Number(key(a) || NaN), Number(key(b) || NaN)];
        if (!Number.isNaN(x) && !Number.isNaN(y)) return x - y;
        return Number.isNaN(x) - Number.isNaN(y) || key(a).localeCompare(key(b));
      };
      table.tBodies[0].append(...[...table.tBodies[0].rows].sort((a, b) => direction * compare(a, b)));
    });
  }
  const [name, direction] = (table.dataset.sortable && sorts.get(table.dataset.sortable)) || [];
  const button = [...table.tHead.rows[0].cells].find((cell) => cell.textContent === name)?.firstChild;
  for (let clicks = direction === 1 ? 2 : 1; button && clicks; clicks -= 1) button.click();
}
