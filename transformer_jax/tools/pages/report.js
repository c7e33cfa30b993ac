"use strict";
// A report of runs: the finding, curves, results, what happens by depth, samples, configs, outcomes.
const report = (() => {
  const {data, element} = page;
  const first = "validation/token_loss" in data.curves ? "validation/token_loss" : "validation/loss";
  const fixed_names = [first, "train/token_loss", "train/learning_rate", "train/gradient_norm"];
  const main = document.querySelector("main");
  const redrawn = []; // what is drawn anew when something is chosen
  // Measured values come as one array: a row a step, a column a depth.
  for (const run of data.runs) {
    for (const curve of Object.values(run.diagnostics)) {
      const all = page.numbers(curve.values), depths = all.shape[1];
      curve.values = curve.steps.map((_, row) =>
        Array.from(all.subarray(row * depths, (row + 1) * depths), (x) => (Number.isFinite(x) ? x : null)));
    }
  }
  const redraw = () => redrawn.forEach((draw) => draw());

  const button = (text, pressed, press) => {
    const node = element("button", {type: "button", "aria-pressed": String(pressed)}, text);
    node.addEventListener("click", () => {
      const now = node.getAttribute("aria-pressed") !== "true";
      node.setAttribute("aria-pressed", String(now));
      press(now);
      redraw();
    });
    return node;
  };

  const select = (label, names, choose) => {
    const options = names.map((name, at) => element("option", {value: at}, name));
    const node = element("select", {}, ...options);
    node.addEventListener("change", () => choose(Number(node.value)));
    return element("label", {}, `${label} `, node);
  };

  const section = (title, ...children) =>
    main.append(element("section", {"aria-label": title}, element("h2", {}, title), ...children));

  // kind "stack": on a phone each row is a list.
  const table = (head, rows, kind = "stack") =>
    element("div", {class: "scroll", tabindex: "0"}, element("table", {class: kind},
      element("thead", {}, element("tr", {}, ...head.map((text) => element("th", {scope: "col", dir: "auto"}, text)))),
      element("tbody", {}, ...rows.map(([first, ...rest]) => element("tr", {},
        element("th", {scope: "row", dir: "auto"}, first),
        ...rest.map((text, at) => element("td", {dir: "auto", "data-column": head[at + 1]}, text)))))));

  // A table whose longer side runs downwards.
  function turned(head, rows) {
    if (rows.length >= head.length - 1) return table(head, rows);
    const all = [head, ...rows];
    const [first, ...others] = head.map((_, column) => all.map((row) => row[column] ?? ""));
    return table(first, others);
  }

  // The finding, and how many runs it is of.
  function finding() {
    const count = {};
    for (const {status} of data.runs) count[status] = (count[status] ?? 0) + 1;
    const states = Object.entries(count).map(([status, number]) => `${number} ${status}`).join(", ");
    const runs = `${data.runs.length} run${data.runs.length > 1 ? "s" : ""}`;
    const groups = data.groups.length < data.runs.length ? ` in ${data.groups.length} groups` : "";
    main.append(element("p", {class: "lead", dir: "auto"}, data.finding),
      element("p", {class: "quiet", dir: "auto"}, `${runs}${groups}: ${states}.`));
  }

  function outcomes() {
    const cells = (row) => data.runs.map((run) => [run.name, row(run)]);
    section("What became of the runs", table(["run", "outcome"], cells((run) => run.outcome.join("\n")), "texts"),
      element("details", {}, element("summary", {class: "quiet"}, "Folders"),
        table(["run", "folder"], cells((run) => run.folder), "texts")));
  }

  function results() {
    section("Results", turned(["", ...data.groups.map((group) => group.name)], data.scores),
      element("p", {class: "quiet"}, data.convention));
  }

  function configs() {
    const rows = data.config.filter((row) => row.length > 1);
    const same = data.runs.length > 1 ? "All runs have the same config." : "There is one run.";
    section("Settings that differ", rows.length
      ? turned(["", ...data.groups.map((group) => group.name)], rows)
      : element("p", {class: "quiet"}, same));
  }

  function groupButtons() {
    const buttons = data.groups.map((group, number) => {
      const node = button("", true, (on) => charts.hidden[on ? "delete" : "add"](number));
      node.className = "shown";
      redrawn.push(() => node.replaceChildren(charts.swatch(charts.colour(number), charts.dash(number)),
        element("bdi", {}, group.name)));
      return node;
    });
    const all = (on) => element("button", {type: "button", onclick: () => {
      buttons.forEach((each, number) => {
        each.setAttribute("aria-pressed", String(on));
        charts.hidden[on ? "delete" : "add"](number);
      });
      redraw();
    }}, on ? "Show all" : "Hide all");
    return buttons.length > 1 ? [...buttons, all(true), all(false)] : buttons;
  }

  function curves() {
    const names = Object.keys(data.curves);
    if (!names.length) {
      section("Curves", element("p", {}, "Nothing has been logged yet."));
      return;
    }
    const seeds = data.groups.some((group) => group.runs.length > 1);
    const controls = element("div", {class: "bar", role: "group", "aria-label": "Curves"},
      ...groupButtons(),
      ...(seeds ? [button("Seeds as bands", charts.bands, (on) => { charts.bands = on; })] : []),
      button("Logarithmic", charts.logarithmic, (on) => { charts.logarithmic = on; }));
    const fixed = fixed_names.filter((name) => names.includes(name)).map((name) => charts.make(() => name));
    const others = names.filter((name) => !fixed_names.includes(name));
    const grid = element("div", {class: "charts"}, ...fixed.map((chart) => chart.element));
    const all = [...fixed];
    if (others.length) {
      let chosen = others[0];
      const chart = charts.make(() => chosen, "");
      chart.element.firstChild.append(select("Number", others, (at) => {
        chosen = others[at];
        chart.draw();
      }));
      grid.append(chart.element);
      all.push(chart);
    }
    redrawn.push(() => all.forEach((chart) => chart.draw()));
    const bands = seeds ? "A line in a band is a mean over seeds, the band its 95 % interval by Student's t. " : "";
    main.append(element("section", {"aria-label": "Curves"}, controls, grid,
      element("p", {class: "quiet"}, `${bands}Triangles at the top: the loss spiked. Crosses: a step ` +
        "that was not finite. Drag to zoom, double-click to see all; by keyboard arrows, + - and 0.")));
  }

  // The sublayers of a layer, in the order in which they run; one where a value stands for a layer.
  function kinds({layers, values}) {
    const each = values[0].length / layers;
    const known = {2: ["attention", "feed-forward"], 3: ["self-attention", "cross-attention", "feed-forward"]};
    return known[each] ?? ["all"];
  }

  // What is measured inside the model: by depth over time of one run, and of all runs at one step.
  function depths() {
    const names = [...new Set(data.runs.flatMap((run) => Object.keys(run.diagnostics)))];
    if (!names.length) return;
    let name = names[0], at = Infinity; // the last step
    const having = () => data.runs.filter((run) => run.diagnostics[name]);
    let run = having()[0];
    const runs = element("select", {});
    const step = element("input", {type: "range", min: 0, step: 1});
    const stepText = element("output", {});
    const canvas = element("canvas", {role: "img", tabindex: "0"});
    const framed = element("div", {class: "heat"});
    const legend = element("p", {class: "quiet"});
    const lines_legend = element("p", {class: "legend quiet"});
    const reading = element("p", {class: "readout quiet", role: "status"});
    const place = element("div", {role: "img"});
    let plot = null;

    const curve = () => run.diagnostics[name];
    const fill = () => {
      if (!having().includes(run)) run = having()[0];
      runs.replaceChildren(...having().map((each) =>
        element("option", {value: data.runs.indexOf(each), selected: each === run}, each.name)));
      step.max = curve().steps.length - 1;
      at = Math.min(at, curve().steps.length - 1);
      step.value = at;
    };
    const draw = () => {
      stepText.textContent = curve().steps[at].toLocaleString("en");
      step.setAttribute("aria-valuetext", `step ${curve().steps[at]}`);
      canvas.setAttribute("aria-label", `${name} of ${run.name} by depth over time`);
      const divided = kinds(curve());
      framed.replaceChildren(...axes(canvas, curve(), divided.length > 1 ? "sublayer" : "layer"));
      legend.replaceChildren(...heat(canvas, curve()));
      one.hidden = curve().steps.length < 2;
      reading.textContent = "";
      plot?.destroy();
      place.replaceChildren();
      const lines = having().filter((each) => !charts.hidden.has(each.group)).map((each) => {
        const {steps, values} = each.diagnostics[name];
        const upTo = steps.filter((each) => each <= curve().steps[at]).length;
        const row = values[upTo - 1] ?? []; // not measured yet
        return {name: each.name, group: each.group, values: row, kinds: kinds(each.diagnostics[name])};
      }).filter((line) => line.values.length);
      // Kinds of sublayers are lines of their own, over layers.
      const parts = lines.flatMap((line) => line.kinds.map((_, at) => {
        const values = line.values.filter((_, depth) => depth % line.kinds.length === at);
        const dash = line.kinds.length > 1 ? DASHES[at] : undefined;
        return {...line, values, dash, steps: values.map((_, layer) => layer + 1)};
      }));
      lines_legend.replaceChildren(
        ...data.groups.flatMap((group, number) => (lines.some((line) => line.group === number) ?
          [element("span", {dir: "auto"}, charts.swatch(charts.colour(number), divided.length > 1 ? [] :
            charts.dash(number)), group.name)] : [])),
        ...(divided.length > 1 ? divided.map((kind, at) =>
          element("span", {}, charts.swatch("var(--quiet)", DASHES[at]), kind)) : []));
      place.setAttribute("aria-label", `${name} by depth at step ${stepText.textContent}: ` +
        lines.map((line) => `${line.name} ${line.values.map(charts.short).join(", ")}`).join("; "));
      if (lines.every((line) => line.values.length < 2)) {
        plot = null;
        place.append(charts.dots(lines));
        return;
      }
      const {data: columns, series, bands} = charts.columns(parts);
      const options = charts.options(place.clientWidth || 500, 260, series, bands, "layer", charts.unit(name));
      plot = new uPlot(options, columns, place);
    };
    runs.addEventListener("change", () => { run = data.runs[Number(runs.value)]; fill(); draw(); });
    step.addEventListener("input", () => { at = Number(step.value); draw(); });
    canvas.addEventListener("click", (event) => {
      at = cell(canvas, curve(), event)[0];
      step.value = at;
      draw();
    });
    const read = (column, depth) => {
      const value = curve().values[column][depth];
      reading.textContent = `step ${curve().steps[column].toLocaleString("en")}, depth ${depth + 1}: ` +
        (value === null ? "not finite" : charts.short(value));
    };
    canvas.addEventListener("mousemove", (event) => read(...cell(canvas, curve(), event)));
    let read_at = [0, 0]; // by arrow keys
    canvas.addEventListener("keydown", (event) => {
      const move = {ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1]}[event.key];
      if (!move) return;
      event.preventDefault();
      const sizes = [curve().steps.length, curve().values[0].length];
      read_at = read_at.map((value, i) => Math.max(0, Math.min(sizes[i] - 1, value + move[i])));
      read(...read_at);
    });
    const one = element("section", {}, element("h3", {}, "One run: depth upwards, steps to the right"),
      framed, legend, reading);
    fill();
    redrawn.push(draw);
    section("By depth, over time",
      element("div", {class: "bar"},
        select("Measured", names, (chosen) => { name = names[chosen]; fill(); draw(); }),
        element("label", {}, "Run ", runs),
        element("label", {}, "Step ", step, " ", stepText)),
      element("div", {class: "charts"},
        one, element("section", {}, element("h3", {}, "All runs, as last measured by this step"), place, lines_legend)));
  }

  function samples() {
    const having = data.runs.filter((run) => run.samples.length);
    if (!having.length) return;
    let run = having[0], at = run.samples.length - 1;
    const step = element("input", {type: "range", min: 0, step: 1});
    const stepText = element("output", {});
    const text = element("pre", {dir: "auto", tabindex: "0", "aria-label": "Samples"});
    const steps = element("label", {}, "Step ", step, " ", stepText);
    const draw = () => {
      const sample = run.samples[at];
      steps.hidden = run.samples.length < 2;
      step.max = run.samples.length - 1;
      step.value = at;
      stepText.textContent = sample.step === null ? "at the end" : sample.step.toLocaleString("en");
      step.setAttribute("aria-valuetext", stepText.textContent);
      text.textContent = sample.text;
    };
    step.addEventListener("input", () => { at = Number(step.value); draw(); });
    draw();
    section("Samples", element("div", {class: "bar"},
      select("Run", having.map((each) => each.name), (chosen) => {
        run = having[chosen];
        at = run.samples.length - 1;
        draw();
      }),
      steps), text);
  }

  finding();
  curves();
  results();
  configs();
  depths();
  samples();
  outcomes();
  main.append(element("details", {}, element("summary", {class: "quiet"}, "Curves are drawn by uPlot"),
    element("pre", {}, data.licence)));
  redraw();
  page.onTheme(redraw);
  let waiting = 0;
  addEventListener("resize", () => {
    clearTimeout(waiting);
    waiting = setTimeout(redraw, 150);
  });
})();
