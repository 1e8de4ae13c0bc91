// Runs over each other: throughput and waiting, aligned by the time since their start or by batches.

import { lines } from "./plots.js";
import { $, build, clockTime, count, element, percent, text } from "./elements.js";

const COLOURS = ["run-0", "run-1", "run-2", "run-3", "run-4", "run-5"];
const DASHES = ["solid", "dash", "dot", "dashdot", "longdash", "longdashdot"];
const STROKES = { solid: "", dash: "7 4", dot: "2 3", dashdot: "7 3 2 3", longdash: "12 4", longdashdot: "12 3 2 3" };

let wanted = null; // the ids that the user has chosen; null: none yet
let shown = null;

// Runs differ in colour and in dashes.
const styleOf = (number) => ({
  colour: COLOURS[number % COLOURS.length],
  dash: DASHES[(number + Math.floor(number / COLOURS.length)) % DASHES.length],
});

export function showComparison(loaders, past, current, named, now) {
  shown = [loaders, past, current, named, now];
  $("compare").hidden = loaders.length < 2;
  if (loaders.length < 2) return;
  const chosen = wanted ?? usual(loaders, current);
  const names = loaders.map((loader) => [loader.id, named(loader), about(loader, now)]);
  build($("runs-list"), names, () => names.map(([id, name, more], number) => box(id, name, more, styleOf(number))));
  for (const input of $("runs-list").querySelectorAll("input")) input.checked = chosen.has(input.value);
  const runs = loaders.map((loader, number) => ({ loader, name: distinct(loader), line: styleOf(number) }));
  draw(runs.filter(({ loader }) => chosen.has(loader.id)));
}

// The run that is shown above, and the latest of the others.
function usual(loaders, current) {
  const others = loaders.filter((loader) => loader !== current).sort((a, b) => (b.since ?? 0) - (a.since ?? 0));
  return new Set([current, others[0]].map((loader) => loader.id));
}

function about(loader, now) {
  const parts = [];
  if (loader.since != null) parts.push(`since ${clockTime(loader.since, now)}`);
  parts.push(loader.state === "ended" ? "ended" : `process ${loader.pid}`);
  const { stats } = loader;
  if (stats?.batches > 0 && loader.state === "ended") {
    parts.push(`${count(stats.samples_per_second)} samples/s`, `waited ${text(percent(stats.wait_share))}`);
  }
  return parts.join(", ");
}

// Runs of one program have the same name.
function distinct(loader) {
  const [loaders, , , named] = shown;
  const alone = loaders.filter((other) => named(other) === named(loader)).length === 1;
  return alone ? named(loader) : `${named(loader)} (process ${loader.pid})`;
}

function box(id, name, more, style) {
  const input = element("input", { type: "checkbox", value: id });
  input.onchange = () => {
    wanted = new Set([...$("runs-list").querySelectorAll("input:checked")].map((each) => each.value));
    showComparison(...shown);
  };
  return element("label", {}, input, swatch(style), element("span", { class: "of" }, name, element("span", { class: "quiet" }, more)));
}

function swatch({ colour, dash }) {
  const make = (tag, attributes) => {
    const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    return node;
  };
  const picture = make("svg", { width: 34, height: 10, "aria-hidden": "true" });
  picture.append(make("path", { d: "M1 5h32", fill: "none", stroke: `var(--${colour})`, "stroke-width": 2.5, "stroke-dasharray": STROKES[dash] }));
  return picture;
}

const aligned = () => document.querySelector("[name=align]:checked").value;

function draw(runs) {
  const past = shown[1];
  const byTime = aligned() === "time";
  const since = ({ id, since }) => since ?? past[id]?.[0]?.time ?? 0;
  const longest = Math.max(0, ...runs.map(({ loader }) => (past[loader.id]?.at(-1)?.time ?? 0) - since(loader)));
  const [scale, unit] = longest < 300 ? [1, "seconds"] : longest < 3 * 3600 ? [60, "minutes"] : [3600, "hours"];
  const place = (point, loader) => (byTime ? (point.time - since(loader)) / scale : point.batches);
  const make = (pick) =>
    runs.map(({ loader, name, line }) => {
      const points = withBreaks(past[loader.id] ?? [], byTime);
      return { name, line, x: points.map((point) => place(point, loader)), y: points.map((point) => pick(point) ?? null) };
    });
  const xaxis = byTime ? `${unit} since the start` : "batches";
  lines("compare-throughput", make((point) => point.samples_per_second), { unit: "samples/s", label: "Samples per second", xaxis });
  lines("compare-waiting", make((point) => point.wait_share), { share: true, label: "Waiting for data", xaxis });
}

// A pause takes time, but no batches.
function withBreaks(points, byTime) {
  if (!byTime) return points.filter((point) => point.samples_per_second != null);
  return points.flatMap((point, i) => (i && point.gap ? [{ time: points[i - 1].time + 0.001 }, point] : [point]));
}

for (const input of document.querySelectorAll("[name=align]")) input.onchange = () => shown && showComparison(...shown);
