// Charts of runs or trials by plotly.js: scatter, bars of counts and of importances; and tables of what charts show.
//
// A mark is a run or trial, {id, label, key, color, values}: `values` are those of the fields, `key` is that of its eye.
import { lineColour } from "./colours.js";
import { colour, configOf, csvText, layoutOf, plain, plotly } from "./plots.js";
import { Scale, binned } from "./scales.js";

const MOST_ROWS = 500;

const writeTime = (value) => new Date(value).toISOString().slice(0, 16).replace("T", " ");

/** Return the scale of a field, {name, is_time}, with the values that marks have at an index. */
export function scaleOf(field, index, marks) {
  return new Scale(field.name, marks.map(({ values }) => values[index]), field.is_time ? writeTime : undefined);
}

async function plot(place, traces, layout, name, rows) {
  return (await plotly()).react(place, traces, layoutOf({ hovermode: "closest", ...layout }), configOf(name, () => csvText(rows)));
}

/** Return an axis of plotly.js. */
function axisOf(scale, isTime) {
  const type = isTime ? "date" : scale.isNumeric ? (scale.isLog ? "log" : "linear") : "category";
  return { title: { text: plain(scale.name), standoff: 8 }, type, ...(isTime ? {} : { exponentformat: "e" }), ...(type === "log" ? { dtick: 1 } : {}) };
}

// A longer legend would leave no room for the marks; the table and the pointer name their values.
const MOST_NAMED = 12;
const short = (text) => (text.length > 18 ? `${text.slice(0, 17)}…` : text);
const placed = (scale, value) => (scale.isNumeric ? value : plain(value));

/** Return the traces of marks: coloured by their third value if that is a number, with a legend if it is a name. */
function tracesOf(fields, marks, scales) {
  const base = (some) => ({
    type: "scatter", mode: "markers", hoverinfo: "text", customdata: some.map(({ id }) => id),
    x: some.map(({ values }) => placed(scales[0], values[0])),
    y: some.map(({ values }) => placed(scales[1], values[1])),
    text: some.map(({ label, values }) => [label, ...fields.map(({ name }, at) => `${name}: ${scales[at].isNumeric ? scales[at].text(values[at] ?? NaN) : values[at]}`)].map(plain).join("<br>")),
  });
  const looks = { size: 8, opacity: 0.85, line: { width: 0.5, color: colour("--strong-line") } };
  const third = scales[2];
  if (third?.isNumeric) {
    const shade = third.isLog ? Math.log10 : (value) => value;
    const bar = { title: { text: plain(third.name), side: "right" }, thickness: 12, outlinewidth: 0, ...(third.isLog ? { tickvals: third.ticks().map(([at]) => shade(third.value(at))), ticktext: third.ticks().map(([, text]) => text) } : {}) };
    return [{ ...base(marks), name: "", marker: { ...looks, color: marks.map(({ values }) => shade(values[2])), colorscale: "Viridis", showscale: true, colorbar: bar } }];
  }
  if (!third) return [{ ...base(marks), name: "", marker: { ...looks, color: marks.map(({ color }) => color) } }];
  return third.names.map((name, at) => {
    const some = marks.filter(({ values }) => String(values[2]) === name);
    return { ...base(some), name: plain(short(name)), showlegend: true, marker: { ...looks, color: lineColour(at) } };
  });
}

/** Draw marks over two fields. */
export async function drawScatter(place, fields, marks, name) {
  const scales = fields.map((field, at) => scaleOf(field, at, marks));
  const axes = fields.slice(0, 2).map((field, at) => axisOf(scales[at], field.is_time));
  const layout = { xaxis: axes[0], yaxis: axes[1], showlegend: scales.length > 2 && !scales[2].isNumeric && scales[2].names.length <= MOST_NAMED, legend: { orientation: "h", y: 1.02, yanchor: "bottom" } };
  await plot(place, tracesOf(fields, marks, scales), layout, name, tableOf(fields, marks));
}

/** Return the rows of a table of marks, its head first. */
export function tableOf(fields, marks) {
  return [["run", ...fields.map(({ name }) => name)], ...marks.map(({ id, values }) => [id, ...values.map((value, at) => (fields[at].is_time && value !== null ? writeTime(value) : value))])];
}

/** Return the rows of a histogram, its head first: bins, and how many marks of each key are in them. */
export function countsOf(field, marks, isGrouped) {
  const values = marks.map((mark) => mark.values[0]);
  const { labels, of } = binned(scaleOf(field, 0, marks), values);
  const keys = isGrouped ? [...new Set(marks.map(({ key }) => key))] : ["runs"];
  const rows = labels.map((label) => [label, ...keys.map(() => 0)]);
  for (const { key, values: [value] } of marks) if (of(value) >= 0) rows[of(value)][1 + (isGrouped ? keys.indexOf(key) : 0)] += 1;
  return [[field.name, ...keys], ...rows];
}

/** Draw how often values of a field are found, by group if marks are grouped. */
export async function drawHistogram(place, field, marks, isGrouped, name) {
  const rows = countsOf(field, marks, isGrouped);
  const [[, ...keys], ...bins] = rows;
  const colors = new Map(marks.map(({ key, color }) => [key, color]));
  const x = bins.map((_, at) => at);
  const traces = keys.map((key, at) => ({
    type: "bar", x, y: bins.map((bin) => bin[1 + at]), name: plain(key), marker: { color: isGrouped ? colors.get(key) : lineColour(0) },
    ...(isGrouped ? {} : { text: bins.map((bin) => String(bin[1 + at])), textposition: "outside", cliponaxis: false }),
    hovertext: bins.map((bin) => plain(`${bin[0]}: ${bin[1 + at]}${isGrouped ? `, ${key}` : ""}`)), hoverinfo: "text",
  }));
  const xaxis = { title: { text: plain(field.name), standoff: 8 }, tickvals: x, ticktext: bins.map(([label]) => plain(short(String(label)))), autotickangles: [0, -35, -90] };
  const most = Math.max(...bins.map(([, ...counts]) => counts.reduce((sum, count) => sum + count, 0)));
  const yaxis = { title: { text: "runs" }, tickformat: "d", rangemode: "tozero", ...(most < 8 ? { dtick: 1 } : {}) }; // no tick between counts
  const layout = { xaxis, yaxis, barmode: "stack", bargap: 0.08 };
  await plot(place, traces, layout, name, rows);
}

/** Return the rows of importances, its head first, the most important setting first. */
export function sharesOf(methods) {
  const names = Object.keys(Object.values(methods)[0] ?? {});
  return [["setting", ...Object.keys(methods)], ...names.map((setting) => [setting, ...Object.values(methods).map((of) => of[setting])])];
}

/** Draw importances: by method, the share of each setting. */
export async function drawImportances(place, methods, name) {
  const rows = sharesOf(methods);
  const [[, ...heads], ...bars] = rows;
  bars.reverse(); // the first is at the top
  const traces = heads.map((method, at) => ({ type: "bar", orientation: "h", name: method, y: bars.map(([setting]) => plain(setting)), x: bars.map((bar) => bar[1 + at]), marker: { color: lineColour(at) } }));
  await plot(place, traces, { showlegend: true, legend: { orientation: "h", y: -0.12 }, barmode: "group" }, name, rows);
}

/** Show rows, the head first, as a table; `linkOf` returns the address of what the first cell names. */
export function showTable(place, caption, [head, ...rows], linkOf = () => null) {
  const table = document.createElement("table");
  table.className = "wide table";
  const cell = (text, scope, line) => line.appendChild(Object.assign(document.createElement("th"), { textContent: text, scope }));
  table.createCaption().textContent = rows.length > MOST_ROWS ? `${caption}: the first ${MOST_ROWS} of ${rows.length}` : caption;
  const line = table.createTHead().insertRow();
  head.forEach((text) => (text === "" ? line.insertCell() : cell(text, "col", line)));
  const body = table.createTBody();
  for (const [first, ...others] of rows.slice(0, MOST_ROWS)) {
    const row = body.insertRow();
    const address = linkOf(first);
    const name = cell(address ? "" : first, "row", row);
    if (address) name.append(Object.assign(document.createElement("a"), { href: address, textContent: first }));
    for (const value of others) row.insertCell().textContent = typeof value === "number" ? String(Number(value.toPrecision(6))) : value ?? "–";
  }
  place.replaceChildren(table);
}
