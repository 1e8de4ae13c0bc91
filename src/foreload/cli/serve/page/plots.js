// Curves, areas, bars and the timeline, drawn by plotly in the colours of the page.

import { soon } from "./turns.js";
import { $, bytes, count, quantity, seconds, text } from "./elements.js";

function colour(name) {
  const style = getComputedStyle(document.documentElement);
  return style.getPropertyValue(`--${name}`) || style.getPropertyValue("--stock");
}
const wide = (node) => node.clientWidth > 600;

// Drawing takes time, tenths of a second on a phone, so only plots in view are drawn.
const inView = (node) => {
  const box = node.getBoundingClientRect();
  return node.clientWidth > 0 && box.bottom > -200 && box.top < innerHeight + 200;
};

const axis = () => ({
  fixedrange: true, zeroline: false, showline: false, gridcolor: colour("grid"), ticklen: 4, tickcolor: colour("grid"),
});

// make: returns the traces, the layout but for its height, and a label.
function draw(id, height, make) {
  const node = $(id);
  node.style.minHeight = `${height}px`; // before it is drawn, too, so that nothing jumps
  soon(id, () => window.Plotly && inView(node) && drawNow(node, height, ...make()));
}

function drawNow(node, height, traces, layout, label) {
  const font = { family: getComputedStyle(node).fontFamily, size: 12, color: colour("quiet") };
  const hover = { bgcolor: colour("text"), bordercolor: colour("text"), font: { ...font, size: 13, color: colour("ground") } };
  Plotly.react(
    node,
    traces,
    {
      font, hoverlabel: hover, showlegend: false, dragmode: false, hovermode: "x", bargap: 0.15, barmode: "overlay",
      paper_bgcolor: "transparent", plot_bgcolor: "transparent", height, ...layout,
      width: node.clientWidth, margin: { l: 52, r: 12, t: 8, b: 24, ...layout.margin },
      xaxis: { ...axis(), ...layout.xaxis }, yaxis: { ...axis(), ...layout.yaxis },
    },
    { displayModeBar: false },
  );
  node.setAttribute("role", "img");
  node.setAttribute("aria-label", label);
}

export function clear(...ids) {
  for (const node of ids.map($)) if (node.classList.contains("js-plotly-plot")) Plotly.purge(node);
}

// Over time. values: a number or null for each point.

const clock = (time) => new Date((time - 60 * new Date().getTimezoneOffset()) * 1000).toISOString().slice(0, -1);

function times(points, node) {
  const now = points.at(-1)?.time ?? Date.now() / 1000;
  const first = Math.min(points[0]?.time ?? now, now - 60);
  const format = now - first < 1200 ? "%H:%M:%S" : now - first < 86400 ? "%H:%M" : "%-d %b %H:%M";
  return { type: "date", range: [clock(first), clock(now)], nticks: wide(node) ? 9 : 4, tickformat: format, showgrid: false };
}

// Where nothing happened, a line ends, and another begins.
const withBreaks = (points) =>
  points.flatMap((point, i) => (i && point.gap ? [{ time: points[i - 1].time + 0.001 }, { time: point.time - 0.001 }, point] : [point]));

// The gaps that are wide enough to be seen, as [begin, end].
export function gaps(points) {
  const found = [];
  for (let i = 1; i < points.length; i++) {
    if (!points[i].gap) continue;
    if (found.at(-1)?.[1] === points[i - 1].time) found.at(-1)[1] = points[i].time;
    else found.push([points[i - 1].time, points[i].time]);
  }
  const whole = (points.at(-1)?.time ?? 0) - (points[0]?.time ?? 0);
  return found.filter(([begin, end]) => end - begin > whole / 400);
}

const shaded = (points) =>
  gaps(points).map(([begin, end]) => ({
    type: "rect", xref: "x", yref: "paper", x0: clock(begin), x1: clock(end), y0: 0, y1: 1,
    fillcolor: colour("gap"), line: { width: 0 }, layer: "below",
  }));

// An end of the axis that stays in place while values change a little.
function above(most) {
  const power = 10 ** Math.floor(Math.log10(most || 1));
  return [1, 1.5, 2, 3, 4, 5, 6, 8, 10].find((step) => step * power >= most * 1.02) * power || 1;
}

// The outline of the area below a line: plotly would fill the gaps of the line, so it goes down to zero at their edges.
function area(x, values) {
  const at = values.flatMap((value, i) => {
    if (value === null) return [];
    const edges = [values[i - 1] == null && [x[i], 0], [x[i], value], values[i + 1] == null && [x[i], 0]];
    return edges.filter(Boolean);
  });
  return { x: at.map(([time]) => time), y: at.map(([, value]) => value) };
}

// pick: returns the value of a point; null: unknown.
export function curve(id, known, pick, { share = false, unit = "", name }) {
  const node = $(id);
  const height = Number(node.dataset.height);
  draw(id, height, () => {
    const points = withBreaks(known);
    const values = points.map((point) => pick(point) ?? null);
    const most = values.reduce((top, value) => Math.max(top, value ?? 0), 0);
    const top = share ? 1 : above(most);
    const x = points.map((point) => clock(point.time));
    const line = { color: colour("accent"), width: 2 };
    const shown = share ? "%{y:.1%}" : `%{y:,.4~r} ${unit}`;
    const traces = [
      { ...area(x, values), mode: "lines", line: { width: 0 }, fill: "tozeroy", fillcolor: `${colour("accent")}22`, hoverinfo: "skip" },
      { x, y: values, mode: "lines", line, hovertemplate: `${shown}<extra></extra>` },
      { x: x.slice(-1), y: values.slice(-1), mode: "markers", marker: { color: colour("accent"), size: 7 }, hoverinfo: "skip" },
    ];
    const layout = {
      shapes: shaded(known),
      xaxis: times(points, node),
      yaxis: { range: [0, top * 1.04], nticks: height > 150 ? 6 : 4, tickformat: share ? ".0%" : top < 1e5 ? ",~r" : "~s" },
    };
    return [traces, layout, `${name} over time`];
  });
}

// Bytes in one unit, as plotly labels them.
export function memory(id, points, name) {
  const unit = bytes(above(points.reduce((most, point) => Math.max(most, point.memory ?? 0), 0)))[1];
  const size = 1024 ** ["B", "KiB", "MiB", "GiB", "TiB"].indexOf(unit);
  curve(id, points, (point) => (point.memory == null ? null : point.memory / size), { unit, name });
  return unit;
}

// Several runs over each other. runs: {name, x, y, line}
export function lines(id, runs, { share = false, unit = "", label, xaxis }) {
  const node = $(id);
  draw(id, Number(node.dataset.height), () => {
    const most = runs.reduce((top, run) => run.y.reduce((high, value) => Math.max(high, value ?? 0), top), 0);
    const top = share ? 1 : above(most);
    const shown = share ? "%{y:.1%}" : `%{y:,.4~r} ${unit}`;
    const traces = runs.map(({ name, x, y, line }) => ({
      x, y, mode: "lines", name, line: { color: colour(line.colour), dash: line.dash, width: 2 },
      hovertemplate: `${name.replaceAll("<", "&lt;")}: ${shown}<extra></extra>`,
    }));
    const layout = {
      margin: { b: 42 },
      xaxis: { rangemode: "tozero", nticks: wide(node) ? 7 : 4, showgrid: false, title: { text: xaxis, standoff: 6 } },
      yaxis: { range: [0, top * 1.04], nticks: 6, tickformat: share ? ".0%" : top < 1e5 ? ",~r" : "~s" },
    };
    return [traces, layout, `${label}: ${runs.map((run) => run.name).join(", ")}`];
  });
}

// Workers in each stage, stacked.
export function areas(id, known) {
  const node = $(id);
  draw(id, Number(node.dataset.height), () => {
    const points = withBreaks(known);
    const stages = [...new Set(points.flatMap((point) => Object.keys(point.busy ?? {})))];
    const most = points.reduce((top, point) => Math.max(top, Object.values(point.busy ?? {}).reduce((sum, part) => sum + part, 0)), 0);
    const x = points.map((point) => clock(point.time));
    const traces = stages.map((name) => ({
      x, y: points.map((point) => (point.busy ? (point.busy[name] ?? 0) : null)), stackgroup: "all", stackgaps: "infer zero", mode: "lines", name,
      line: { width: 0 }, fillcolor: colour(name), hovertemplate: `${name}: %{y:.2f}<extra></extra>`,
    }));
    const layout = {
      hovermode: "x unified",
      shapes: shaded(known),
      xaxis: times(points, node),
      yaxis: { range: [0, above(most) * 1.04], nticks: 5 },
    };
    return [traces, layout, "Stages over time"];
  });
}

// The latest spans: a lane for each worker and for the loop. Returns their length in seconds.
export function timeline(id, spans) {
  const length = spans.begin.reduce((most, begin, i) => Math.max(most, begin + spans.length[i]), 1);
  const used = [...new Set(spans.lane)].sort((a, b) => a - b);
  const step = used.length > 16 ? 14 : 26;
  draw(id, used.length * step + 32, () => {
    const [scale, unit] = length < 2e6 ? [1e3, "ms"] : [1e6, "s"];
    const names = spans.lanes.map(([name, kind]) => (kind === "consumer" ? name.replace("consumer 0", "loop").replace("consumer", "loop") : name));
    const traces = spans.stages.map((stage, number) => {
      const mine = spans.stage.flatMap((it, i) => (it === number ? [i] : []));
      return {
        type: "bar", orientation: "h", marker: { color: colour(stage), line: { width: 0 } },
        base: mine.map((i) => spans.begin[i] / scale),
        x: mine.map((i) => Math.max(spans.length[i], length / 2000) / scale),
        y: mine.map((i) => names[spans.lane[i]]),
        hovertext: mine.map((i) => about(spans, stage, i)), hovertemplate: "%{hovertext}<extra></extra>",
      };
    });
    const layout = {
      hovermode: "closest",
      margin: { l: 14 + 6.6 * Math.max(...used.map((lane) => names[lane].length)) },
      xaxis: { range: [0, length / scale], ticksuffix: ` ${unit}`, nticks: wide($(id)) ? 9 : 4, showgrid: false },
      yaxis: { categoryorder: "array", categoryarray: used.map((lane) => names[lane]).reverse(), showgrid: false, tickfont: { size: step > 14 ? 12 : 9 } },
    };
    return [traces.filter((trace) => trace.x.length), layout, "Spans of each worker"];
  });
  return length / 1e6;
}

function about(spans, stage, i) {
  const more = [`batch ${spans.batch[i]}`];
  if (spans.samples[i]) more.push(quantity(spans.samples[i], "sample"));
  if (spans.bytes[i]) more.push(text(bytes(spans.bytes[i])));
  return `${stage}, ${text(seconds(spans.length[i] / 1e6))}<br>${more.join(", ")}`;
}

// Bars with their names above them. rows: {name, value, low, high, words, tone}
export function bars(id, rows, label) {
  draw(id, rows.length * 48 + 8, () => {
    const most = Math.max(...rows.map((row) => row.high));
    const places = rows.map((_, i) => rows.length - i);
    const note = { xanchor: "left", showarrow: false, font: { size: 13, color: colour("text") } };
    const trace = {
      type: "bar", orientation: "h", width: 0.36, x: rows.map((row) => row.value), y: places, hoverinfo: "skip",
      marker: { color: rows.map((row) => colour(row.tone)) },
      error_x: {
        type: "data", symmetric: false, thickness: 1.5, width: 4, color: colour("text"),
        array: rows.map((row) => row.high - row.value), arrayminus: rows.map((row) => row.value - row.low),
      },
    };
    const layout = {
      margin: { l: 0, r: 4, t: 0, b: 4 },
      xaxis: { visible: false, range: [0, most * 1.45] },
      yaxis: { visible: false, range: [0.6, rows.length + 0.75] },
      annotations: rows.flatMap((row, i) => [
        { ...note, text: row.name, xref: "paper", x: 0, xshift: -2, y: places[i], yshift: 19 },
        { ...note, text: `<b>${row.words}</b>`, x: row.high, xshift: 6, y: places[i] },
      ]),
    };
    return [[trace], layout, `${label}: ${rows.map((row) => `${row.name} ${row.words}`).join("; ")}`];
  });
}
