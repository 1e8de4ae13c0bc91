// Numbers with units, curves, bars and the timeline. Nothing here knows where the figures come from.

export function element(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

function shape(tag, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}

// Numbers: three digits that count, and a unit. [text, unit]

const THIN = " ";

export function count(value) {
  if (value === null || value === undefined) return "–";
  const digits = value !== 0 && Math.abs(value) < 9.95 ? 2 : Math.abs(value) < 99.5 ? 1 : 0;
  const exact = Number.isInteger(value);
  return value.toLocaleString("en", { maximumFractionDigits: exact ? 0 : digits, minimumFractionDigits: exact ? 0 : digits });
}

export function bytes(value) {
  if (value === null || value === undefined) return ["–", ""];
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let power = 0;
  while (Math.abs(value) >= 999.5 && power < units.length - 1) {
    value /= 1024;
    power += 1;
  }
  const digits = power === 0 || value >= 99.5 ? 0 : value >= 9.95 ? 1 : 2;
  return [value.toFixed(digits), units[power]];
}

export function seconds(value) {
  if (value === null || value === undefined) return ["–", ""];
  if (value === 0) return ["0", "s"];
  if (value < 1e-3) return [count(round3(value * 1e6)), "µs"];
  if (value < 1) return [count(round3(value * 1e3)), "ms"];
  if (value < 120) return [count(round3(value)), "s"];
  if (value < 7200) return [count(round3(value / 60)), "min"];
  return [count(round3(value / 3600)), "h"];
}

export function percent(value) {
  if (value === null || value === undefined) return ["–", ""];
  const parts = 100 * value;
  return [parts > 0 && parts < 9.95 ? parts.toFixed(1) : parts.toFixed(0), "%"];
}

export const text = ([value, unit]) => (unit ? value + THIN + unit : value);

const round3 = (value) => Number(value.toPrecision(3));

function nice(value, base = 10) {
  const power = base ** Math.floor(Math.log(value) / Math.log(base));
  const steps = base === 10 ? [1, 1.5, 2, 3, 4, 5, 6, 8, 10] : [1, 1.5, 2];
  return steps.map((step) => step * power).find((step) => step >= value * 0.999);
}

// A note at the pointer.

const tip = document.getElementById("tip");

function note(words, event) {
  tip.hidden = !words;
  if (!words) return;
  tip.textContent = words;
  const { width, height } = tip.getBoundingClientRect();
  const left = event.clientX + 14 + width > innerWidth - 8 ? event.clientX - 14 - width : event.clientX + 14;
  tip.style.left = `${Math.max(8, left)}px`;
  tip.style.top = `${Math.max(8, event.clientY - height - 12)}px`;
}

function nothing(box, words) {
  box.replaceChildren(element("div", { class: "nothing" }, words));
  box.firstChild.style.height = `${box.dataset.height}px`;
}

// A curve over time. points: [time, value or null]; show: value -> [text, unit]; top: the least top of the axis.

export function curve(box, points, { show, label, top = null, binary = false, empty = "nothing yet" }) {
  const known = points.filter(([, value]) => value !== null && value !== undefined);
  const width = box.clientWidth;
  if (!width) return;
  if (known.length === 0) return nothing(box, empty);
  const height = Number(box.dataset.height);
  const most = Math.max(...known.map(([, value]) => value), 1e-9);
  const ceiling = top ?? nice(most * 1.05, binary ? 2 : 10);
  const ticks = (height > 150 ? [0, 0.25, 0.5, 0.75, 1] : [0, 0.5, 1]).map((part) => part * ceiling);
  const left = 10 + 6.6 * Math.max(...ticks.map((tick) => text(show(tick)).length));
  const plot = { left, right: width - 8, top: 8, bottom: height - 22 };
  const now = points.at(-1)[0];
  const span = Math.max(60, now - points[0][0]);
  const x = (time) => plot.right - ((now - time) / span) * (plot.right - plot.left);
  const y = (value) => plot.bottom - (Math.min(value, ceiling) / ceiling) * (plot.bottom - plot.top);

  const drawing = shape("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${label}: now ${text(show(known.at(-1)[1]))}` });
  for (const tick of ticks) {
    const at = Math.round(y(tick)) + 0.5;
    drawing.append(
      shape("line", { class: "grid", x1: plot.left, x2: plot.right, y1: at, y2: at }),
      shape("text", { x: plot.left - 8, y: at + 4, "text-anchor": "end" }, text(show(tick))),
    );
  }
  for (const [back, words] of moments(span, plot.right - plot.left)) {
    const anchor = back === 0 ? "end" : x(now - back) - plot.left < 24 ? "start" : "middle";
    drawing.append(shape("text", { x: x(now - back), y: height - 4, "text-anchor": anchor }, words));
  }
  for (const piece of pieces(points)) {
    const path = piece.map(([time, value], i) => `${i ? "L" : "M"}${x(time).toFixed(1)} ${y(value).toFixed(1)}`).join("");
    drawing.append(
      shape("path", { class: "under", d: `${path}L${x(piece.at(-1)[0]).toFixed(1)} ${plot.bottom}L${x(piece[0][0]).toFixed(1)} ${plot.bottom}Z` }),
      shape("path", { class: "curve", d: path }),
    );
  }
  const spot = shape("circle", { class: "spot", r: 4.5, cx: x(known.at(-1)[0]), cy: y(known.at(-1)[1]) });
  const cross = shape("line", { class: "cross", y1: plot.top, y2: plot.bottom, visibility: "hidden" });
  drawing.append(cross, spot);
  drawing.onpointermove = (event) => {
    const at = event.clientX - drawing.getBoundingClientRect().left;
    const near = known.reduce((best, point) => (Math.abs(x(point[0]) - at) < Math.abs(x(best[0]) - at) ? point : best));
    spot.setAttribute("cx", x(near[0]));
    spot.setAttribute("cy", y(near[1]));
    cross.setAttribute("x1", x(near[0]));
    cross.setAttribute("x2", x(near[0]));
    cross.setAttribute("visibility", "visible");
    note(`${text(show(near[1]))}\n${new Date(near[0] * 1000).toLocaleTimeString()}`, event);
  };
  drawing.onpointerleave = () => {
    cross.setAttribute("visibility", "hidden");
    note("");
  };
  box.replaceChildren(drawing);
}

function moments(span, width) {
  const step = [10, 15, 30, 60, 120, 300, 600, 1800, 3600].find((it) => (it / span) * width > 64) ?? 7200;
  const marks = [[0, "now"]];
  for (let back = step; back <= span; back += step) {
    if ((back / span) * width > 56) marks.push([back, back < 60 || step % 60 ? `−${back}${THIN}s` : `−${back / 60}${THIN}min`]);
  }
  return marks;
}

function pieces(points) {
  const found = [[]];
  for (const point of points) {
    if (point[1] === null || point[1] === undefined) found.push([]);
    else found.at(-1).push(point);
  }
  return found.filter((piece) => piece.length);
}

export function spark(points, width = 84, height = 32) {
  const values = points.slice(-60).map((point) => point[1] ?? 0);
  const most = Math.max(...values, 1e-9);
  const x = (i) => width - (values.length - 1 - i) * (width / 59);
  const path = values.map((value, i) => `${i ? "L" : "M"}${x(i).toFixed(1)} ${(height - 2 - (value / most) * (height - 4)).toFixed(1)}`).join("");
  return shape("svg", { width, height, "aria-hidden": "true" }, shape("path", { class: "curve", d: path }));
}

// Bars. rows: {name, value, low, high, tone, words}

export function bars(rows, width, label) {
  const step = 44;
  const words = 7.4 * Math.max(...rows.map((row) => row.words.length)) + 14;
  const most = Math.max(...rows.map((row) => row.high));
  const x = (value) => (value / most) * (width - words);
  const height = rows.length * step;
  const drawing = shape("svg", { width, height, role: "img", "aria-label": `${label}: ${rows.map((row) => `${row.name} ${row.words}`).join("; ")}` });
  rows.forEach((row, i) => {
    const top = i * step;
    const middle = top + 29;
    drawing.append(
      shape("text", { class: "name", x: 0, y: top + 15 }, row.name),
      shape("rect", { x: 0, y: top + 22, width: Math.max(2, x(row.value)), height: 14, rx: 3, fill: `var(${row.tone})` }),
      shape("line", { class: "reach", x1: x(row.low), x2: x(row.high), y1: middle, y2: middle }),
      shape("text", { class: "value", x: x(row.high) + 8, y: middle + 5 }, row.words),
    );
  });
  return drawing;
}

// The timeline: a lane for each worker and the loop, in microseconds.

export class Timeline {
  constructor(box) {
    this.box = box;
    this.canvas = element("canvas", { role: "img" });
    this.canvas.onpointermove = (event) => this.point(event);
    this.canvas.onpointerdown = (event) => this.point(event);
    this.canvas.onpointerleave = () => note("");
  }

  draw(spans) {
    this.spans = spans;
    if (!spans || spans.begin.length === 0) {
      this.box.dataset.height = 90;
      nothing(this.box, spans ? "Nothing has happened yet" : "This loader keeps no spans");
      return;
    }
    if (this.canvas.parentNode !== this.box) this.box.replaceChildren(this.canvas);
    const width = this.box.clientWidth;
    if (!width) return;
    const busy = new Set(spans.lane);
    this.lanes = spans.lanes.map((_, lane) => lane).filter((lane) => busy.has(lane));
    this.end = spans.begin.reduce((most, begin, i) => Math.max(most, begin + spans.length[i]), 1);
    this.step = this.lanes.length > 32 ? 9 : this.lanes.length > 12 ? 15 : 26;
    this.left = Math.min(width * 0.24, 12 + 7 * Math.max(...this.lanes.map((lane) => spans.lanes[lane][0].length)));
    this.right = width - 8;
    const height = this.lanes.length * this.step + 26;
    const scale = devicePixelRatio || 1;
    this.canvas.width = Math.round(width * scale);
    this.canvas.height = Math.round(height * scale);
    this.canvas.style.height = `${height}px`;
    const brush = this.canvas.getContext("2d");
    brush.scale(scale, scale);
    const style = getComputedStyle(this.box);
    const tone = (name) => style.getPropertyValue(`--${name}`);
    brush.font = `12px ${style.fontFamily}`;
    this.frame(brush, tone, width);
    const colours = spans.stages.map(tone);
    const rows = new Map(this.lanes.map((lane, row) => [lane, row]));
    const scaled = (this.right - this.left) / this.end;
    const gap = this.step > 20 ? 4 : 2;
    spans.begin.forEach((begin, i) => {
      brush.fillStyle = colours[spans.stage[i]] || tone("stock");
      const at = this.left + begin * scaled;
      const wide = spans.length[i] * scaled;
      // A hair between neighbours, where there is room for one.
      brush.fillRect(at, rows.get(spans.lane[i]) * this.step, Math.max(0.6, wide > 4 ? wide - 1 : wide), this.step - gap);
    });
    this.canvas.setAttribute("aria-label", `What ${this.lanes.length} lanes did in the last ${text(seconds(this.end / 1e6))}`);
  }

  frame(brush, tone, width) {
    const bottom = this.lanes.length * this.step;
    brush.clearRect(0, 0, width, bottom + 26);
    brush.textBaseline = "middle";
    brush.fillStyle = tone("quiet");
    brush.textAlign = "left";
    this.lanes.forEach((lane, row) => {
      if (this.step > 12) brush.fillText(shorten(brush, this.spans.lanes[lane][0], this.left - 10), 0, row * this.step + this.step / 2 - 1);
    });
    const each = nice(this.end / Math.max(2, Math.floor((this.right - this.left) / 110)));
    for (let at = 0; at <= this.end; at += each) {
      const x = Math.round(this.left + (at / this.end) * (this.right - this.left)) + 0.5;
      brush.fillStyle = tone("grid");
      brush.fillRect(x - 0.5, 0, 1, bottom);
      brush.fillStyle = tone("quiet");
      brush.textAlign = at === 0 ? "left" : x > this.right - 30 ? "right" : "center";
      brush.fillText(text(seconds(at / 1e6)), x, bottom + 14);
    }
  }

  point(event) {
    const box = this.canvas.getBoundingClientRect();
    const lane = this.lanes[Math.floor((event.clientY - box.top) / this.step)];
    const at = ((event.clientX - box.left - this.left) / (this.right - this.left)) * this.end;
    const near = (1.5 / (this.right - this.left)) * this.end;
    const { spans } = this;
    const found = spans.begin.findLastIndex((begin, i) => spans.lane[i] === lane && begin - near <= at && at <= begin + spans.length[i] + near);
    if (found < 0) return note("", event);
    const more = [`batch ${spans.batch[found]}`];
    if (spans.samples[found]) more.push(`${count(spans.samples[found])} sample${spans.samples[found] === 1 ? "" : "s"}`);
    if (spans.bytes[found]) more.push(text(bytes(spans.bytes[found])));
    note(`${spans.stages[spans.stage[found]]}, ${text(seconds(spans.length[found] / 1e6))}\n${more.join(", ")}`, event);
  }
}

function shorten(brush, words, width) {
  while (words.length > 2 && brush.measureText(words).width > width) words = `${words.replace("…", "").slice(0, -1)}…`;
  return words;
}
