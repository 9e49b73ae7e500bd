// SVG: elements, and pictures of them as files.

const SVG = "http://www.w3.org/2000/svg";

/** Return a new element of SVG, in another one. */
export function node(name, attributes, parent) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  parent?.append(made);
  return made;
}

/** Return an SVG as a file of its own. */
export function asSvg(svg, ground) {
  const copy = svg.cloneNode(true);
  copy.setAttribute("xmlns", SVG);
  const rect = document.createElementNS(SVG, "rect");
  for (const [key, value] of Object.entries({ width: "100%", height: "100%", fill: ground })) rect.setAttribute(key, value);
  copy.prepend(rect);
  return new XMLSerializer().serializeToString(copy);
}

/** Return an SVG as a PNG of twice its size. */
export async function asPng(svg, ground) {
  const image = new Image();
  const url = URL.createObjectURL(new Blob([asSvg(svg, ground)], { type: "image/svg+xml" }));
  await new Promise((done, failed) => {
    image.onload = done;
    image.onerror = () => failed(new Error("the plot cannot be turned into a picture"));
    image.src = url;
  });
  URL.revokeObjectURL(url);
  const canvas = document.createElement("canvas");
  canvas.width = 2 * svg.width.baseVal.value;
  canvas.height = 2 * svg.height.baseVal.value;
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise((done) => canvas.toBlob(done, "image/png"));
}
