"use strict";
// Matrices as pictures, and curves.
const plots = {
  svg(tag, attributes = {}, text = null) {
    const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    if (text !== null) node.textContent = text;
    return node;
  },

  // The red, green and blue of "#rrggbb".
  channels(colour) {
    return [1, 3, 5].map((start) => parseInt(colour.slice(start, start + 2), 16));
  },

  // How strong the colour of a share from 0 to 1 is: a weight of a hundredth is still to be seen.
  strength: Math.sqrt,

  // One pixel a value, from the background's colour at 0 to the accent's at `most`, and to the
  // other colour at -most. `start` is the place of the first value.
  draw(canvas, values, rows, columns, start = 0, most = 1) {
    canvas.width = columns;
    canvas.height = rows;
    const [zero, above, below] = ["background", "accent", "other"].map((name) =>
      plots.channels(page.colour(name)));
    const context = canvas.getContext("2d");
    const image = context.createImageData(columns, rows);
    for (let i = 0; i < rows * columns; i++) {
      const value = values[start + i] / most;
      const end = value < 0 ? below : above;
      const share = plots.strength(Math.min(Math.abs(value), 1));
      for (let c = 0; c < 3; c++) image.data[4 * i + c] = zero[c] + share * (end[c] - zero[c]);
      image.data[4 * i + 3] = 255;
    }
    context.putImageData(image, 0, 0);
    return canvas;
  },

  // A figure as positions.py describes it.
  figure(described) {
    const body = described.lines ? plots.curves(described) : plots.picture(described);
    const caption = page.element("figcaption", {}, described.title);
    return page.element("figure", {}, caption, body);
  },

  picture({title, values, rows, columns}) {
    const numbers = page.numbers(values);
    const most = numbers.reduce((most, value) => Math.max(most, Math.abs(value)), 1e-12);
    const name = `${title}: ${rows} downwards, ${columns} to the right, at most ${most.toFixed(3)}`;
    const canvas = page.element("canvas", {class: "picture", role: "img", "aria-label": name});
    const redraw = () => plots.draw(canvas, numbers, ...numbers.shape, 0, most);
    redraw();
    page.onTheme(redraw);
    const axes = page.element("p", {class: "quiet"}, `${rows} ↓, ${columns} →`);
    return page.element("div", {}, canvas, axes);
  },

  curves({title, lines, x, first}) {
    const [width, height, left, bottom] = [420, 200, 50, 24];
    const all = Object.entries(lines).map(([name, values]) => [name, page.numbers(values)]);
    const low = Math.min(...all.map(([, values]) => Math.min(...values)));
    const high = Math.max(...all.map(([, values]) => Math.max(...values)), low + 1e-12);
    const svg = plots.svg("svg", {viewBox: `0 0 ${width} ${height}`, role: "img", class: "curves",
      "aria-label": `${title}, from ${low.toFixed(3)} to ${high.toFixed(3)}`});
    const text = (at, y, what, anchor) => svg.append(
      plots.svg("text", {x: at, y, "text-anchor": anchor, fill: "currentColor"}, what));
    text(left - 4, 12, high.toPrecision(3), "end");
    text(left - 4, height - bottom, low.toPrecision(3), "end");
    const last = first + all[0][1].length - 1;
    text(left, height - 6, String(first), "start");
    text((left + width) / 2, height - 6, x, "middle");
    text(width - 2, height - 6, String(last), "end");
    all.forEach(([name, values], number) => {
      const points = Array.from(values, (value, i) => {
        const right = left + ((width - left) * i) / Math.max(values.length - 1, 1);
        return `${right.toFixed(1)},${(4 + ((high - value) / (high - low)) * (height - bottom - 8)).toFixed(1)}`;
      });
      const colour = `hsl(${(number * 137.5 + 210) % 360} 65% 50%)`;
      const line = plots.svg("polyline",
        {points: points.join(" "), fill: "none", stroke: colour, "stroke-width": 1.5});
      line.append(plots.svg("title", {}, name));
      svg.append(line);
    });
    return svg;
  },
};
