// What every page does: times in the zone of whoever looks.

/** Show the times below a node in the local zone; the exact time is shown on hovering. */
export function localise(node) {
  for (const time of node.querySelectorAll("time[datetime]:not([title])")) {
    const date = new Date(time.dateTime);
    if (Number.isNaN(date.getTime())) continue;
    time.title = time.textContent;
    const pad = (number) => String(number).padStart(2, "0");
    time.textContent = `${date.getFullYear()}-${pad(date.getMonth() + 1)}-${pad(date.getDate())} ${pad(date.getHours())}:${pad(date.getMinutes())}`;
  }
}

localise(document);
