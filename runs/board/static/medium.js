// One medium on a page: what its HTML needs of scripts.
import { announce, get, heldFocus, keepInAddress, root } from "./board.js";
import { lineColour } from "./colours.js";
import { colour, configOf, fetchJson, layoutOf, onScheme, plotly, save } from "./plots.js";

/** Return the address parameter that keeps what is shown of the tables of a series, and that itself. */
const wordOf = (name) => `table.${name}`;
const tableView = (name) => new URLSearchParams(new URLSearchParams(location.search).get(wordOf(name)) ?? "");

/** Return a medium of a series as a part of a page. */
export async function fetchMedium(run, number, name) {
  const answer = await get(`${root}/medium?${new URLSearchParams([...tableView(name), ["run", run], ["number", number]])}`).catch(() => null);
  return answer ? answer.text() : '<p class="problem">This medium cannot be read.</p>';
}

/** Show a medium in the place of the one before. */
export function show(place, html) {
  close(place);
  const refocus = heldFocus(place);
  place.innerHTML = html;
  refocus();
  place.querySelectorAll("img[data-moves]").forEach(letStop);
  place.querySelectorAll("[data-histogram]").forEach(letSave);
  for (const one of place.querySelectorAll(".points")) clouds.set(one, new Cloud(one, place));
}

/** Let go of what a medium holds. */
export function close(place) {
  place.querySelectorAll(".points").forEach((one) => clouds.get(one)?.close());
}

/** Call a function when other rows of the tables of a series are to be shown; the server finds, groups and sorts them. */
export function onTable(section, action) {
  const change = async (pairs, target) => {
    const view = tableView(section.dataset.name);
    for (const [key, value] of [["page", ""], ...Object.entries(pairs)]) {
      if (value) view.set(key, value);
      else view.delete(key);
    }
    keepInAddress(wordOf(section.dataset.name), String(view));
    const place = target.closest(".medium");
    const { name, dataset } = target;
    const same = name ? `[name="${name}"]` : dataset.page ? "button[data-page]:enabled" : `[data-column="${dataset.column}"]`;
    await action();
    place.querySelector(same)?.focus();
  };
  section.addEventListener("submit", (event) => event.preventDefault());
  section.addEventListener("change", ({ target }) => target.closest(".table-tools") && change({ [target.name]: target.value }, target));
  section.addEventListener("click", ({ target }) => {
    const button = target.closest("button[data-sort], button[data-page]");
    if (button) change(button.dataset.page ? { page: button.dataset.page } : { sort: button.dataset.sort }, button);
  });
}

/** Keep in the address whether one slider moves all series of the page. */
export function keepTied(box) {
  box.checked = new URLSearchParams(location.search).get("tied") === "1";
  box.addEventListener("change", () => keepInAddress("tied", box.checked ? "1" : ""));
}

/** Let an animated image be stopped at its first frame, where it begins for those who want less motion. */
function letStop(image) {
  const button = image.nextElementSibling;
  const still = document.createElement("canvas");
  still.className = image.className;
  still.role = "img";
  still.ariaLabel = image.alt;
  const toggle = () => {
    if (!image.naturalWidth) return; // it is broken
    const moves = image.isConnected;
    if (moves) {
      [still.width, still.height] = [image.naturalWidth, image.naturalHeight];
      still.getContext("2d").drawImage(image, 0, 0);
    }
    (moves ? image : still).replaceWith(moves ? still : image);
    button.textContent = moves ? "Play" : "Stop";
  };
  button.addEventListener("click", toggle);
  if (matchMedia("(prefers-reduced-motion: reduce)").matches) image.decode().then(toggle, () => {});
}

/** Let a histogram be saved, as a plot with axes, or as the bounds and the count of each bin. */
function letSave(tools) {
  const { histogram, name } = tools.dataset;
  tools.addEventListener("click", async ({ target }) => {
    const format = target.dataset.save;
    if (!format) return;
    try {
      const { edges, counts } = await fetchJson(histogram);
      const rows = counts.map((count, index) => [edges[index], edges[index + 1], count]);
      const csv = [["from", "to", "count"], ...rows].map((row) => `${row.join(",")}\n`).join("");
      const bars = { type: "bar", x: edges.slice(0, -1), y: counts, offset: 0, marker: { color: lineColour(0) } };
      bars.width = rows.map(([from, to]) => to - from);
      const layout = layoutOf({ bargap: 0, xaxis: { title: { text: name } }, yaxis: { title: { text: "count" } } });
      await save({ data: [bars], layout }, name, format, csv);
    } catch (error) {
      announce(error.message);
    }
  });
}

// ---------------------------------------------------------------------- point clouds

const clouds = new WeakMap();
// By the place of a series: each step is seen from where the one before was.
const cameras = new WeakMap();
const CAMERA = { eye: { x: 1.5, y: 1.5, z: 1.3 }, center: { x: 0, y: 0, z: -0.1 }, up: { x: 0, y: 0, z: 1 } };
// By key: how far to turn around the z axis and upwards, in radians, and by what factor to go away.
const TURNS = {
  ArrowLeft: [-0.15, 0, 1],
  ArrowRight: [0.15, 0, 1],
  ArrowUp: [0, 0.1, 1],
  ArrowDown: [0, -0.1, 1],
  "+": [0, 0, 0.85],
  "-": [0, 0, 1 / 0.85],
};
/** A point cloud, which is drawn while it is seen: browsers have few contexts of WebGL. */
class Cloud {
  constructor(place, series) {
    Object.assign(this, { place, series, isSeen: false, isDrawn: false, isBusy: false });
    this.observer = new IntersectionObserver((found) => this.look(found.at(-1).isIntersecting));
    this.observer.observe(place);
    place.addEventListener("keydown", (event) => {
      const turn = TURNS[event.key];
      if (!turn || !this.isDrawn || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      event.stopPropagation();
      this.turn(...turn);
    });
  }

  close() {
    this.observer.disconnect();
    this.look(false);
  }

  /** Draw the cloud, or free what it holds; one after the other, however often it comes into sight and goes. */
  async look(isSeen) {
    this.isSeen = isSeen;
    if (this.isBusy) return;
    this.isBusy = true;
    try {
      while (this.isSeen !== this.isDrawn) {
        if (!this.isSeen) {
          this.clear();
          continue;
        }
        this.points ??= this.fetch();
        await Promise.all([this.points, plotly()]);
        if (this.isSeen) await this.draw(await this.points);
      }
    } catch (error) {
      this.place.textContent = `It cannot be drawn: ${error.message}`;
    } finally {
      this.isBusy = false;
    }
  }

  clear() {
    window.Plotly.purge(this.place);
    this.isDrawn = false;
    delete this.place.dataset.drawn;
  }

  async fetch() {
    const { run, number, colored } = this.place.dataset;
    const answer = await get(`${root}/medium/points?${new URLSearchParams({ run, number })}`);
    const bytes = await answer.arrayBuffer();
    const count = bytes.byteLength / (colored === undefined ? 12 : 15);
    const [x, y, z] = [0, 1, 2].map((axis) => new Float32Array(bytes, 4 * axis * count, count));
    return { x, y, z, colors: colored === undefined ? null : new Uint8Array(bytes, 12 * count) };
  }

  async draw({ x, y, z, colors }) {
    const [text, dim, line] = ["--text", "--dim", "--line"].map(colour);
    const color = colors ? Array.from(x, (_, index) => `rgb(${colors.subarray(3 * index, 3 * index + 3)})`) : z;
    const axis = (name) => ({ title: { text: name }, color: dim, gridcolor: line, zerolinecolor: line, showspikes: false });
    const trace = {
      type: "scatter3d",
      mode: "markers",
      hoverinfo: "x+y+z",
      marker: { color, colorscale: "Viridis", size: x.length > 5000 ? 1.5 : 3 },
      ...{ x, y, z },
    };
    const layout = {
      paper_bgcolor: "rgba(0,0,0,0)",
      font: { size: 11.5, color: text },
      margin: { l: 0, r: 0, t: 0, b: 0 },
      scene: { xaxis: axis("x"), yaxis: axis("y"), zaxis: axis("z"), aspectmode: "auto", camera: this.camera },
    };
    const config = configOf(this.place.dataset.name, () => csvOf(x, y, z, colors));
    config.modeBarButtons[1] = ["resetCameraDefault3d"];
    await window.Plotly.newPlot(this.place, [trace], layout, config);
    this.isDrawn = true;
    this.place.on("plotly_relayout", (change) => change["scene.camera"] && cameras.set(this.series, change["scene.camera"]));
    this.place.dataset.drawn = x.length;
  }

  get camera() {
    return cameras.get(this.series) ?? CAMERA;
  }

  turn(around, upwards, factor) {
    const { x, y, z } = this.camera.eye;
    const length = Math.hypot(x, y, z);
    const azimuth = Math.atan2(y, x) + around;
    const height = Math.max(-1.5, Math.min(1.5, Math.asin(z / length) + upwards));
    const [flat, away] = [Math.cos(height), Math.max(0.05, Math.min(20, length * factor))];
    const eye = { x: away * flat * Math.cos(azimuth), y: away * flat * Math.sin(azimuth), z: away * Math.sin(height) };
    cameras.set(this.series, { ...this.camera, eye });
    window.Plotly.relayout(this.place, { "scene.camera": this.camera });
  }

  redraw() {
    if (!this.isDrawn) return;
    this.clear();
    this.look(true);
  }
}

function csvOf(x, y, z, colors) {
  const row = (index) => [x[index], y[index], z[index], ...(colors?.subarray(3 * index, 3 * index + 3) ?? [])].join(",");
  return [colors ? "x,y,z,red,green,blue" : "x,y,z", ...Array.from(x, (_, index) => row(index)), ""].join("\n");
}

onScheme(() => document.querySelectorAll(".points").forEach((one) => clouds.get(one)?.redraw()));
