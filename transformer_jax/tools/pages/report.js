"use strict";
// A report of runs: outcomes, results, curves, what happens by depth, samples, configs.
const report = (() => {
  const {data, element} = page;
  const shown = ["train/token_loss", "validation/token_loss", "train/learning_rate", "train/gradient_norm"];
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
    const made = element("button", {type: "button", "aria-pressed": String(pressed)}, text);
    made.addEventListener("click", () => {
      const now = made.getAttribute("aria-pressed") !== "true";
      made.setAttribute("aria-pressed", String(now));
      press(now);
      redraw();
    });
    return made;
  };

  const select = (label, names, choose) => {
    const options = names.map((name, at) => element("option", {value: at}, name));
    const made = element("select", {}, ...options);
    made.addEventListener("change", () => choose(Number(made.value)));
    return element("label", {}, `${label} `, made);
  };

  const section = (title, ...children) =>
    main.append(element("section", {"aria-label": title}, element("h2", {}, title), ...children));

  const table = (head, rows, kind = "") =>
    element("div", {class: "scroll", tabindex: "0"}, element("table", {class: kind},
      element("thead", {}, element("tr", {}, ...head.map((text) => element("th", {scope: "col", dir: "auto"}, text)))),
      element("tbody", {}, ...rows.map(([first, ...rest]) => element("tr", {},
        element("th", {scope: "row", dir: "auto"}, first),
        ...rest.map((text) => element("td", {dir: "auto"}, text)))))));

  function outcomes() {
    const rows = data.runs.map((run) => [run.name, run.folder, run.outcome.join("\n")]);
    section("What became of the runs", table(["run", "folder", "outcome"], rows, "texts"));
  }

  function results() {
    section("Results", table(["", ...data.runs.map((run) => run.name)], data.scores));
  }

  function configs() {
    const rows = data.config.filter((row) => row.length > 1);
    const same = data.runs.length > 1 ? "All runs have the same config." : "There is one run.";
    section("Settings that differ", rows.length
      ? table(["", ...data.runs.map((run) => run.name)], rows)
      : element("p", {class: "quiet"}, same));
  }

  function groupButtons() {
    const buttons = data.groups.map((group, number) => {
      const made = button("", true, (on) => charts.hidden[on ? "delete" : "add"](number));
      const style = DASHES.indexOf(charts.dash(number)) ? "dashed" : "solid";
      const swatch = element("span", {class: "swatch", "aria-hidden": "true"});
      redrawn.push(() => { swatch.style.borderTop = `3px ${style} ${charts.colour(number)}`; });
      made.append(swatch, element("bdi", {}, group.name));
      return made;
    });
    const all = (on) => element("button", {type: "button", onclick: () => {
      buttons.forEach((each, number) => {
        each.setAttribute("aria-pressed", String(on));
        charts.hidden[on ? "delete" : "add"](number);
      });
      redraw();
    }}, on ? "Show all" : "Hide all");
    return [...buttons, all(true), all(false)];
  }

  function curves() {
    const names = Object.keys(data.curves);
    if (!names.length) {
      section("Curves", element("p", {}, "Nothing has been logged yet."));
      return;
    }
    const seeds = data.groups.some((group) => group.runs.length > 1);
    const controls = element("div", {class: "row", role: "group", "aria-label": "Curves"},
      ...groupButtons(),
      ...(seeds ? [button("Seeds as bands", charts.bands, (on) => { charts.bands = on; })] : []),
      button("Logarithmic", charts.logarithmic, (on) => { charts.logarithmic = on; }));
    const fixed = shown.filter((name) => names.includes(name)).map((name) => charts.make(() => name));
    const others = names.filter((name) => !shown.includes(name));
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
    section("Curves", controls,
      element("p", {class: "quiet"}, "A band reaches from the lowest to the highest seed, its line is " +
        "the mean. Triangles at the top: the loss spiked. Crosses: a step that was not finite. Drag " +
        "to zoom, double-click to see all."), grid);
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
    const canvas = element("canvas", {class: "heat", role: "img"});
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
      const range = heat(canvas, curve());
      reading.textContent = range;
      plot?.destroy();
      const lines = having().filter((each) => !charts.hidden.has(each.group)).map((each) => {
        const {steps, values} = each.diagnostics[name];
        const upTo = steps.filter((each) => each <= curve().steps[at]).length;
        const row = values[upTo - 1] ?? []; // not measured yet
        return {name: each.name, group: each.group, steps: row.map((_, depth) => depth + 1), values: row};
      }).filter((line) => line.values.length);
      place.setAttribute("aria-label", `${name} by depth at step ${stepText.textContent}: ` +
        lines.map((line) => `${line.name} ${line.values.map(charts.short).join(", ")}`).join("; "));
      const {data: columns, series, bands} = charts.columns(lines);
      const options = charts.options(place.clientWidth || 500, 280, series, bands, "depth");
      plot = lines.length ? new uPlot(options, columns, place) : null;
    };
    runs.addEventListener("change", () => { run = data.runs[Number(runs.value)]; fill(); draw(); });
    step.addEventListener("input", () => { at = Number(step.value); draw(); });
    canvas.addEventListener("click", (event) => {
      at = cell(canvas, curve(), event)[0];
      step.value = at;
      draw();
    });
    canvas.addEventListener("mousemove", (event) => {
      const [column, depth] = cell(canvas, curve(), event);
      const value = curve().values[column][depth];
      reading.textContent = `step ${curve().steps[column].toLocaleString("en")}, depth ${depth + 1}: ` +
        (value === null ? "not finite" : charts.short(value));
    });
    fill();
    redrawn.push(draw);
    section("By depth, over time",
      element("div", {class: "row"},
        select("Measured", names, (chosen) => { name = names[chosen]; fill(); draw(); }),
        element("label", {}, "Run ", runs),
        element("label", {}, "Step ", step, " ", stepText)),
      element("div", {class: "charts"},
        element("section", {}, element("h3", {}, "One run: depth upwards, steps to the right"), canvas, reading),
        element("section", {}, element("h3", {}, "All runs, as last measured by this step"), place)));
  }

  function samples() {
    const having = data.runs.filter((run) => run.samples.length);
    if (!having.length) return;
    let run = having[0], at = run.samples.length - 1;
    const step = element("input", {type: "range", min: 0, step: 1});
    const stepText = element("output", {});
    const text = element("pre", {dir: "auto", tabindex: "0", "aria-label": "Samples"});
    const draw = () => {
      const sample = run.samples[at];
      step.max = run.samples.length - 1;
      step.value = at;
      stepText.textContent = sample.step === null ? "at the end" : sample.step.toLocaleString("en");
      step.setAttribute("aria-valuetext", stepText.textContent);
      text.textContent = sample.text;
    };
    step.addEventListener("input", () => { at = Number(step.value); draw(); });
    draw();
    section("Samples", element("div", {class: "row"},
      select("Run", having.map((each) => each.name), (chosen) => {
        run = having[chosen];
        at = run.samples.length - 1;
        draw();
      }),
      element("label", {}, "Step ", step, " ", stepText)), text);
  }

  outcomes();
  results();
  curves();
  depths();
  samples();
  configs();
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
