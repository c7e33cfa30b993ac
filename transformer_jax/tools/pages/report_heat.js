"use strict";
// A picture of values by depth (upwards) and step (to the right), dark to bright.
const CIVIDIS = [[0, 32, 77], [65, 77, 107], [124, 123, 120], [188, 175, 111], [255, 234, 70]];

// Draws it, and returns what its colours mean, for a legend.
function heat(canvas, {steps, values}) {
  const depths = values[0].length, finite = values.flat().filter((value) => value !== null);
  const low = finite.reduce((a, b) => Math.min(a, b), Infinity);
  const high = finite.reduce((a, b) => Math.max(a, b), -Infinity);
  const logarithmic = low > 0 && high / low > 100;
  const scaled = (value) => (logarithmic ? Math.log(value) : value);
  const span = scaled(high) - scaled(low) || 1;
  canvas.width = steps.length;
  canvas.height = depths;
  const context = canvas.getContext("2d"), image = context.createImageData(steps.length, depths);
  values.forEach((row, column) => row.forEach((value, depth) => {
    const at = 4 * ((depths - 1 - depth) * steps.length + column);
    const colour = value === null ? [200, 0, 60] : shade((scaled(value) - scaled(low)) / span);
    image.data.set([...colour, 255], at);
  }));
  context.putImageData(image, 0, 0);
  const ramp = `linear-gradient(90deg, ${CIVIDIS.map((colour) => `rgb(${colour})`).join(", ")})`;
  const notes = [logarithmic && "logarithmic", finite.length < values.flat().length && "red: not finite"];
  const note = notes.filter(Boolean).join("; ");
  return [charts.short(low), page.element("span", {class: "scale", style: `background: ${ramp}`}),
    charts.short(high), note && ` (${note})`].filter(Boolean);
}

// The picture between its axes: whole depths at the left, the first and the last step below.
function axes(canvas, {steps, values}, depth) {
  const count = values[0].length, stride = Math.ceil(count / 10);
  const ticks = Array.from({length: Math.ceil(count / stride)}, (_, at) => at * stride);
  const depths = page.element("div", {class: "depths quiet", "aria-hidden": "true"},
    ...ticks.map((at) => page.element("span", {style: `bottom: ${(100 * (at + 0.5)) / count}%`}, at + 1)),
    page.element("span", {}, depth));
  const below = page.element("div", {class: "steps quiet", "aria-hidden": "true"},
    page.element("span", {}, steps[0].toLocaleString("en")), page.element("span", {}, "step"),
    page.element("span", {}, steps.at(-1).toLocaleString("en")));
  return [depths, canvas, below];
}

function shade(share) {
  const place = Math.max(0, Math.min(1, share)) * (CIVIDIS.length - 1);
  const below = Math.min(CIVIDIS.length - 2, Math.floor(place)), part = place - below;
  return CIVIDIS[below].map((from, i) => Math.round(from + part * (CIVIDIS[below + 1][i] - from)));
}

// The step's number and the depth that are under the mouse.
function cell(canvas, {steps, values}, event) {
  const box = canvas.getBoundingClientRect();
  const inside = (share, count) => Math.max(0, Math.min(count - 1, Math.floor(share * count)));
  const column = inside((event.clientX - box.left) / box.width, steps.length);
  const depth = inside((box.bottom - event.clientY) / box.height, values[0].length);
  return [column, depth];
}
