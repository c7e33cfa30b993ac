"use strict";
// Charts of a report: numbers over steps, runs overlaid or their seeds as bands.
const DASHES = [[], [8, 4], [2, 3], [10, 3, 2, 3]];
// What ticks of steps and layers may be apart.
const WHOLE = Array.from({length: 13}, (_, power) => [1, 2, 5].map((one) => one * 10 ** power)).flat();

const charts = {
  hidden: new Set(), // numbers of groups
  bands: page.data.bands && page.data.groups.some((group) => group.runs.length > 1),
  logarithmic: false,

  // An arm looks as in figures, but lighter on a dark page.
  colour(group) {
    const light = matchMedia("(prefers-color-scheme: dark)").matches ? 0.55 : 0;
    const parts = page.data.groups[group].looks.color.match(/\w{2}/g).map((hex) => parseInt(hex, 16));
    return `rgb(${parts.map((part) => Math.round(part + light * (255 - part))).join(" ")})`;
  },

  dash(group) {
    return DASHES[["-", "--", ":", "-."].indexOf(page.data.groups[group].looks.linestyle)];
  },

  short(value) {
    if (value === null || value === undefined) return "";
    const size = Math.abs(value);
    if (size && (size < 1e-3 || size >= 1e6)) return value.toExponential(2);
    const digits = size >= 1e4 ? {maximumFractionDigits: 0} : {maximumSignificantDigits: 4};
    return value.toLocaleString("en", digits);
  },

  // A line as it is drawn, for a legend.
  swatch(colour, dash) {
    const style = dash.length ? (dash[0] > 4 ? "dashed" : "dotted") : "solid";
    return page.element("span", {class: "swatch", "aria-hidden": "true",
      style: `border-top: 2px ${style} ${colour}`});
  },

  // What a number is measured in, as far as its name says.
  unit(name) {
    if (/(token_loss|entropy)$/.test(name)) return "nats";
    return /seconds$/.test(name) ? "seconds" : "";
  },

  // The lines of a number: {name, group, steps, values}, and for a band also low, high and count.
  lines(name) {
    const {curves, bands, groups, runs} = page.data;
    const lines = [];
    groups.forEach((group, number) => {
      if (charts.hidden.has(number)) return;
      const band = charts.bands ? bands[name][number] : null;
      if (band) lines.push({name: group.name, group: number, values: band.mean, ...band});
      else {
        for (const run of group.runs) {
          lines.push({name: runs[run].name, group: number, ...curves[name][run]});
        }
      }
    });
    return lines.filter((line) => line.steps.length);
  },

  // Steps and columns of lines as uPlot takes them, and how each column looks.
  columns(lines) {
    const positive = (values) =>
      charts.logarithmic ? values.map((value) => (value > 0 ? value : null)) : values;
    const tables = [], series = [], bands = [];
    for (const line of lines) {
      const stroke = charts.colour(line.group), dash = line.dash ?? charts.dash(line.group);
      const points = {show: line.steps.length < 12, size: 6, fill: stroke};
      series.push({label: line.name, stroke, dash, width: 1.5, points});
      const table = [line.steps, positive(line.values)];
      if (line.low) {
        const fill = stroke.replace(")", " / 0.18)");
        bands.push({series: [series.length + 1, series.length + 2], fill});
        // Of two seeds Student's interval is nine deviations wide: no axis is stretched for it, and
        // it is not drawn where other steps have more.
        const auto = Math.max(...line.count) > 2;
        const drawn = (value, at) => (auto && line.count[at] < 3 ? null : value);
        for (const label of ["high", "low"]) {
          series.push({label, auto, stroke: "transparent", width: 0, points: {show: false}});
          table.push(positive(line[label].map(drawn)));
        }
      }
      tables.push(table);
    }
    return {data: tables.length ? uPlot.join(tables) : [[]], series, bands};
  },

  // What stands under a chart for the step at which the cursor is.
  reading(lines, step) {
    const readings = [];
    for (const line of lines) {
      const at = line.steps.indexOf(step);
      if (at < 0) continue;
      const ends = line.low && line.low[at] !== null
        ? `${charts.short(line.low[at])} to ${charts.short(line.high[at])}, 95 %, ` : "";
      const range = line.low ? ` (${ends}n = ${line.count[at]})` : "";
      const value = line.values[at] === null ? "not finite" : charts.short(line.values[at]);
      readings.push(`${line.name}: ${value}${range}`);
    }
    return `step ${step.toLocaleString("en")}: ${readings.join("; ")}`;
  },

  // Marks on a chart: triangles at the top where losses spiked, crosses where a run broke off.
  marks(plot) {
    const {ctx, bbox} = plot, unit = devicePixelRatio;
    page.data.runs.forEach((run) => {
      if (charts.hidden.has(run.group)) return;
      ctx.fillStyle = ctx.strokeStyle = charts.colour(run.group);
      ctx.lineWidth = 2 * unit;
      for (const step of run.spikes.steps) {
        const x = plot.valToPos(step, "x", true);
        if (x < bbox.left || x > bbox.left + bbox.width) continue;
        ctx.beginPath();
        ctx.moveTo(x - 5 * unit, bbox.top);
        ctx.lineTo(x + 5 * unit, bbox.top);
        ctx.lineTo(x, bbox.top + 9 * unit);
        ctx.fill();
      }
      // A run that breaks off between two records is beyond its last one, which is where x ends.
      const end = plot.data[0][plot.data[0].length - 1];
      const x = run.bad === null ? NaN : plot.valToPos(Math.min(run.bad, end), "x", true);
      if (!(x >= bbox.left && x <= bbox.left + bbox.width)) return;
      const y = bbox.top + bbox.height - 8 * unit;
      ctx.beginPath();
      ctx.moveTo(x - 5 * unit, y - 5 * unit);
      ctx.lineTo(x + 5 * unit, y + 5 * unit);
      ctx.moveTo(x - 5 * unit, y + 5 * unit);
      ctx.lineTo(x + 5 * unit, y - 5 * unit);
      ctx.stroke();
    });
  },

  options(width, height, series, bands, label, unit) {
    const axis = {
      stroke: page.colour("quiet"),
      grid: {stroke: page.colour("line"), width: 1},
      ticks: {stroke: page.colour("line"), width: 1, size: 4},
      font: "12px system-ui, sans-serif", labelFont: "12px system-ui, sans-serif",
      gap: 4, labelGap: 0, labelSize: 16,
    };
    const values = (_, ticks) => ticks.map(charts.short);
    const range = (_, least, most) => (least < most ? [least, most] : [least - 0.5, most + 0.5]);
    return {
      width, height, bands,
      legend: {show: false},
      scales: {x: {time: false, range}, y: {distr: charts.logarithmic ? 3 : 1}},
      axes: [{...axis, label, size: 24, incrs: WHOLE, values},
        {...axis, label: unit, size: 54, labelSize: unit ? 16 : 0, values}],
      series: [{}, ...series],
    };
  },

  // Values of a single step: a dot for each line, over the range of its seeds, and its value.
  dots(lines) {
    const ends = lines.flatMap((line) => [line.low?.[0], line.high?.[0], line.values[0]])
      .filter(Number.isFinite);
    const low = Math.min(...ends), span = Math.max(...ends) - low || 1;
    const place = (value) => `${(100 * (value - low)) / span}%`;
    const rows = lines.flatMap((line) => {
      const colour = charts.colour(line.group), value = line.values[0];
      const track = page.element("div", {class: "track"});
      if (Number.isFinite(line.low?.[0])) {
        const width = `${(100 * (line.high[0] - line.low[0])) / span}%`;
        track.append(page.element("i", {style: `left: ${place(line.low[0])}; width: ${width}; background: ${colour}`}));
      }
      if (value !== null) {
        track.append(page.element("b", {style: `left: ${place(value)}; background: ${colour}`}));
      }
      return [page.element("span", {dir: "auto"}, line.name), track,
        page.element("span", {}, value === null ? "not finite" : charts.short(value))];
    });
    return page.element("div", {class: "dots"}, ...rows);
  },

  // Keys of a chart that has the focus: the cursor goes from step to step, and the view zooms.
  keys(event, plot) {
    const steps = plot.data[0], now = plot.cursor.idx ?? -1;
    const stride = event.shiftKey ? 10 : 1;
    const ends = {Home: 0, End: steps.length - 1};
    const moves = {ArrowLeft: now < 0 ? steps.length - 1 : now - stride, ArrowRight: now + stride, ...ends};
    if (event.key in moves && steps.length) {
      const at = Math.max(0, Math.min(steps.length - 1, moves[event.key]));
      plot.setCursor({left: plot.valToPos(steps[at], "x"), top: 10});
    } else if ("+-0".includes(event.key) && steps.length) {
      const {min, max} = plot.scales.x, middle = steps[now] ?? (min + max) / 2;
      const half = ((max - min) / 2) * (event.key === "+" ? 0.5 : 2);
      const whole = event.key === "0";
      const first = steps[0], last = steps[steps.length - 1];
      plot.setScale("x", {
        min: whole ? first : Math.max(first, middle - half),
        max: whole ? last : Math.min(last, middle + half),
      });
    } else return;
    event.preventDefault();
  },

  // A chart of the number that `name()` says: {element, draw}.
  make(name, heading) {
    const title = page.element("h3", {}, heading ?? name());
    const place = page.element("div", {tabindex: "0", role: "application"});
    const readout = page.element("p", {class: "readout quiet", role: "status"});
    const element = page.element("section", {class: "chart"}, title, place, readout);
    let plot = null;
    place.addEventListener("keydown", (event) => plot && charts.keys(event, plot));
    const draw = () => {
      plot?.destroy();
      plot = null;
      place.replaceChildren();
      const lines = charts.lines(name());
      const help = "arrow keys move the cursor, + and - zoom, 0 shows all";
      place.setAttribute("aria-label", `Chart of ${name()}, ${lines.length} lines; ${help}`);
      readout.textContent = lines.length ? "" : "nothing to show";
      if (!lines.length) return;
      if (lines.every((line) => line.steps.length < 2)) {
        place.append(charts.dots(lines));
        const steps = [...new Set(lines.map((line) => line.steps[0].toLocaleString("en")))];
        readout.textContent = `measured once, at step ${steps.join(" or ")}`;
        return;
      }
      const {data, series, bands} = charts.columns(lines);
      const options = charts.options(place.clientWidth || 500, 260, series, bands, "step", charts.unit(name()));
      options.cursor = {sync: {key: "steps"}};
      options.hooks = {
        draw: name().startsWith("train/") ? [charts.marks] : [],
        setCursor: [(each) => {
          if (each.cursor.idx != null) {
            readout.textContent = charts.reading(lines, each.data[0][each.cursor.idx]);
          }
        }],
      };
      plot = new uPlot(options, data, place);
    };
    return {element, draw, plot: () => plot};
  },
};
