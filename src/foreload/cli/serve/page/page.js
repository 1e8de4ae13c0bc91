// The page: receives the server's events, and shows the chosen loader.

import { showTrial } from "./bench.js";
import { showComparison } from "./compare.js";
import { showLoader } from "./loader.js";
import { soon } from "./turns.js";
import { $, build, bytes, count, element, quantity, percent, setText, text } from "./elements.js";

let state = null;
let past = {};
let source = null;

function listen() {
  source = new EventSource("events");
  source.addEventListener("past", (event) => {
    past = JSON.parse(event.data);
  });
  source.onmessage = (event) => {
    state = JSON.parse(event.data);
    remember(state.loaders);
    link("live", "live");
    showSoon();
  };
  source.onerror = () => {
    link("lost", "no answer from foreload serve; trying again");
    // After a refusal the browser does not retry by itself.
    if (source.readyState === EventSource.CLOSED) setTimeout(listen, 3000);
  };
}

// Every few minutes the server sends all points again, fewer of the older ones.
function remember(loaders) {
  for (const { id, point } of loaders) {
    const points = (past[id] ??= []);
    const last = points.at(-1);
    if (!point || last?.time >= point.time) continue;
    // Nothing is known before the first point after a gap, but from it to the second.
    if (last && last.samples_per_second == null && !point.gap) {
      const { time, batches, gap, memory } = last;
      Object.assign(last, point, { time, batches, gap, memory });
    }
    points.push(point);
  }
  const known = new Set(loaders.map((loader) => loader.id));
  for (const id of Object.keys(past)) if (!known.has(id)) delete past[id];
}

function link(mood, words) {
  $("link").className = mood;
  setText("link-words", words);
}

function show() {
  if (!state) return;
  const { loaders, machine } = state;
  setText("machine", `${machine.name}, ${quantity(machine.cores, "core")}, ${text(bytes(machine.memory))}`);
  const running = loaders.filter((loader) => loader.state !== "ended");
  const chosen = loaders.find((loader) => `#${loader.id}` === location.hash) ?? running[0] ?? loaders.at(-1);
  document.title = chosen ? `${named(chosen)}: ${pace(chosen)} · foreload` : "foreload";
  $("empty").hidden = loaders.length > 0;
  $("loader").hidden = !chosen;
  $("loaders").hidden = loaders.length < 2;
  $("beside").hidden = running.length === 0;
  build($("loaders"), loaders.map((loader) => [loader.id, loader === chosen, loader.state, named(loader), now(loader)]), list);
  if (chosen) showLoader(chosen, past[chosen.id] ?? [], named(chosen), state.time);
  showComparison(loaders, past, chosen, named, state.time);
  showTrial(state.bench);
}

const named = (loader) => (loader.rank ? `${loader.name}, rank ${loader.rank[0]}` : loader.name);
const resting = (loader) => loader.epoch && !loader.epoch.running;
const pace = (loader) => {
  if (loader.state === "ended") return "ended";
  if (resting(loader)) return "no epoch running";
  return loader.point?.samples_per_second != null ? `${count(loader.point.samples_per_second)} samples/s` : "starting";
};
const DOTS = { running: "live", silent: "waiting", ended: "" };

function now(loader) {
  if (loader.state !== "running") return loader.state === "ended" ? "ended" : "no answer";
  return resting(loader) || loader.point?.wait_share == null ? pace(loader) : `${pace(loader)}, waits ${text(percent(loader.point.wait_share))}`;
}

function list(loaders) {
  const focused = document.activeElement?.closest?.("#loaders a")?.hash;
  const links = loaders.map(([id, chosen, mood, name, words]) =>
    element(
      "a",
      { href: `#${id}`, "aria-current": chosen ? "true" : null },
      element("span", { class: `label ${DOTS[mood]}` }, element("span", { class: "dot" }), element("span", {}, name)),
      element("span", { class: "now" }, words),
    ),
  );
  // The links are made anew, so the keyboard's focus must be restored.
  if (focused) queueMicrotask(() => links.find((link) => link.hash === focused)?.focus());
  return links;
}

document.addEventListener("visibilitychange", () => {
  // A hidden page needs no measurements.
  source.close();
  if (!document.hidden) listen();
});
const showSoon = () => soon("page", show);
for (const change of ["rangechange", "hashchange", "resize", "scrollend"]) addEventListener(change, showSoon);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", showSoon);
$("plotly").addEventListener("load", showSoon);
listen();
