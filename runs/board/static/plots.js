// Plots by plotly.js in the colours of the page, each with buttons that save it as PNG, SVG and CSV.
import { announce, get } from "./board.js";

export const SANS = getComputedStyle(document.documentElement).getPropertyValue("--sans").trim();

export const scheme = matchMedia("(prefers-color-scheme: dark)");
const known = new Map();
scheme.addEventListener("change", () => known.clear());

/** Return a colour of the page as plotly.js takes it: `light-dark()` is resolved. */
export function colour(name) {
  if (!known.has(name)) known.set(name, resolved(name)); // each look at a style makes the browser lay out the page
  return known.get(name);
}

function resolved(name) {
  const probe = document.createElement("span");
  probe.style.color = `var(${name})`;
  document.body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}

/** Return a layout in the colours of the page, with what is given in it. */
export function layoutOf(more = {}) {
  const [text, dim, line, ground] = ["--text", "--dim", "--line", "--bg"].map(colour);
  const axis = { gridcolor: line, zerolinecolor: line, linecolor: line, tickfont: { color: dim }, automargin: true };
  const { xaxis, yaxis, ...rest } = more;
  return {
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: SANS, size: 11.5, color: text },
    // Room for the labels of most axes: where it is too little, plotly.js draws all of it twice.
    margin: { l: 52, r: 10, t: 8, b: 44 },
    modebar: { bgcolor: ground, color: dim, activecolor: text },
    showlegend: false,
    hovermode: "x",
    dragmode: "zoom",
    xaxis: { ...axis, ...xaxis },
    yaxis: { ...axis, ...yaxis },
    ...rest,
  };
}

/** Let a file be saved. */
export function download(name, blob) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

/** Return rows as CSV, without a text that spreadsheets take for a formula, as `cell_text` does. */
export function csvText(rows) {
  const quote = (value) => {
    if (Number.isNaN(value)) return "";
    const text = (typeof value === "string" && /^[=+\-@\t\r]/.test(value) && !Number.isFinite(Number(value)) ? "'" : "") + String(value ?? "");
    return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return rows.map((row) => row.map(quote).join(",")).join("\n") + "\n";
}

/** Return a text that plotly takes for no markup. */
export function plain(text) {
  return String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
}

// Viridis, Smith and van der Walt 2015, https://bids.github.io/colormap/
const VIRIDIS = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]];

/** Return a colour, `#rrggbb`, from dark to bright for a number from 0 to 1. */
export function viridis(share) {
  const at = Math.min(VIRIDIS.length - 2, Math.floor(share * (VIRIDIS.length - 1)));
  const rest = share * (VIRIDIS.length - 1) - at;
  return `#${VIRIDIS[at].map((one, part) => Math.round(one + (VIRIDIS[at + 1][part] - one) * rest).toString(16).padStart(2, "0")).join("")}`;
}

/** Return the points that a plot shows as CSV, a row each. */
export function csvOf(plot) {
  const rows = [["curve", "x", "y"]];
  for (const trace of plot.data) {
    for (const [index, x] of (trace.x ?? []).entries()) rows.push([trace.name ?? "", x, trace.y[index]]);
  }
  return csvText(rows);
}

const icon = (text) => ({
  svg: `<svg xmlns="http://www.w3.org/2000/svg" class="words" viewBox="0 0 26 14" width="2em" height="1.1em"><text x="13" y="11.5" text-anchor="middle">${text}</text></svg>`,
});

/** Return a file that the server makes; throws what it says is wrong. */
export async function fetchFile(url) {
  return (await get(url)).blob();
}

async function saveCsv(name, found) {
  try {
    download(name, new Blob([await found], { type: "text/csv" }));
  } catch (error) {
    announce(error.message);
  }
}

/** Return a name that files can have. */
export function fileName(name) {
  return name.replaceAll(/[^\w.-]+/g, "_").slice(0, 100) || "plot";
}

/** Save a plot, or a figure that is none yet, under a name as "png", "svg" or "csv", of which the file is given. */
export async function save(figure, name, format, csv) {
  if (format === "csv") await saveCsv(`${fileName(name)}.csv`, csv);
  else await (await plotly()).downloadImage(figure, { format, filename: fileName(name), width: 1000, height: 600 });
}

/** Return the configuration of a plot that is saved under a name; `csv` returns its CSV file, or a promise of it. */
export function configOf(name, csv = csvOf) {
  const button = (format) => ({
    name: `Save as ${format.toUpperCase()}`,
    icon: icon(format.toUpperCase()),
    click: (plot) => save(plot, name, format, format === "csv" && csv(plot)),
  });
  return {
    displaylogo: false,
    responsive: true,
    modeBarButtons: [["png", "svg", "csv"].map(button), ["zoom2d", "pan2d", "resetScale2d"]],
  };
}

const channels = (color) => [1, 3, 5].map((at) => Number.parseInt(color.slice(at, at + 2), 16));

/** Return a colour, `#rrggbb`, that is seen through. */
export function faded(color, opacity) {
  return `rgba(${channels(color).join(",")},${opacity})`;
}

/** Return what the server answers; throws what it says is wrong. */
export async function fetchJson(url) {
  return (await get(url)).json();
}

/** Return what the server answers, each array in it as a Float64Array whose NaN are gaps; throws as `fetchJson`. */
export async function fetchNumbers(url) {
  const body = await (await get(url)).arrayBuffer();
  const end = 4 + new DataView(body).getUint32(0, true);
  return JSON.parse(new TextDecoder().decode(new Uint8Array(body, 4, end - 4)), (_, value) =>
    Array.isArray(value?.numbers) ? new Float64Array(body, end + 8 * value.numbers[0], value.numbers[1]) : value,
  );
}

let script;

/** Return plotly.js, which is run when it is first asked for: what is drawn is asked of the server before. */
export function plotly() {
  script ??= new Promise((resolve, reject) => {
    const element = document.createElement("script");
    element.src = document.documentElement.dataset.plotly;
    element.addEventListener("load", () => resolve(window.Plotly));
    element.addEventListener("error", () => reject(new Error("plotly.js cannot be loaded")));
    document.head.append(element);
  });
  return script;
}

/** Call a function when the colours of the page change. */
export function onScheme(redraw) {
  scheme.addEventListener("change", redraw);
}
