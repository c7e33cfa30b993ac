"use strict";
// Pictures under attention: what patches and queries look at, and what is told of them.
const pictures = {
  // Seen on dark and on bright pictures, whatever the page's colours are.
  heat: "#ff3d00",
  chosen: "#00c8ff",
  note: "On pictures the colour is full at the largest weight, and the last map of a row is the " +
    "mean of the layer's heads; elsewhere the colour grows with the square root of a weight. " +
    "Click on a patch, called (row, column), or on a box.",

  // A view of an image gets what that of a text has: the names of its tokens, and a line on it.
  // `first` is the token that is chosen first: of a set the surest query, or the patch there.
  name(view) {
    const {labels, least} = page.data;
    const [rows, columns] = view.grid;
    const caption = ({label, share}) => `${label} (${share.toFixed(2)})`;
    const surest_first = (a, b) => b.share - a.share;
    const best = view.logits.map((row) => {
      const largest = Math.max(...row);
      const powers = row.map((logit) => Math.exp(logit - largest));
      const total = powers.reduce((sum, power) => sum + power);
      return labels.map((label, i) => ({label, share: powers[i] / total})).sort(surest_first);
    });
    view.inputs = Array.from({length: view.before + rows * columns}, (_, number) => {
      const patch = number - view.before;
      if (patch < 0) return number ? `register ${number}` : "class token";
      return `(${Math.floor(patch / columns) + 1}, ${(patch % columns) + 1})`;
    });
    let guesses = best[0].slice(0, 5).filter(({share}) => share >= 0.01);
    view.first = {inputs: 0};
    if (view.boxes.length) {
      const firsts = best.map(([first]) => first);
      view.targets = view.written = firsts.map((one, number) => `${number + 1}: ${caption(one)}`);
      view.sure = firsts.map(({share}) => share >= least);
      guesses = firsts.filter(({share}) => share >= least).sort(surest_first);
      const targets = firsts.indexOf([...firsts].sort(surest_first)[0]);
      const [x, y] = view.boxes[targets];
      const [row, column] = [[y, rows], [x, columns]].map(([share, count]) =>
        Math.min(Math.floor(share * count), count - 1));
      view.first = {inputs: view.before + row * columns + column, targets};
    }
    view.line += `: ${guesses.map(caption).join(", ") || "nothing"}`;
  },

  // The weights of patches as colour to lay over their picture.
  over({grid: [rows, columns], before}, weights) {
    const canvas = page.element("canvas", {width: columns, height: rows, "aria-hidden": "true"});
    const of_patches = weights.slice(before);
    const most = Math.max(...of_patches, 1e-12);
    const context = canvas.getContext("2d");
    context.fillStyle = pictures.heat;
    of_patches.forEach((weight, patch) => {
      context.globalAlpha = (0.7 * weight) / most;
      context.fillRect(patch % columns, Math.floor(patch / columns), 1, 1);
    });
    return canvas;
  },

  // The picture, what the chosen token gives, or is given (`weights`), and boxes, as an SVG image.
  scene({text, map}, {side, token}, weights, title, show) {
    const [rows, columns] = text.grid;
    const cell = 480 / Math.max(rows, columns);
    const [width, height] = [columns * cell, rows * cell];
    const [kind, other] = side === "query" ? [map.rows, map.columns] : [map.columns, map.rows];
    const svg = plots.svg("svg", {viewBox: `0 0 ${width} ${height}`, width, height, class: "scene",
      role: "img", "aria-label": title, "font-family": "sans-serif", "font-size": 13});
    for (const href of [text.png, other === "inputs" && pictures.over(text, weights).toDataURL()]) {
      if (href) svg.append(plots.svg("image", {width, height, href, preserveAspectRatio: "none",
        style: "image-rendering: pixelated"}));
    }
    const outline = (parent, place, colour, more = {}) => {
      const rect = {...place, fill: "none", "stroke-width": 2};
      parent.append(plots.svg("rect", {...rect, stroke: "black", "stroke-width": 5, opacity: 0.5}),
        plots.svg("rect", {...rect, stroke: colour, ...more}));
    };
    const patch = token - text.before;
    if (kind === "inputs" && patch >= 0) {
      const [x, y] = [(patch % columns) * cell, Math.floor(patch / columns) * cell];
      outline(svg, {x, y, width: cell, height: cell}, pictures.chosen);
    }
    svg.addEventListener("click", (event) => {
      if (map.columns !== "inputs") return;
      const box = svg.getBoundingClientRect();
      const row = Math.floor(((event.clientY - box.top) / box.height) * rows);
      const column = Math.floor(((event.clientX - box.left) / box.width) * columns);
      show({side: map.rows === "inputs" ? "query" : "key", token: text.before + row * columns + column});
    });
    // The sure boxes and the chosen one, which lies on top, small ones on large ones.
    const chosen = (number) => kind === "targets" && number === token;
    const area = (number) => text.boxes[number][2] * text.boxes[number][3];
    const numbers = [...text.boxes.keys()].filter((number) => text.sure[number] || chosen(number))
      .sort((a, b) => chosen(a) - chosen(b) || area(b) - area(a));
    for (const number of map.rows === "targets" ? numbers : []) {
      const [x, y, w, h] = text.boxes[number];
      const place = {x: (x - w / 2) * width, y: (y - h / 2) * height,
        width: w * width, height: h * height};
      const group = plots.svg("g", {style: "cursor: pointer"});
      const colour = chosen(number) ? pictures.chosen : "white";
      const share = other === "targets" ? weights[number] / Math.max(...weights, 1e-12) : 0;
      outline(group, place, colour, {fill: pictures.heat, "fill-opacity": 0.7 * share,
        "stroke-dasharray": text.sure[number] ? "none" : "6 4"});
      group.append(plots.svg("text", {x: Math.max(place.x, 2), y: Math.max(place.y - 5, 13),
        fill: colour, stroke: "black", "stroke-width": 3, "paint-order": "stroke"}, text.written[number]));
      group.addEventListener("click", (event) => {
        event.stopPropagation();
        show({side: "query", token: number});
      });
      svg.append(group);
    }
    return svg;
  },

  // What each place has to do with all, as a tile for each, from the least value to the largest
  // (Dosovitskiy et al. 2021, figure 7).
  figure({title, values, tiles: [rows, columns]}) {
    const numbers = page.numbers(values);
    const least = numbers.reduce((a, b) => Math.min(a, b));
    const most = numbers.reduce((a, b) => Math.max(a, b), least + 1e-6);
    const [high, wide, places] = [rows * (rows + 1) - 1, columns * (columns + 1) - 1, rows * columns];
    const tiled = new Float32Array(high * wide);
    numbers.forEach((value, i) => {
      const [tile, place] = [Math.floor(i / places), i % places];
      const row = Math.floor(tile / columns) * (rows + 1) + Math.floor(place / columns);
      const column = (tile % columns) * (columns + 1) + (place % columns);
      tiled[row * wide + column] = ((value - least) / (most - least)) ** 2; // its root is drawn
    });
    const range = `from ${least.toFixed(3)} to ${most.toFixed(3)}`;
    const canvas = page.element("canvas",
      {class: "tiles", role: "img", "aria-label": `${title}, ${range}`});
    const draw = () => plots.draw(canvas, tiled, high, wide);
    draw();
    page.onTheme(draw);
    return page.element("figure", {}, page.element("figcaption", {}, title), canvas,
      page.element("p", {class: "quiet"}, `The colour grows ${range}.`));
  },

  // The centres of each query's boxes in images of validation (Carion et al. 2020, figure 7).
  centres(encoded) {
    const values = page.numbers(encoded);
    const [queries, count] = values.shape;
    return Array.from({length: queries}, (_, query) => {
      const title = `Query ${query + 1}`;
      const canvas = page.element("canvas", {width: 150, height: 150, class: "centres", role: "img",
        "aria-label": `Centres of the boxes of ${title}`});
      const draw = () => {
        const context = canvas.getContext("2d");
        const [small, wide, tall] = ["quiet", "other", "accent"].map(page.colour);
        context.clearRect(0, 0, 150, 150);
        for (let i = query * count; i < (query + 1) * count; i++) {
          const [x0, y0, x1, y1] = values.subarray(4 * i, 4 * i + 4);
          const [width, height] = [x1 - x0, y1 - y0];
          context.fillStyle = width * height < 1 / 16 ? small : width > height ? wide : tall;
          context.fillRect(75 * (x0 + x1) - 1.5, 75 * (y0 + y1) - 1.5, 3, 3);
        }
      };
      draw();
      page.onTheme(draw);
      return page.element("figure", {}, page.element("figcaption", {}, title), canvas);
    });
  },
};
page.data.texts.forEach(pictures.name);
