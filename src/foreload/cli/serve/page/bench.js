// The benchmark: its form, its progress and its results.

import { bars } from "./plots.js";
import { $, build, bytes, count, element, quantity, setText, seconds, text } from "./elements.js";

const form = $("wish");
let asked = false;
let trial = null;

form.onchange = () => {
  for (const field of form.querySelectorAll("[data-for]")) field.hidden = field.dataset.for !== form.elements.kind.value;
};
form.onchange();

form.onsubmit = (event) => {
  event.preventDefault();
  const wish = { kind: form.elements.kind.value, folder: form.elements.folder.value };
  for (const name of ["images", "rows", "columns", "batch_size", "seeds"]) wish[name] = Number(form.elements[name].value);
  ask("bench", wish);
};
$("stop").onclick = () => ask("bench/stop", {});

async function ask(where, what) {
  asked = true;
  $("start").disabled = true;
  let words = "";
  try {
    const headers = { "content-type": "application/json" };
    const answer = await fetch(where, { method: "POST", headers, body: JSON.stringify(what) });
    const json = (answer.headers.get("content-type") ?? "").includes("json");
    if (!answer.ok) words = json ? (await answer.json()).error : await answer.text();
  } catch {
    words = "foreload serve does not answer";
  }
  asked = false;
  $("wish-error").hidden = !words;
  setText("wish-error", words && words[0].toUpperCase() + words.slice(1));
  showTrial(trial);
}

export function showTrial(now) {
  trial = now;
  const running = trial?.state === "running";
  const done = trial?.state === "done";
  $("start").disabled = asked || running;
  $("trial").hidden = !trial;
  if (!trial) return;
  setText("command", `$ ${trial.command}`);
  $("running").hidden = !running;
  if (running) showSteps(trial.steps);
  const words = { done: trial.sentence, failed: `It failed: ${trial.error}`, stopped: "Stopped." }[trial.state] ?? "";
  $("outcome").hidden = !words;
  $("outcome").className = `outcome ${trial.state === "failed" ? "error" : ""}`;
  setText("outcome", words);
  $("results").hidden = !done;
  if (done) showResults(trial.results, trial.work.rows ? "rows" : "images");
}

function showSteps([done, all]) {
  setText("doing", all ? `${count(done)} of ${quantity(all, "epoch")} done` : "Making the data, starting the contestants");
  if (all) $("progress").value = done / all;
  else $("progress").removeAttribute("value");
}

const median = (values) => {
  const sorted = [...values].sort((a, b) => a - b);
  const middle = sorted.length >> 1;
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
};

function showResults(results, unit) {
  const speed = (result) => median(result.samples_per_second);
  const stock = Math.max(...results.filter((result) => result.stock).map(speed));
  const draw = (id, values, words, label) => {
    const rows = results.map((result) => {
      const all = values(result);
      const [low, high, value] = [Math.min(...all), Math.max(...all), median(all)];
      return { name: result.name, value, low, high, tone: result.stock ? "stock" : "accent", words: words(value, result) };
    });
    bars(id, rows, label);
  };
  const times = (result) => (result.stock ? "" : ` (${(speed(result) / stock).toFixed(1)}×)`);
  setText("speed-title", unit === "rows" ? "Rows per second" : "Images per second");
  draw("speed", (result) => result.samples_per_second, (value, result) => count(value) + times(result), `${unit} per second`);
  draw("first", (result) => result.first_batch_ms, (value) => text(seconds(value / 1e3)), "time to the first batch");
  build($("table"), [results, unit, stock], () => table(results, unit, stock));
}

function table(results, unit, stock) {
  const head = ["", `${unit}/s`, "Speed-up", "Batch", "First batch", "Memory"];
  const rows = results.map((result) => {
    const speed = median(result.samples_per_second);
    const cells = [
      result.name,
      count(speed),
      `${(speed / stock).toFixed(2)}×`,
      text(seconds(median(result.batch_ms) / 1e3)),
      text(seconds(median(result.first_batch_ms) / 1e3)),
      text(bytes(result.memory_mib * 2 ** 20)),
    ];
    return element("tr", { class: result.stock ? "" : "strong", title: result.about }, ...cells.map((words) => element("td", {}, words)));
  });
  const heads = head.map((words) => element("th", { scope: "col" }, words));
  return element("table", {}, element("thead", {}, element("tr", {}, ...heads)), element("tbody", {}, ...rows));
}
