// The page: takes in what the server tells, and shows the loader that is chosen.

import { Timeline, bars, bytes, count, curve, element, percent, seconds, spark, text } from "./draw.js";

const POINTS = 900;
const MEANING = {
  order: "drawing the order, planning the cache",
  read: "bytes from disk or network",
  decode: "bytes to pixels, rows, tokens",
  cache: "looking up and copying what is kept",
  sample: "the dataset's own __getitem__",
  transform: "transforms after the cache",
  batch: "collating, gathering, pinning",
  wait: "the loop waits for a batch",
  device: "copying to the GPU",
};

const $ = (id) => document.getElementById(id);
const say = (id, words) => {
  const node = $(id);
  if (node.textContent !== words) node.textContent = words;
};
const built = new WeakMap();

// Builds anew only what has changed, so that a selection of text survives.
function build(node, what, make) {
  const key = JSON.stringify(what);
  if (built.get(node) === key) return;
  built.set(node, key);
  node.replaceChildren(...[make(what)].flat());
}

let state = null;
let past = {};
let source = null;
let asked = false;
const timeline = new Timeline($("timeline"));

// What comes in

function listen() {
  source = new EventSource("events");
  source.addEventListener("past", (event) => {
    past = JSON.parse(event.data);
  });
  source.onmessage = (event) => {
    state = JSON.parse(event.data);
    if (!state.loaders) return;
    for (const { id, point } of state.loaders) {
      const points = (past[id] ??= []);
      if (point && !(points.at(-1)?.[0] >= point[0])) points.push(point);
      if (points.length > POINTS) points.shift();
    }
    const known = new Set(state.loaders.map((loader) => loader.id));
    for (const id of Object.keys(past)) if (!known.has(id)) delete past[id];
    link("live", "live");
    show();
  };
  source.onerror = () => {
    link("lost", "no answer from foreload serve; trying again");
    // After a refusal the browser does not try again by itself.
    if (source.readyState === EventSource.CLOSED) setTimeout(listen, 3000);
  };
}

function link(mood, words) {
  $("link").className = mood;
  say("link-words", words);
}

document.addEventListener("visibilitychange", () => {
  // Nobody looks: nothing need be measured.
  source?.close();
  if (!document.hidden) listen();
});
addEventListener("hashchange", () => state && show());
new ResizeObserver(() => state && show()).observe(document.querySelector("main"));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => state && show());

// What is shown

function show() {
  const { loaders, machine } = state;
  say("machine", `${machine.name}, ${machine.cores} ${machine.cores === 1 ? "core" : "cores"}, ${text(bytes(machine.memory))}`);
  const running = loaders.filter((loader) => loader.state !== "ended");
  const chosen = loaders.find((loader) => `#${loader.id}` === location.hash) ?? running[0] ?? loaders.at(-1);
  document.title = chosen ? `${chosen.name}: ${rate(chosen)} · foreload` : "foreload";
  $("empty").hidden = loaders.length > 0;
  $("loader").hidden = !chosen;
  $("loaders").hidden = loaders.length < 2;
  showList(loaders, chosen);
  if (chosen) showLoader(chosen);
  $("beside").hidden = running.length === 0;
  showTrial(state.bench);
}

const rate = (loader) => (loader.point?.[1] != null ? `${count(round(loader.point[1]))} samples/s` : "starting");
const round = (value) => (value == null ? value : Number(value.toPrecision(3)));
const DOTS = { running: "live", silent: "waiting", ended: "" };

function showList(loaders, chosen) {
  const list = loaders.map((loader) => {
    const dot = element("span", { class: DOTS[loader.state] }, element("span", { class: "dot" }));
    const now = loader.state === "ended" ? "ended" : loader.state === "silent" ? "does not answer" : `${rate(loader)}, waits ${text(percent(loader.point?.[2]))}`;
    return element(
      "a",
      { href: `#${loader.id}`, "aria-current": loader === chosen ? "true" : null },
      element("span", { class: "label" }, dot, element("span", {}, named(loader))),
      element("span", { class: "now" }, now),
      spark(past[loader.id] ?? []),
    );
  });
  const focused = document.activeElement?.closest?.("#loaders a")?.hash;
  $("loaders").replaceChildren(...list);
  if (focused) list.find((link) => link.hash === focused)?.focus();
}

const named = (loader) => (loader.rank ? `${loader.name}, rank ${loader.rank[0]}` : loader.name);

function showLoader(loader) {
  const stats = loader.stats ?? {};
  const points = past[loader.id] ?? [];
  say("name", named(loader));
  say("who", [loader.script, `process ${loader.pid}`, loader.rank && `rank ${loader.rank[0]} of ${loader.rank[1]}`].filter(Boolean).join(", "));
  $("loader").className = loader.state;
  showNotice(loader);
  showVerdict(loader.verdict, stats);
  showFigures(stats, loader.point ?? []);
  showCurves(stats, points);
  if ($("hold").getAttribute("aria-pressed") !== "true") showTimeline(loader.spans);
  build($("stages"), stats.stages ?? {}, stageTable);
  build($("trouble"), [stats.errors ?? 0, loader.errors ?? [], stats.restarts ?? []], trouble);
  build($("settings"), settings(stats), pairs);
}

function showNotice(loader) {
  const ago = text(seconds(Math.max(1, Math.round(state.time - loader.until))));
  const words =
    loader.state === "ended" ? `Ended ${ago} ago. These are its last figures.`
    : loader.state === "silent" ? `Has not answered for ${ago}: its process is stopped, or holds Python's lock. These are its last figures.`
    : loader.failure ? `Its figures cannot be read: ${loader.failure}`
    : "";
  $("notice").hidden = !words;
  say("notice", words);
}

function showVerdict(verdict, stats) {
  $("verdict").hidden = !verdict;
  if (!verdict) return;
  const tone = { "consumer-bound": "good", "too-short": "" }[verdict.kind] ?? "warn";
  $("verdict").className = `card ${tone} ${verdict.advice.length ? "" : "alone"}`;
  say("kind", verdict.kind[0].toUpperCase() + verdict.kind.slice(1).replace("too-short", "too short"));
  say("sentence", verdict.sentence);
  build($("evidence"), verdict.evidence, (lines) => lines.map((line) => element("li", {}, line)));
  $("changes").hidden = verdict.advice.length === 0;
  const speed = stats.samples_per_second ?? 0;
  const advice = verdict.advice.map(({ change, gain }) => [change, gain == null ? null : `${gain.toFixed(1)}×`, gain == null ? null : `predicted: ${count(round(gain * speed))} samples/s instead of ${count(round(speed))}`]);
  build($("advice"), advice, (items) =>
    items.map(([change, gain, meaning]) => element("li", {}, element("span", {}, change), ...(gain ? [element("span", { class: "gain", title: meaning }, gain)] : []))),
  );
}

function showFigures(stats, [, speed, waits, hits, memory, read]) {
  const times = stats.batch_seconds ?? {};
  const cache = stats.cache;
  const figures = [
    ["Throughput", count(round(speed)), "samples/s", `${count(round(stats.samples_per_second))} on average`],
    ["Batches", count(round(stats.batches_per_second)), "per second", `${count(stats.batches)} in ${count(stats.epochs)} ${stats.epochs === 1 ? "epoch" : "epochs"}`],
    ["Batch time", ...seconds(times.median), `95 % within ${text(seconds(times.p95))}, 99 % within ${text(seconds(times.p99))}`],
    ["First batch after", ...seconds(stats.first_batch_seconds), "in the latest epoch"],
    ["Waiting for data", ...percent(waits ?? stats.wait_share), `${text(percent(stats.wait_share))} of the loop since the start`],
    ["Cache hits", ...(cache ? percent(hits ?? cache.hit_rate) : ["–", ""]), cache ? `${text(percent(cache.hit_rate))} since the start` : "no cache is set"],
    ["Memory", ...bytes(memory ?? stats.memory?.tree_bytes), stats.memory?.granted_bytes ? `of ${text(bytes(stats.memory.granted_bytes))} granted` : "of its processes"],
    ["Processor", ...percent(stats.cpu?.share), stats.cpu ? `of ${stats.cpu.cores} ${stats.cpu.cores === 1 ? "core" : "cores"}` : ""],
    ["Read", bytes(read)[0], bytes(read)[1] && `${bytes(read)[1]}/s`, `${text(bytes(stats.bytes_read))} since the start`],
  ];
  if (stats.gpu) figures.push(["GPU idle", ...percent(stats.gpu.idle_share), "since the start"]);
  build($("figures"), figures, (all) =>
    all.map(([name, value, unit, more]) =>
      element("div", {}, element("dt", {}, name), element("dd", {}, value, ...(unit ? [element("small", {}, unit)] : [])), element("dd", { class: "more" }, more)),
    ),
  );
}

function showCurves(stats, points) {
  const pick = (which) => points.map((point) => [point[0], point[which]]);
  const last = points.at(-1) ?? [];
  const perSecond = (value) => [count(value), ""];
  say("throughput-now", "samples per second");
  curve($("throughput"), pick(1), { show: perSecond, label: "Throughput, samples per second", empty: "The curve begins with the next figures" });
  say("waiting-now", "of the loop's time");
  curve($("waiting"), pick(2), { show: percent, label: "Waiting for data", top: 1, empty: "The loop is not running" });
  say("hits-now", stats.cache?.order ? `${stats.cache.order} order` : "of look-ups");
  curve($("hits"), stats.cache ? pick(3) : [], { show: percent, label: "Cache hits", top: 1, empty: stats.cache ? "No look-ups now" : "No cache is set" });
  say("memory-now", "of all its processes");
  curve($("memory"), pick(4), { show: bytes, label: "Memory", binary: true });
  return last;
}

function showTimeline(spans) {
  timeline.draw(spans);
  say("timeline-span", spans?.begin.length ? `the last ${text(seconds(timeline.end / 1e6))}` : "");
}

$("hold").onclick = () => {
  const held = $("hold").getAttribute("aria-pressed") !== "true";
  $("hold").setAttribute("aria-pressed", held);
  if (!held && state) show();
};

function stageTable(stages) {
  const busy = Object.entries(stages).filter(([, stage]) => stage.count > 0);
  if (busy.length === 0) return [];
  const total = busy.reduce((sum, [, stage]) => sum + stage.seconds, 0) || 1;
  const most = Math.max(...busy.map(([, stage]) => stage.seconds)) || 1;
  const rows = busy.map(([name, stage]) => {
    const swatch = element("span", { class: "swatch" });
    const bar = element("i");
    swatch.style.background = bar.style.background = `var(--${name}, var(--stock))`;
    bar.style.width = `${(100 * stage.seconds) / most}%`;
    const each = stage.samples ? text(seconds(stage.seconds / stage.samples)) : "–";
    return element(
      "tr",
      {},
      element("td", { title: MEANING[name] ?? "" }, swatch, name),
      element("td", { class: "bar" }, bar),
      element("td", {}, text(percent(stage.seconds / total))),
      element("td", {}, each),
      element("td", { class: "spare" }, stage.cpu_seconds ? text(percent(Math.min(1, stage.cpu_seconds / stage.seconds))) : "–"),
      element("td", { class: "spare" }, text(seconds(stage.seconds))),
      element("td", { class: "spare" }, stage.bytes ? text(bytes(stage.bytes)) : "–"),
    );
  });
  const heads = [["Stage"], [""], ["Share"], ["Per sample"], ["On processor", "spare"], ["In all", "spare"], ["Bytes", "spare"]];
  return element(
    "div",
    { class: "scroll" },
    element(
      "table",
      {},
      element("thead", {}, element("tr", {}, ...heads.map(([words, kind]) => element("th", { scope: "col", class: kind }, words)))),
      element("tbody", {}, ...rows),
    ),
  );
}

function trouble([errors, list, restarts]) {
  if (!errors && !list.length && !restarts.length) return element("p", { class: "fine" }, "No sample has failed, and no worker had to be replaced.");
  const made = [];
  if (errors || list.length) {
    made.push(element("p", { class: "error" }, `${count(Math.max(errors, list.length))} ${errors === 1 ? "sample" : "samples"} could not be loaded`));
    const items = list.slice(-5).reverse().map((error) =>
      element("li", {}, error.error, element("div", { class: "where" }, `${error.index == null ? "a sample of a stream" : `sample ${error.index}`}${error.source ? `, ${error.source}` : ""}: ${error.action === "skip" ? "left out" : "replaced"}`)),
    );
    made.push(element("ul", {}, ...items));
  }
  if (restarts.length) {
    made.push(element("p", { class: "error" }, `${count(restarts.length)} worker ${restarts.length === 1 ? "process was" : "processes were"} replaced`));
    const items = restarts.slice(-5).reverse().map((restart) =>
      element("li", {}, `Worker ${restart.worker} (process ${restart.pid}) ${restart.exitcode < 0 ? `was killed by signal ${-restart.exitcode}` : `ended with exit code ${restart.exitcode}`}`),
    );
    made.push(element("ul", {}, ...items));
  }
  return made;
}

function settings({ loader = {}, workers = {}, memory = {}, cache }) {
  const found = [["Dataset", loader.dataset], ["Batch size", loader.batch_size == null ? null : count(loader.batch_size)]];
  const kind = workers.kind === "processes" ? ["process", "processes"] : ["thread", "threads"];
  if (workers.kind) found.push(["Workers", workers.count ? `${workers.count} ${kind[workers.count === 1 ? 0 : 1]}${workers.why ? `: ${workers.why}` : ""}` : "none: batches are made in the loop"]);
  if (workers.depth != null) found.push(["Made ahead", `${count(workers.depth)} ${workers.depth === 1 ? "batch" : "batches"}`]);
  if (loader.native != null) found.push(["Assembled", loader.native ? "by the native core" : "by Python"]);
  if (loader.pin_memory != null) found.push(["Page-locked", loader.pin_memory ? "yes" : "no"]);
  if (memory.batch_bytes) found.push(["Batch", text(bytes(memory.batch_bytes))]);
  found.push(["Memory budget", memory.limit == null ? "the machine's" : text(bytes(memory.limit))]);
  if (cache) found.push(["Cached", `${count(cache.samples)} samples`]);
  for (const change of workers.tuning ?? []) found.push(["Tuned", change]);
  for (const decision of memory.decisions ?? []) found.push(["Memory", String(decision)]);
  return found.filter(([, value]) => value != null);
}

const pairs = (list) => list.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]);

// The benchmark

const form = $("wish");

form.onchange = () => {
  const kind = form.elements.kind.value;
  for (const field of form.querySelectorAll("[data-for]")) field.hidden = field.dataset.for !== kind;
};
form.onchange();

form.onsubmit = async (event) => {
  event.preventDefault();
  const wish = { kind: form.elements.kind.value };
  for (const name of ["images", "rows", "columns", "batch_size", "seeds"]) wish[name] = Number(form.elements[name].value);
  wish.folder = form.elements.folder.value;
  await ask("bench", wish);
};
$("stop").onclick = () => ask("bench/stop", {});

async function ask(where, what) {
  asked = true;
  $("start").disabled = true;
  let words = "";
  try {
    const answer = await fetch(where, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(what) });
    if (!answer.ok) words = (answer.headers.get("content-type") ?? "").includes("json") ? (await answer.json()).error : await answer.text();
  } catch {
    words = "foreload serve does not answer";
  }
  asked = false;
  $("wish-error").hidden = !words;
  say("wish-error", words && words[0].toUpperCase() + words.slice(1));
  if (state) showTrial(state.bench);
}

function showTrial(trial) {
  const running = trial?.state === "running";
  $("start").disabled = asked || running;
  $("trial").hidden = !trial;
  if (!trial) return;
  say("command", `$ ${trial.command}`);
  $("running").hidden = !running;
  if (running) {
    const { done, of, doing } = trial.progress ?? { done: 0, of: 1, doing: "starting" };
    say("doing", of > 1 ? `Step ${done + 1} of ${of}: ${doing}` : doing[0].toUpperCase() + doing.slice(1));
    if (done || of > 1) $("progress").value = done / of;
    else $("progress").removeAttribute("value");
  }
  const outcome = { done: trial.sentence, stopped: "Stopped before it had ended.", failed: `It failed: ${trial.error}` }[trial.state];
  $("outcome").hidden = !outcome;
  $("outcome").className = `outcome ${trial.state === "failed" ? "error" : ""}`;
  say("outcome", outcome ?? "");
  $("results").hidden = trial.state !== "done";
  if (trial.state === "done") build($("results"), [trial.results, trial.work, $("trial").clientWidth], results);
}

const median = (values) => {
  const sorted = [...values].sort((a, b) => a - b);
  const middle = sorted.length >> 1;
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
};

function results([entries, work, width]) {
  const unit = work.rows ? "rows" : "images";
  const stock = Math.max(...entries.filter((entry) => entry.stock).map((entry) => median(entry.samples_per_second)));
  const wide = width > 700 ? (width - 40) / 2 : width;
  const draw = (title, values, words) => {
    const rows = entries.map((entry) => {
      const list = values(entry);
      return { name: entry.name, value: median(list), low: Math.min(...list), high: Math.max(...list), tone: entry.stock ? "--stock" : "--accent", words: words(median(list), entry) };
    });
    return element("section", {}, element("h3", {}, title), element("figure", {}, bars(rows, wide, title)));
  };
  const head = ["", `${unit}/s`, "Speed-up", "Batch", "First batch", "Memory"];
  const body = entries.map((entry) => {
    const speed = median(entry.samples_per_second);
    const cells = [entry.name, count(round(speed)), `${(speed / stock).toFixed(2)}×`, text(seconds(median(entry.batch_ms) / 1e3)), text(seconds(median(entry.first_batch_ms) / 1e3)), text(bytes(entry.memory_mib * 2 ** 20))];
    return element("tr", { class: entry.stock ? "" : "strong" }, ...cells.map((cell) => element("td", {}, cell)));
  });
  return [
    element(
      "div",
      { class: "two" },
      draw(`${unit[0].toUpperCase()}${unit.slice(1)} per second`, (entry) => entry.samples_per_second, (value, entry) => count(round(value)) + (entry.stock ? "" : `  (${(value / stock).toFixed(1)}×)`)),
      draw("Time to the first batch", (entry) => entry.first_batch_ms, (value) => text(seconds(value / 1e3))),
    ),
    element("div", { class: "scroll" }, element("table", {}, element("thead", {}, element("tr", {}, ...head.map((words) => element("th", { scope: "col" }, words)))), element("tbody", {}, ...body))),
    element("p", { class: "quiet" }, "Medians; thin lines reach from the slowest epoch to the fastest. Speed-up is over stock torch at its best. Memory is that of all processes, less importing torch."),
  ];
}

listen();
