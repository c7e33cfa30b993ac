"use strict";
// The attention page: which text, which kind of attention, which layer and head, which token.
(() => {
  const {texts, positions, boxes} = page.data;
  const on_pictures = texts.some((text) => text.png);
  const MEAN = "mean"; // in the place of a head: the mean of its layer's
  const state = {text: 0, map: 0, layer: 0, head: 0, side: "query", token: 0};
  const place = (...children) => page.element("div", {class: "row"}, ...children);
  const button = (text, onclick, attributes = {}) =>
    page.element("button", {type: "button", onclick, ...attributes}, text);

  // The page, from top to bottom; what changes is filled in by the functions below.
  const choose = page.element("select", {"aria-label": "Input", dir: "auto",
    onchange: (event) => show({text: Number(event.target.value)})});
  texts.forEach(({line}, number) => {
    const option = page.element("option", {value: number}, `${number + 1}. ${line.slice(0, 100)}`);
    choose.append(option);
  });
  const line = page.element("p", {dir: "auto", id: "line"});
  const kinds = place();
  const grid = page.element("div", {class: "heads"});
  const title = page.element("h2", {id: "one-head", "aria-live": "polite"});
  const picture = page.element("div", {});
  const said = page.element("p", {id: "said", "aria-live": "polite"});
  const queries = page.element("div", {class: "tokens", role: "group", "aria-label": "Queries"});
  const keys = page.element("div", {class: "tokens", role: "group", "aria-label": "Keys"});
  const of_memory = page.element("p", {class: "quiet"},
    "Dashed keys lie in the memory. Lines in the picture divide the segments.");
  const written = page.element("section", {});
  const table = page.element("div", {});
  const step = (name, change) => () =>
    show({[name]: state[name] === MEAN ? 0 : state[name] + change});
  const help = page.element("p", {class: "quiet"});
  for (const [key, what] of [["←", ""], ["→", "head"], ["↑", ""], ["↓", "layer"], ["m", "mean of heads"],
    [",", ""], [".", "token"], ["k", "kind"], ["p", ""], ["n", "input"], ["s", "save as SVG"]]) {
    help.append(page.element("kbd", {}, key), ` ${what} `);
  }
  // What there is of each kind of attention.
  const attention = page.element("section", {},
    kinds, help, page.element("h2", {}, "All layers and heads"), grid,
    page.element("p", {class: "quiet"}, on_pictures ? pictures.note
      : "The colour grows with the square root of a weight."),
    title,
    place(button("Previous layer", step("layer", -1)), button("Next layer", step("layer", 1)),
      button("Previous head", step("head", -1)), button("Next head", step("head", 1)),
      button("Mean of heads", () => show({head: MEAN})), button("Save as SVG", save)),
    page.element("div", {class: "one"}, picture, page.element("div", {class: "lists"},
      page.element("h3", {}, "Queries: who looks"), queries,
      page.element("h3", {}, "Keys: what is looked at"), keys, of_memory, said)));
  const sizes = page.element("section", {},
    page.element("h2", {}, "Entropy and largest logit of each head"), table);
  const none = page.element("p", {}, "This model has no attention.");
  document.querySelector("main").append(
    place(button("Previous input", step("text", -1)), choose, button("Next input", step("text", 1))),
    line, none, attention, written, sizes);

  // Values of a map are decoded once, when it is first shown.
  function weights(map) {
    map.decoded ??= page.numbers(map.weights);
    return map.decoded;
  }

  // The map that is shown: its weights and where those of the head begin in them.
  function shown(layer = state.layer, chosen = state.head) {
    const text = texts[state.text];
    const map = text.maps[state.map];
    const [layers, heads, rows, columns] = map.weights.shape;
    const values = weights(map);
    const size = rows * columns;
    let start = (layer * heads + chosen) * size;
    let of_head = values;
    if (chosen === MEAN) {
      of_head = new Float32Array(size);
      for (let head = 0; head < heads; head++) {
        const first = (layer * heads + head) * size;
        for (let i = 0; i < size; i++) of_head[i] += values[first + i] / heads;
      }
      start = 0;
    }
    const at = (query, key) => of_head[start + query * columns + key];
    // In cross-attention a query is known by what it writes, so that the picture is an alignment.
    const names = {
      query: map.columns === map.rows ? text[map.rows] : text.written,
      key: text[map.columns],
    };
    return {text, map, layers, heads, rows, columns, of_head, start, at, names};
  }

  const within = (value, count) => ((value % count) + count) % count;

  function show(changes) {
    const before = {...state};
    Object.assign(state, changes);
    state.text = within(state.text, texts.length);
    const {maps} = texts[state.text];
    line.textContent = texts[state.text].line;
    choose.value = String(state.text);
    none.hidden = maps.length > 0;
    attention.hidden = sizes.hidden = !maps.length;
    of_memory.hidden = !texts[state.text].segment;
    if (!maps.length) {
      chances();
      return;
    }
    state.map = within(state.map, maps.length);
    const [layers, heads] = maps[state.map].weights.shape;
    state.layer = within(state.layer, layers);
    if (state.head !== MEAN) state.head = within(state.head, heads);
    const new_map = before.text !== state.text || before.map !== state.map || !grid.children.length;
    if (on_pictures && new_map) {
      Object.assign(state, {side: "query", token: texts[state.text].first[maps[state.map].rows]});
    }
    const {rows, columns} = shown();
    state.token = within(state.token, state.side === "query" ? rows : columns);
    const new_token = before.side !== state.side || before.token !== state.token;
    if (new_map || (on_pictures && new_token)) drawGrid();
    if (new_map) drawKinds(), drawTable(), chances();
    drawHead();
  }

  function drawKinds() {
    const focused = kinds.contains(document.activeElement);
    kinds.replaceChildren(...texts[state.text].maps.map((map, number) =>
      button(map.name, () => show({map: number}), {"aria-pressed": String(number === state.map)})));
    if (focused) kinds.children[state.map].focus();
  }

  function drawGrid() {
    const now = shown();
    const {text, map, layers, heads, rows, columns} = now;
    // On a picture what the chosen token looks at, and at last the mean of a layer's heads.
    const patches = onPatches(now);
    const of_layer = [...Array(heads).keys(), ...(patches ? [MEAN] : [])];
    const width = Math.max(28, Math.min(110, Math.floor(1200 / of_layer.length) - 8));
    grid.style.gridTemplateColumns = `repeat(${of_layer.length}, ${width}px)`;
    grid.style.setProperty("--picture", patches ? `url(${text.png})` : ""); // "": no such property
    const made = [];
    for (let layer = 0; layer < layers; layer++) {
      for (const head of of_layer) {
        const canvas = patches ? pictures.over(text, given(shown(layer, head)))
          : plots.draw(page.element("canvas", {"aria-hidden": "true"}), weights(map), rows, columns,
            (layer * heads + head) * rows * columns);
        const one = button("", () => show({layer, head}),
          {"aria-label": `Layer ${layer + 1}, ${named(head)}`});
        one.style.height = `${patches ? (width * text.grid[0]) / text.grid[1] : width}px`;
        one.append(canvas);
        made.push(Object.assign(one, {layer, head}));
      }
    }
    const focused = [...grid.children].indexOf(document.activeElement);
    grid.replaceChildren(...made);
    if (focused >= 0) made[within(focused, made.length)].focus();
  }

  function drawTable() {
    const {map, layers, heads} = shown();
    const cell = (tag, text) => page.element(tag, {}, text);
    const head_names = Array.from({length: heads}, (_, head) => cell("th", `head ${head + 1}`));
    const body = [];
    for (let layer = 0; layer < layers; layer++) {
      const found = map.entropy[layer].map((entropy, head) => {
        const largest = map.largest_logit?.[layer][head];
        return `${entropy.toFixed(2)}${largest === undefined ? "" : ` / ${largest.toFixed(1)}`}`;
      });
      body.push(page.element("tr", {}, cell("th", `layer ${layer + 1}`),
        ...found.map((text) => cell("td", text))));
    }
    const note = "Mean entropy of a query's weights in nats" +
      (map.largest_logit ? " / largest logit." : ".");
    table.replaceChildren(page.element("p", {class: "quiet"}, note), page.element("table", {},
      page.element("tr", {}, cell("th", ""), ...head_names), ...body));
  }

  function drawHead() {
    const now = shown();
    title.textContent = `${now.map.name}: layer ${state.layer + 1}, ${named(state.head)}`;
    for (const one of grid.children) one.setAttribute("aria-pressed",
      String(one.layer === state.layer && one.head === state.head));
    drawPicture(now);
    drawTokens(now);
  }

  // The picture, if there is one, and a matrix where that shows more.
  function drawPicture(now) {
    const {text, map} = now;
    const scene = text.png && pictures.scene(now, state, given(now), title.textContent, show);
    picture.replaceChildren(...(scene ? [scene] : []),
      ...(scene && map.columns === "inputs" ? [] : [matrix(now)]));
  }

  const named = (head) => (head === MEAN ? "mean of heads" : `head ${head + 1}`);

  // Whether what the chosen token looks at, or what looks at it, is patches of a picture.
  const onPatches = ({text, map}) =>
    Boolean(text.png) && (state.side === "query" ? map.columns : map.rows) === "inputs";

  // What the chosen token gives, or is given, on the other side.
  const given = ({at, rows, columns}) => state.side === "query"
    ? Array.from({length: columns}, (_, key) => at(state.token, key))
    : Array.from({length: rows}, (_, query) => at(query, state.token));

  function drawTokens(now) {
    const {names, text, map} = now;
    const found = given(now);
    for (const [side, list] of [["query", queries], ["key", keys]]) {
      // Patches are chosen on their picture.
      const patches = text.png && (side === "query" ? map.rows : map.columns) === "inputs";
      const listed = patches ? names[side].slice(0, text.before) : names[side];
      list.previousSibling.hidden = !listed.length;
      const made = listed.map((name, number) => {
        const chosen = side === state.side && number === state.token;
        const one = button(name, () => show({side, token: number}),
          {dir: "auto", "aria-pressed": String(chosen)});
        one.addEventListener("mouseenter", () => shade(side, number));
        return one;
      });
      const focused = [...list.children].indexOf(document.activeElement);
      list.replaceChildren(...made);
      if (focused >= 0) made[side === state.side ? state.token : within(focused, made.length)]?.focus();
    }
    color(state.side, found);
    say(now);
  }

  // While the pointer is over a token, its weights are shown; the chosen one comes back after.
  function shade(side, number) {
    const before = {side: state.side, token: state.token};
    Object.assign(state, {side, token: number});
    color(side, given(shown()));
    say(shown());
    if (on_pictures) drawPicture(shown());
    Object.assign(state, before);
  }
  for (const list of [queries, keys]) {
    list.addEventListener("mouseleave", () => {
      color(state.side, given(shown()));
      say(shown());
      if (on_pictures) drawPicture(shown());
    });
  }

  function color(side, found) {
    const [list, own] = side === "query" ? [keys, queries] : [queries, keys];
    for (const one of own.children) one.style.background = "";
    [...list.children].forEach((one, number) => {
      const percent = Math.round(100 * plots.strength(Math.min(found[number], 1)));
      one.style.background = `color-mix(in srgb, var(--accent) ${percent * 0.6}%, var(--panel))`;
      one.title = found[number].toFixed(4);
    });
    const {segment} = texts[state.text];
    const start = segment ? Math.floor(state.token / segment) * segment : 0;
    [...keys.children].forEach((one, number) =>
      one.classList.toggle("given", side === "query" && number < start));
  }

  // The largest weights in words.
  function say({names, map, at, rows, columns}) {
    const top = (values, labels) => values.map((value, i) => [value, labels[i]])
      .sort((a, b) => b[0] - a[0]).slice(0, 5)
      .map(([value, label]) => `\u2068${label}\u2069 ${value.toFixed(2)}`).join(", ");
    const looks = (query) => top(Array.from({length: columns}, (_, key) => at(query, key)), names.key);
    const seen = (key) => top(Array.from({length: rows}, (_, query) => at(query, key)), names.query);
    const own = `\u2068${names[state.side][state.token]}\u2069`;
    const parts = [];
    if (state.side === "query" || map.rows === map.columns) parts.push(`looks at ${looks(state.token)}`);
    if (state.side === "key" || map.rows === map.columns) {
      parts.push(`is looked at by ${seen(state.token)}`);
    }
    said.textContent = `${own} ${parts.join("; ")}`;
  }

  // The head as an SVG image that holds its cells as a picture: so it can be saved as it is.
  function matrix({map, names, of_head, start, rows, columns, text}) {
    const cell = Math.max(4, Math.min(26, Math.floor(620 / Math.max(rows, columns))));
    const labelled = cell >= 7;
    const longest = (side) => Math.min(160, 12 + 7 * Math.max(...names[side].map((x) => x.length)));
    const [left, top] = labelled ? [longest("query"), longest("key")] : [16, 16];
    const [width, height] = [left + columns * cell + 2, top + rows * cell + 2];
    const svg = plots.svg("svg", {viewBox: `0 0 ${width} ${height}`, width, height, class: "matrix",
      role: "img", "aria-label": title.textContent, "font-family": "sans-serif", "font-size": 11});
    const ink = page.colour("text");
    svg.append(plots.svg("rect", {width, height, fill: page.colour("background")}));
    const canvas = plots.draw(document.createElement("canvas"), of_head, rows, columns, start);
    svg.append(plots.svg("image", {x: left, y: top, width: columns * cell, height: rows * cell,
      href: canvas.toDataURL(), preserveAspectRatio: "none", style: "image-rendering: pixelated"}));
    const frame = (x, y, width, height) => svg.append(plots.svg("rect",
      {x, y, width, height, fill: "none", stroke: page.colour("other"), "stroke-width": 1.5}));
    if (state.side === "query") frame(left, top + state.token * cell, columns * cell, cell);
    else frame(left + state.token * cell, top, cell, rows * cell);
    for (let row = text.segment; row < rows; row += text.segment ?? Infinity) {
      const y = top + row * cell; // where a segment with memory begins
      svg.append(plots.svg("line", {x1: left, x2: left + columns * cell, y1: y, y2: y,
        stroke: page.colour("other"), "stroke-width": 1.5}));
    }
    if (labelled) {
      const short = (name) => (name.length > 20 ? `${name.slice(0, 19)}…` : name);
      names.query.forEach((name, i) => svg.append(plots.svg("text",
        {x: left - 4, y: top + (i + 0.5) * cell + 4, "text-anchor": "end", fill: ink}, short(name))));
      names.key.forEach((name, i) => {
        const [x, y] = [left + (i + 0.5) * cell + 4, top - 4];
        svg.append(plots.svg("text", {x, y, transform: `rotate(-90 ${x} ${y})`, fill: ink}, short(name)));
      });
    }
    svg.addEventListener("click", (event) => {
      const box = svg.getBoundingClientRect();
      const x = Math.floor(((event.clientX - box.left) * (width / box.width) - left) / cell);
      const y = Math.floor(((event.clientY - box.top) * (height / box.height) - top) / cell);
      if (y >= 0 && y < rows) show({side: "query", token: y});
      else if (x >= 0 && x < columns) show({side: "key", token: x});
    });
    return svg;
  }

  function save() {
    const svg = picture.querySelector("svg");
    if (!svg) return;
    const xml = new XMLSerializer().serializeToString(svg);
    page.save(`${title.textContent.replace(/\W+/g, "_")}.svg`, "image/svg+xml", xml);
  }

  // Each token that was written, how likely it was, and what else might have come.
  function chances() {
    const {chances: found, written: tokens, given} = texts[state.text];
    written.replaceChildren();
    if (!found?.length) return;
    const details = page.element("p", {id: "runners-up", "aria-live": "polite"});
    const list = page.element("div", {class: "tokens", role: "group", "aria-label": "Written tokens"});
    const tell = (number) => () => {
      const {probability, rank, best} = found[number];
      const others = best.map(([name, p]) => `\u2068${name}\u2069 ${p.toFixed(4)}`).join(", ");
      details.textContent =
        `\u2068${tokens[number]}\u2069: probability ${probability.toFixed(4)}, rank ${rank}. ` +
        `Likeliest: ${others}`;
    };
    found.forEach(({probability}, number) => {
      const one = button(tokens[number], tell(number), {dir: "auto",
        class: number < given ? "given" : null, title: probability.toFixed(4)});
      one.addEventListener("mouseenter", tell(number));
      const percent = Math.round(100 * probability);
      one.style.background = `color-mix(in srgb, var(--other) ${0.6 * (100 - percent)}%, var(--panel))`;
      list.append(one);
    });
    const note = given ? " The dashed tokens were given." : "";
    written.append(page.element("h2", {}, "What it writes"), page.element("p", {class: "quiet"},
      `The more colour, the less likely each token was.${note}`), list, details);
    tell(0)();
  }

  function section(title, about, figures) {
    document.querySelector("main").append(page.element("h2", {}, title), ...about,
      page.element("div", {class: "figures"}, ...figures));
  }
  if (boxes) {
    const about = "Centres in images of validation, of boxes that are small (grey, below a " +
      "sixteenth of the image), wide (orange) and tall (blue).";
    section("Where each query's boxes lie", [page.element("p", {class: "quiet"}, about)],
      pictures.centres(boxes));
  }
  if (positions.length) {
    section("Positions", [], positions.map((one) => (one.tiles ? pictures : plots).figure(one)));
  }
  page.keys({
    ArrowLeft: step("head", -1), ArrowRight: step("head", 1),
    ArrowUp: step("layer", -1), ArrowDown: step("layer", 1),
    m: () => show({head: MEAN}), k: step("map", 1), n: step("text", 1), p: step("text", -1),
    ",": step("token", -1), ".": step("token", 1), s: save,
  });
  page.onTheme(() => {
    if (texts[state.text].maps.length) drawGrid(), drawHead();
  });
  show({map: texts[0].boxes?.length ? texts[0].maps.length - 1 : 0}); // of a set its queries
})();
