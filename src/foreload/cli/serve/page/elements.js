// Page elements, and numbers with units. An amount is [text, unit], with three significant digits.

export const $ = (id) => document.getElementById(id);

export function element(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}

// Sets changed text only, so that a selection survives.
export function setText(id, words) {
  if ($(id).textContent !== words) $(id).textContent = words;
}

const built = new WeakMap();

// Rebuilds the children of a node if what they show has changed.
export function build(node, what, make) {
  const key = JSON.stringify(what);
  if (built.get(node) === key) return;
  built.set(node, key);
  node.replaceChildren(...[make(what)].flat());
}

export const quantity = (number, one, more = `${one}s`) => `${count(number)} ${number === 1 ? one : more}`;

const NONE = ["–", ""];
const missing = (value) => value === null || value === undefined;

// (toLocaleString makes one each time, which takes longer than all else that a page of figures needs.)
const WHOLE = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const SHORT = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });

export function count(value) {
  if (missing(value)) return NONE[0];
  return (Number.isInteger(value) || Math.abs(value) >= 1000 ? WHOLE : SHORT).format(value);
}

export function bytes(value) {
  if (missing(value)) return NONE;
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  const power = value < 1 ? 0 : Math.min(units.length - 1, Math.floor(Math.log2(value * 1.0005) / 10));
  return [count(power ? value / 1024 ** power : Math.round(value)), units[power]];
}

export function seconds(value) {
  if (missing(value)) return NONE;
  if (value === 0) return ["0", "s"];
  if (value < 1e-3) return [count(value * 1e6), "µs"];
  if (value < 1) return [count(value * 1e3), "ms"];
  if (value < 120) return [count(value), "s"];
  return value < 7200 ? [count(value / 60), "min"] : [count(value / 3600), "h"];
}

export function percent(value) {
  if (missing(value)) return NONE;
  return [(100 * value).toFixed(value > 0 && value < 0.0995 ? 1 : 0), "%"];
}

export const text = ([value, unit]) => (unit ? `${value}${unit === "%" ? "" : "\u00a0"}${unit}` : value);

// The time of day, with the date if that is another day.
export function clockTime(time, now) {
  const [then, today] = [new Date(time * 1000), new Date(now * 1000)];
  const hour = then.toLocaleTimeString("en-GB");
  if (then.toDateString() === today.toDateString()) return hour;
  return `${then.toLocaleDateString("en-GB", { day: "numeric", month: "short" })}, ${hour}`;
}

// A time to wait, in words that do not change every second.
export function about(time) {
  if (time < 10) return "a few seconds";
  if (time < 100) return `${Math.round(time / 10) * 10} s`;
  if (time < 7200) return `${Math.round(time / 60)} min`;
  return time < 48 * 3600 ? `${count(time / 3600)} h` : `${count(time / 86400)} days`;
}
