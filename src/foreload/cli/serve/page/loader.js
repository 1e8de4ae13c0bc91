// One loader: its verdict, figures, curves, stages, failures and settings.

import { showAdvice } from "./advice.js";
import { areas, clear, curve, gaps, memory, timeline } from "./plots.js";
import { $, about, build, bytes, clockTime, count, element, quantity, percent, setText, seconds, text } from "./elements.js";

const MEANING = {
  order: "drawing the order, planning the cache",
  read: "reading from disk or network",
  decode: "decoding pixels, rows or tokens",
  cache: "looking up and copying cached samples",
  sample: "the dataset's own __getitem__",
  transform: "transforms after the cache",
  batch: "collating samples",
  wait: "the loop, waiting for a batch",
  device: "copying to the GPU",
  loop: "the loop's own work",
};

let drawn = null; // the id of the loader in the plots
let held = false;

export function showLoader(loader, points, name, now) {
  // The plots take turns, and until then they would be another loader's below this one's name.
  if (drawn !== loader.id) {
    clear("throughput", "waiting", "hits", "memory", "busy", "timeline");
    hold(false);
  }
  drawn = loader.id;
  const stats = loader.stats ?? {};
  const { pid, rank, script } = loader;
  setText("name", name);
  setText("process", [script, `process ${pid}`, rank && `rank ${rank[0]} of ${rank[1]}`].filter(Boolean).join(", "));
  $("loader").className = loader.state;
  showNotice(loader, now);
  showVerdict(loader.verdict, stats);
  showEpoch(loader, now);
  build($("figures"), figures(stats, loader.point ?? {}), cards);
  showCurves(stats, points);
  if (!held) showSpans(loader.spans);
  build($("stages"), loader.stages ?? [], stageTable);
  const failures = (loader.failures ?? []).map((failure) => [failure, clockTime(failure.first, now), clockTime(failure.last, now)]);
  build($("trouble"), [stats.errors ?? 0, failures, stats.restarts ?? []], trouble);
  build($("settings"), settings(stats), pairs);
}

function showNotice(loader, now) {
  const ago = text(seconds(Math.max(1, Math.round(now - loader.until))));
  const words = {
    ended: `Ended ${ago} ago. These are its last figures.`,
    silent: `No answer for ${ago}: its process is stopped, or holds Python's lock. These are its last figures.`,
    running: loader.failure ? `Its figures cannot be read: ${loader.failure}` : "",
  }[loader.state];
  $("notice").hidden = !words;
  setText("notice", words);
}

function showVerdict(verdict, stats) {
  $("verdict").hidden = !verdict;
  if (!verdict) return;
  const tone = { "consumer-bound": "good", "too-short": "" }[verdict.kind] ?? "warn";
  $("verdict").className = `card ${tone} ${verdict.advice.length ? "" : "alone"}`;
  setText("kind", verdict.kind[0].toUpperCase() + verdict.kind.slice(1));
  setText("sentence", verdict.sentence);
  build($("evidence"), verdict.evidence, (lines) => lines.map((line) => element("li", {}, line)));
  $("changes").hidden = verdict.advice.length === 0;
  showAdvice(verdict.advice, stats.samples_per_second);
}

function showEpoch({ epoch, state, until }, now) {
  $("epoch").hidden = !epoch;
  if (!epoch) return;
  const { number, batches, length, expected, running, pause, seconds_left: left } = epoch;
  // One may have been more than in the epoch before.
  const all = length ?? (expected >= batches ? expected : null);
  const done = all == null ? quantity(batches, "batch", "batches") : `${count(batches)} of ${length == null ? "about " : ""}${quantity(all, "batch", "batches")}`;
  setText("epoch-title", `Epoch ${count(number)}: ${done}${all > 0 ? `, ${text(percent(batches / all))}` : ""}`);
  const answers = state === "running";
  const paused = answers && running && pause != null;
  $("epoch").className = `card ${paused ? "paused" : ""}`;
  setText("epoch-end", ends({ running, answers, ended: state === "ended", all, length, batches, pause, left, until, now }));
  $("epoch-progress").hidden = all == null;
  if (all != null) $("epoch-progress").value = all > 0 ? Math.min(1, batches / all) : 1;
}

function ends({ running, answers, ended, all, length, batches, pause, left, now }) {
  if (!running && all != null && batches < all && length != null) return "left before its end; no epoch is running";
  if (!running) return "over; no epoch is running";
  if (ended) return "the program ended during this epoch";
  if (!answers) return "";
  if (pause != null) return `pausing: no batch for ${about(pause)}${left == null ? "" : `; ${about(left)} to go when it goes on`}`;
  if (all == null) return "length unknown until an epoch has ended";
  if (left == null) return "estimating its end";
  return `ends in ${about(left)}, at ${clockTime(now + left, now).replace(/:\d\d$/, "")}`;
}

// [name, value, unit, more]
function figures(stats, point) {
  const { batch_seconds: times = {}, cache, cpu, gpu } = stats;
  const granted = stats.memory?.granted_bytes;
  const [read, unit] = bytes(point.read);
  return [
    ["Throughput", count(point.samples_per_second), "samples/s", `${count(stats.samples_per_second)} on average`],
    ["Batches", count(stats.batches_per_second), "per second", `${count(stats.batches)} in ${quantity(stats.epochs, "epoch")}`],
    ["Batch time", ...seconds(times.median), `95% within ${text(seconds(times.p95))}, 99% within ${text(seconds(times.p99))}`],
    ["First batch after", ...seconds(stats.first_batch_seconds), "in the latest epoch"],
    ["Waiting for data", ...percent(point.wait_share ?? stats.wait_share), `${text(percent(stats.wait_share))} since the start`],
    ["Cache hits", ...percent(cache ? (point.hit_rate ?? cache.hit_rate) : null), cache ? `${text(percent(cache.hit_rate))} since the start` : "no cache is set"],
    ["Memory", ...bytes(stats.memory?.tree_bytes), granted ? `of ${text(bytes(granted))} granted` : "in all its processes"],
    ["Processor", ...percent(cpu?.share), cpu ? `of ${quantity(cpu.cores, "core")}` : ""],
    ["Reading", read, unit && `${unit}/s`, `${text(bytes(stats.bytes_read))} since the start`],
    ...(gpu ? [["GPU idle", ...percent(gpu.idle_share), "since the start"]] : []),
  ];
}

const cards = (all) =>
  all.map(([name, value, unit, more]) =>
    element(
      "div",
      {},
      element("dt", {}, name),
      element("dd", {}, value, ...(unit ? [element("small", unit === "%" ? { class: "percent" } : {}, unit)] : [])),
      element("dd", { class: "more" }, more),
    ),
  );

const range = () => Number(document.querySelector("[name=range]:checked").value) || Infinity;
for (const input of document.querySelectorAll("[name=range]")) input.onchange = () => dispatchEvent(new Event("rangechange"));

function showCurves(stats, known) {
  const now = known.at(-1)?.time ?? 0;
  $("range").hidden = !(now - known[0]?.time > 600);
  const points = known.filter((point) => point.time >= now - range());
  curve("throughput", points, (point) => point.samples_per_second, { unit: "samples/s", name: "Throughput" });
  $("gaps").hidden = gaps(points).length === 0;
  curve("waiting", points, (point) => point.wait_share, { share: true, name: "Waiting for data" });
  $("hits").hidden = !stats.cache;
  $("no-hits").hidden = Boolean(stats.cache);
  if (stats.cache) curve("hits", points, (point) => point.hit_rate, { share: true, name: "Cache hits" });
  setText("memory-unit", `${memory("memory", points, "Memory")}, in all its processes`);
  areas("busy", points);
}

function showSpans(spans) {
  const some = spans?.begin.length > 0;
  $("spans").hidden = !some;
  if (some) setText("spans-length", `the latest ${text(seconds(timeline("timeline", spans)))}`);
}

function hold(whether) {
  held = whether;
  $("hold").setAttribute("aria-pressed", held);
}
$("hold").onclick = () => hold(!held);

function stageTable(stages) {
  if (stages.length === 0) return [];
  // Of the loop's time, as in the verdict: a worker's stages are the mean of all workers.
  const heads = [["Stage"], ["Of the time"], ["Per sample"], ["On a core", "spare"], ["In all", "spare"], ["Bytes", "spare"]];
  const rows = stages.map((stage) => {
    const name = stage.stage;
    const swatch = element("span", { class: "swatch" });
    swatch.style.background = `var(--${name}, var(--stock))`;
    const cells = [
      text(percent(stage.share)),
      stage.samples ? text(seconds(stage.seconds / stage.samples)) : "–",
      stage.cpu_seconds ? text(percent(Math.min(1, stage.cpu_seconds / stage.seconds))) : "–",
      text(seconds(stage.seconds)),
      stage.bytes ? text(bytes(stage.bytes)) : "–",
    ];
    const meaning = element("span", { class: "spare quiet" }, MEANING[name] ?? "");
    return element(
      "tr",
      {},
      element("td", {}, swatch, name, meaning),
      ...cells.map((words, i) => element("td", { class: heads[i + 1][1] }, words)),
    );
  });
  const head = element("tr", {}, ...heads.map(([words, kind]) => element("th", { scope: "col", class: kind }, words)));
  return element("table", {}, element("thead", {}, head), element("tbody", {}, ...rows));
}

function trouble([errors, failures, restarts]) {
  if (!errors && !restarts.length) return element("p", { class: "fine" }, "No sample has failed, and no worker process was replaced.");
  const made = [];
  const addList = (words, items) => made.push(element("p", { class: "error" }, words), element("ul", {}, ...items));
  if (errors) {
    const kinds = failures.length > 1 ? `, with ${quantity(failures.length, "kind")} of errors` : "";
    addList(`${quantity(errors, "sample")} could not be loaded${kinds}`, failures.map(failed));
  }
  if (restarts.length) {
    const items = restarts.slice(-5).reverse().map(({ exitcode, pid, worker }) => {
      const end = exitcode < 0 ? `was killed by signal ${-exitcode}` : `ended with exit code ${exitcode}`;
      return element("li", {}, `Worker ${worker} (process ${pid}) ${end}`);
    });
    addList(`${quantity(restarts.length, "worker process", "worker processes")} replaced`, items);
  }
  return made;
}

// All samples that failed with the same error.
function failed([{ error, count: times, example = {} }, first, last]) {
  const { action, index, source } = example;
  const one = `${index == null ? "a sample of a stream" : `sample ${index}`}${source ? `, ${source}` : ""}`;
  const when = times === 1 || first === last ? `at ${last}` : `first at ${first}, last at ${last}`;
  const latest = `${times === 1 ? "" : "the latest: "}${one}: ${action === "skip" ? "skipped" : "replaced"}`;
  const lines = [when, latest, ...(example.error && example.error !== error ? [example.error] : [])];
  return element(
    "li",
    {},
    element("span", { class: "many", title: quantity(times, "sample") }, `${count(times)}×`),
    element("span", {}, error),
    ...lines.map((words) => element("div", { class: "where" }, words)),
  );
}

function settings({ loader = {}, workers = {}, memory = {}, cache }) {
  const kind = { processes: "process", threads: "thread" }[workers.kind] ?? workers.kind;
  const pool = workers.count ? quantity(workers.count, kind, workers.kind) : "none: the loop's own thread makes the batches";
  return [
    ["Dataset", loader.dataset],
    ["Batch size", loader.batch_size],
    ["Workers", workers.kind && (workers.count && workers.why ? `${pool}, ${workers.why}` : pool)],
    ["Prefetch depth", workers.depth == null ? null : quantity(workers.depth, "batch", "batches")],
    ["Collated", loader.native == null ? null : loader.native ? "by the native core" : "by Python"],
    ["Page-locked", loader.pin_memory == null ? null : loader.pin_memory ? "yes" : "no"],
    ["Largest batch", memory.batch_bytes ? text(bytes(memory.batch_bytes)) : null],
    ["Memory budget", memory.limit == null ? "all granted memory" : text(bytes(memory.limit))],
    ["Cached", cache ? quantity(cache.samples, "sample") : null],
    ...(workers.tuning ?? []).map((change) => ["Tuned", change]),
    ...(memory.decisions ?? []).map((decision) => ["Decided", String(decision)]),
  ].filter(([, value]) => value != null);
}

const pairs = (list) => list.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, `${value}`)]);
