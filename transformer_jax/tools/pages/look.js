"use strict";
// The attention page: which text, which kind of attention, which layer and head, which token.
(() => {
  const {texts, positions, boxes} = page.data;
  const on_pictures = texts.some((text) => text.png);
  const MEAN = "mean"; // in the place of a head: the mean of its layer's
  const SHARPEST = "sharpest first", BY_LAYER = "by layer";
  const state = {text: 0, map: 0, layer: 0, head: 0, side: "query", token: 0,
    words: true, order: on_pictures ? BY_LAYER : SHARPEST};
  const button = (text, onclick, attributes = {}) =>
    page.element("button", {type: "button", onclick, ...attributes}, text);
  const step = (name, change) => () =>
    show({[name]: state[name] === MEAN ? 0 : state[name] + change});

  // The page, from top to bottom; what changes is filled in by the functions below.
  const lead = page.element("p", {class: "lead", dir: "auto", id: "finding"});
  const about = page.element("p", {class: "quiet", id: "about"});
  const line = page.element("p", {dir: "auto", id: "line"});
  const choose = page.element("select", {"aria-label": "Input", dir: "auto",
    onchange: (event) => show({text: Number(event.target.value)})});
  texts.forEach((text, number) => choose.append(
    page.element("option", {value: number}, `${number + 1}. ${text.line.slice(0, 100)}`)));
  const kinds = page.element("span", {class: "group", role: "group", "aria-label": "Attention"});
  const mean = button("Mean of heads", () => show({head: state.head === MEAN ? 0 : MEAN}));
  const whole = button("Words", () => show({words: !state.words}), {title:
    "A word's row is the mean of its pieces' rows, its column their sum"});
  const help = page.element("details", {class: "keys"}, page.element("summary", {}, "Keys"));
  for (const [key, what] of [["←", ""], ["→", "head"], ["↑", ""], ["↓", "layer"], ["m", "mean of heads"],
    [",", ""], [".", "token"], ["k", "kind"], ["p", ""], ["n", "input"], ["w", "words"],
    ["s", "save as SVG"]]) {
    help.append(page.element("kbd", {}, key), ` ${what} `);
  }
  const bar = page.element("div", {class: "bar"},
    choose, kinds, mean, whole, button("Save as SVG", save), help);
  const title = page.element("h2", {id: "one-head", "aria-live": "polite"});
  const picture = page.element("div", {});
  const said = page.element("p", {id: "said", "aria-live": "polite"});
  const queries = page.element("div", {class: "tokens", role: "group", "aria-label": "Queries"});
  const keys = page.element("div", {class: "tokens", role: "group", "aria-label": "Keys"});
  const of_memory = page.element("p", {class: "quiet"},
    "Dashed keys lie in the memory. Lines in the picture divide the segments.");
  const written = page.element("section", {});
  const order = page.element("select", {"aria-label": "Order of heads",
    onchange: (event) => show({order: event.target.value})},
    ...[SHARPEST, BY_LAYER].map((name) => page.element("option", {value: name}, name)));
  order.value = state.order;
  const grid = page.element("div", {class: "heads"});
  const note = page.element("p", {class: "quiet"});
  const attention = page.element("div", {class: "one"},
    page.element("div", {}, title, picture, note),
    page.element("div", {}, said,
      page.element("div", {class: "title"}, page.element("h3", {}, "Heads"), order), grid,
      page.element("h3", {}, "Queries: who looks"), queries,
      page.element("h3", {}, "Keys: what is looked at"), keys, of_memory));
  const table = page.element("div", {class: "scroll"});
  const sizes = page.element("section", {},
    page.element("h2", {}, "Entropy and largest logit of each head"), table);
  document.querySelector("main").append(lead, about, line, bar, attention, sizes);
  (texts[0].maps.length ? attention.lastChild : document.querySelector("main")).append(written);

  // Values of a map are decoded once, when it is first shown.
  function weights(map) {
    map.decoded ??= page.numbers(map.weights);
    return map.decoded;
  }

  // The words of a side, where pieces make some. A text that is read in segments stays in pieces.
  function divided(text, side) {
    const spans = text.segment ? null : text.spans?.[side];
    if (!spans) return null;
    text.words ??= {};
    if (!(side in text.words)) {
      const starts = words.starts(text[side], spans);
      text.words[side] = {starts, names: words.names(text[side], spans, starts)};
    }
    return text.words[side];
  }

  const inPieces = (text) => Object.keys(text.spans ?? {}).some((side) =>
    (divided(text, side)?.starts.length ?? Infinity) < text[side].length);

  // Whether a piece goes on with the word of the piece before.
  const goesOn = (text, side, piece) =>
    piece > 0 && divided(text, side)?.starts.includes(piece) === false;

  // The map that is shown: its weights and where those of the head begin in them.
  function shown(layer = state.layer, chosen = state.head) {
    const text = texts[state.text];
    const map = text.maps[state.map];
    let [layers, heads, rows, columns] = map.weights.shape;
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
    // In cross-attention a query is known by what it writes, so that the picture is an alignment.
    const sides = {query: map.columns === map.rows ? map.rows : "written", key: map.columns};
    let names = {query: text[sides.query], key: text[sides.key]};
    if (state.words && inPieces(text)) {
      const [query, key] = [divided(text, sides.query), divided(text, sides.key)];
      of_head = words.weights(of_head, start, columns, query.starts, key.starts, rows);
      names = {query: query.names, key: key.names};
      [start, rows, columns] = [0, query.starts.length, key.starts.length];
    }
    const at = (query, key) => of_head[start + query * columns + key];
    return {text, map, layers, heads, rows, columns, of_head, start, at, names, sides};
  }

  const within = (value, count) => ((value % count) + count) % count;

  // What the sharpest head of the map shows; on pictures, what is told of them.
  function find() {
    const text = texts[state.text], map = text.maps[state.map];
    if (on_pictures || !map) {
      lead.textContent = text.line;
      about.textContent = map ? "" : "This model has no attention.";
      return;
    }
    const {layer, head} = finding.sharpest(map)[0];
    [lead.textContent, about.textContent] = finding.told(map, shown(layer, head));
    line.textContent = text.line + (text.inputs && text.spans?.written ? ` → ${text.spans.written.text}` : "");
  }

  function show(changes) {
    const before = {...state};
    Object.assign(state, changes);
    state.text = within(state.text, texts.length);
    const text = texts[state.text];
    choose.value = String(state.text);
    choose.hidden = texts.length < 2;
    for (const each of [attention, sizes, mean]) each.hidden = !text.maps.length;
    kinds.hidden = text.maps.length < 2;
    whole.hidden = !text.maps.length || !inPieces(text);
    of_memory.hidden = !text.segment;
    if (!text.maps.length) {
      find(), chances();
      return;
    }
    state.map = within(state.map, text.maps.length);
    const first = !grid.children.length;
    const new_map = first || before.text !== state.text || before.map !== state.map;
    const other = new_map || before.words !== state.words;
    if (first || before.map !== state.map) {
      const [{layer, head}] = finding.sharpest(text.maps[state.map]);
      Object.assign(state, {layer, head});
    }
    const [layers, heads] = text.maps[state.map].weights.shape;
    state.layer = within(state.layer, layers);
    if (state.head !== MEAN) state.head = within(state.head, heads);
    if (on_pictures && new_map) {
      Object.assign(state, {side: "query", token: text.first[text.maps[state.map].rows]});
    } else if (other) Object.assign(state, {side: "query", token: finding.telling(shown()).query});
    const {rows, columns} = shown();
    state.token = within(state.token, state.side === "query" ? rows : columns);
    const new_token = before.side !== state.side || before.token !== state.token;
    if (other || before.order !== state.order || (on_pictures && new_token)) drawGrid();
    if (other) find();
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
    const {text, map, layers, heads} = now;
    // On a picture what the chosen token looks at, and at last the mean of a layer's heads.
    const patches = onPatches(now);
    const of_layer = [...Array(heads).keys(), ...(patches ? [MEAN] : [])];
    const sorted = state.order === SHARPEST;
    const all = sorted ? finding.sharpest(map)
      : [...Array(layers).keys()].flatMap((layer) => of_layer.map((head) => ({layer, head})));
    const across = sorted ? Math.min(12, Math.max(5, Math.ceil(Math.sqrt(2 * all.length)))) : of_layer.length;
    const width = Math.max(34, Math.min(96, Math.floor(560 / across) - 8));
    grid.style.gridTemplateColumns = `repeat(${sorted ? "auto-fill" : across}, ${width}px)`;
    grid.style.setProperty("--picture", patches ? `url(${text.png})` : ""); // "": no such property
    const buttons = all.map(({layer, head}) => {
      const view = shown(layer, head);
      const canvas = patches ? pictures.over(text, tokenWeights(view))
        : plots.draw(page.element("canvas", {"aria-hidden": "true"}), view.of_head, view.rows, view.columns,
          view.start);
      canvas.style.aspectRatio = patches ? `${text.grid[1]} / ${text.grid[0]}` : "1";
      const entropy = map.entropy[layer][head];
      const one = button(canvas, () => show({layer, head}), {
        "aria-label": `Layer ${layer + 1}, ${named(head)}`,
        title: entropy === undefined ? null : `entropy ${entropy.toFixed(2)} nats`});
      one.append(`L${layer + 1}${head === MEAN ? " mean" : `H${head + 1}`}`);
      return Object.assign(one, {layer, head});
    });
    const focused = [...grid.children].indexOf(document.activeElement);
    grid.replaceChildren(...buttons);
    if (focused >= 0) buttons[within(focused, buttons.length)].focus();
  }

  function drawTable() {
    const {map, layers, heads} = shown();
    const cell = (tag, text) => page.element(tag, {}, text);
    const head_names = Array.from({length: heads}, (_, head) => cell("th", `head ${head + 1}`));
    const body = [];
    for (let layer = 0; layer < layers; layer++) {
      const entries = map.entropy[layer].map((entropy, head) => {
        const largest = map.largest_logit?.[layer][head];
        return `${entropy.toFixed(2)}${largest === undefined ? "" : ` / ${largest.toFixed(1)}`}`;
      });
      body.push(page.element("tr", {}, cell("th", `layer ${layer + 1}`),
        ...entries.map((text) => cell("td", text))));
    }
    const about = "Mean entropy of a query's weights in nats" +
      (map.largest_logit ? " / largest logit." : ".");
    table.replaceChildren(page.element("p", {class: "quiet"}, about), page.element("table", {},
      page.element("tr", {}, cell("th", ""), ...head_names), ...body));
  }

  function drawHead() {
    const now = shown();
    title.textContent = `${now.map.name}: layer ${state.layer + 1}, ${named(state.head)}`;
    mean.setAttribute("aria-pressed", String(state.head === MEAN));
    whole.setAttribute("aria-pressed", String(state.words));
    note.textContent = on_pictures ? pictures.note : "Rows look at columns. The colour grows with the " +
      "square root of a weight." + (whole.hidden || !state.words ? "" : " Pieces are joined to words: " +
      "a word's row is the mean of its pieces' rows, its column their sum.");
    for (const one of grid.children) one.setAttribute("aria-pressed",
      String(one.layer === state.layer && one.head === state.head));
    drawPicture(now);
    drawTokens(now);
  }

  // The picture, if there is one, and a matrix where that shows more.
  function drawPicture(now) {
    const {text, map} = now;
    const scene = text.png && pictures.scene(now, state, tokenWeights(now), title.textContent, show);
    picture.replaceChildren(...(scene ? [scene] : []),
      ...(scene && map.columns === "inputs" ? [] : [matrix(now)]));
  }

  const named = (head) => (head === MEAN ? "mean of heads" : `head ${head + 1}`);

  // Whether what the chosen token looks at, or what looks at it, is patches of a picture.
  const onPatches = ({text, map}) =>
    Boolean(text.png) && (state.side === "query" ? map.columns : map.rows) === "inputs";

  // What the chosen token gives, or is given, on the other side.
  const tokenWeights = ({at, rows, columns}) => state.side === "query"
    ? Array.from({length: columns}, (_, key) => at(state.token, key))
    : Array.from({length: rows}, (_, query) => at(query, state.token));

  function drawTokens(now) {
    const {names, text, map, sides} = now;
    const shares = tokenWeights(now);
    for (const [side, list] of [["query", queries], ["key", keys]]) {
      // Patches are chosen on their picture.
      const patches = text.png && (side === "query" ? map.rows : map.columns) === "inputs";
      const listed = patches ? names[side].slice(0, text.before) : names[side];
      list.previousSibling.hidden = !listed.length;
      const buttons = listed.map((name, number) => {
        const chosen = side === state.side && number === state.token;
        const one = button(name, () => show({side, token: number}),
          {dir: "auto", "aria-pressed": String(chosen)});
        one.classList.toggle("goes-on", !state.words && goesOn(text, sides[side], number));
        one.addEventListener("mouseenter", () => shade(side, number));
        return one;
      });
      const focused = [...list.children].indexOf(document.activeElement);
      list.replaceChildren(...buttons);
      if (focused >= 0) buttons[side === state.side ? state.token : within(focused, buttons.length)]?.focus();
    }
    color(state.side, shares);
    say(now);
  }

  // While the pointer is over a token, its weights are shown; the chosen one comes back after.
  function shade(side, number) {
    const before = {side: state.side, token: state.token};
    Object.assign(state, {side, token: number});
    color(side, tokenWeights(shown()));
    say(shown());
    if (on_pictures) drawPicture(shown());
    Object.assign(state, before);
  }
  for (const list of [queries, keys]) {
    list.addEventListener("mouseleave", () => {
      color(state.side, tokenWeights(shown()));
      say(shown());
      if (on_pictures) drawPicture(shown());
    });
  }

  function color(side, shares) {
    const [list, tokens] = side === "query" ? [keys, queries] : [queries, keys];
    for (const one of tokens.children) one.style.background = "";
    [...list.children].forEach((one, number) => {
      const percent = Math.round(100 * plots.strength(Math.min(shares[number], 1)));
      one.style.background = `color-mix(in srgb, var(--accent) ${percent * 0.6}%, var(--panel))`;
      one.classList.toggle("hidden", shares[number] === 0);
      one.title = shares[number] ? shares[number].toFixed(4) : "not seen";
    });
    const {segment} = texts[state.text];
    const start = segment ? Math.floor(state.token / segment) * segment : 0;
    [...keys.children].forEach((one, number) =>
      one.classList.toggle("given", side === "query" && number < start));
  }

  // The largest weights in words, without what a mask hides (0) or what is not worth a word.
  function say({names, map, at, rows, columns}) {
    const top = (values, labels) => values.map((value, i) => [value, labels[i]])
      .sort((a, b) => b[0] - a[0]).slice(0, 5).filter(([value], i) => value >= 0.005 || (value && !i))
      .map(([value, label]) => `\u2068${label}\u2069 ${value.toFixed(2)}`).join(", ") || "nothing";
    const looks = (query) => top(Array.from({length: columns}, (_, key) => at(query, key)), names.key);
    const lookers = (key) => top(Array.from({length: rows}, (_, query) => at(query, key)), names.query);
    const name = `\u2068${names[state.side][state.token]}\u2069`;
    const parts = [];
    if (state.side === "query" || map.rows === map.columns) parts.push(`looks at ${looks(state.token)}`);
    if (state.side === "key" || map.rows === map.columns) {
      parts.push(`is looked at by ${lookers(state.token)}`);
    }
    said.textContent = `${name} ${parts.join("; ")}`;
  }

  // The head as an SVG image that holds its cells as a picture: so it can be saved as it is.
  function matrix({map, names, of_head, start, rows, columns, text}) {
    const cell = Math.max(4, Math.min(30, Math.floor(620 / Math.max(rows, columns))));
    const labelled = cell >= 8, size = Math.min(13, cell + 1);
    const longest = (side) => Math.min(160, 12 + 0.62 * size * Math.max(...names[side].map((x) => x.length)));
    const [left, top] = labelled ? [longest("query"), longest("key")] : [16, 16];
    const [width, height] = [left + columns * cell + 2, top + rows * cell + 2];
    const svg = plots.svg("svg", {viewBox: `0 0 ${width} ${height}`, width, height, class: "matrix",
      role: "img", "aria-label": title.textContent, "font-family": "sans-serif", "font-size": size});
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
    const under = (event) => {
      const box = svg.getBoundingClientRect();
      const x = Math.floor(((event.clientX - box.left) * (width / box.width) - left) / cell);
      const y = Math.floor(((event.clientY - box.top) * (height / box.height) - top) / cell);
      if (y >= 0 && y < rows) return {side: "query", token: y};
      return x >= 0 && x < columns ? {side: "key", token: x} : null;
    };
    svg.addEventListener("click", (event) => under(event) && show(under(event)));
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
    const {chances: entries, written: tokens, given} = texts[state.text];
    written.replaceChildren();
    if (!entries?.length) return;
    const details = page.element("p", {id: "runners-up", "aria-live": "polite"});
    const list = page.element("div", {class: "tokens", role: "group", "aria-label": "Written tokens"});
    const tell = (number) => () => {
      const {probability, rank, best} = entries[number];
      const others = best.map(([name, p]) => `\u2068${name}\u2069 ${p.toFixed(4)}`).join(", ");
      details.textContent =
        `\u2068${tokens[number]}\u2069: probability ${probability.toFixed(4)}, rank ${rank}. ` +
        `Likeliest: ${others}`;
    };
    entries.forEach(({probability}, number) => {
      const one = button(tokens[number], tell(number), {dir: "auto",
        class: number < given ? "given" : null, title: probability.toFixed(4)});
      one.classList.toggle("goes-on", goesOn(texts[state.text], "written", number));
      one.addEventListener("mouseenter", tell(number));
      const percent = Math.round(100 * probability);
      one.style.background = `color-mix(in srgb, var(--other) ${0.6 * (100 - percent)}%, var(--panel))`;
      list.append(one);
    });
    const note = given ? " The dashed tokens were given." : "";
    written.append(page.element("h3", {}, "What it writes"), page.element("p", {class: "quiet"},
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
    m: () => mean.click(), w: () => whole.click(), s: save,
    k: step("map", 1), n: step("text", 1), p: step("text", -1),
    ",": step("token", -1), ".": step("token", 1),
  });
  page.onTheme(() => {
    if (texts[state.text].maps.length) drawGrid(), drawHead();
  });
  show({map: Math.max(0, texts[0].maps.length - 1)}); // cross-attention, where there is some
})();
