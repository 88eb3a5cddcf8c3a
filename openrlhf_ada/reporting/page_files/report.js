"use strict";
// Draws the charts of a report and lists its samples. Every text from a run becomes a text node; nothing of it is HTML.

const dataOf = (page) => JSON.parse(page.getElementById("data").textContent);
let DATA = dataOf(document);
const make = (tag, className, text) => {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  return element;
};

// ---- texts: what hides or reorders text is shown as a sign ----

const visible = (text) => String(text)
  .replace(/[\u0000-\u0008\u000b-\u001f]/g, (c) => String.fromCharCode(0x2400 + c.charCodeAt(0)))
  .replace(/\u007f/g, "\u2421")
  .replace(/[\u0080-\u009f\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff\ud800-\udfff]/g,
    (c, at, all) => isPair(all, at) ? c : "\ufffd");
function isPair(text, at) {
  const code = text.charCodeAt(at);
  const high = (c) => c >= 0xd800 && c <= 0xdbff, low = (c) => c >= 0xdc00 && c <= 0xdfff;
  return (high(code) && low(text.charCodeAt(at + 1))) || (low(code) && high(text.charCodeAt(at - 1)));
}

// ---- charts: SVG in the pixels of their place; colours are the page's, so a dark page needs no new drawing ----

const svg = (parent, tag, attributes, text) => {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text !== undefined) element.textContent = text;
  parent.append(element);
  return element;
};

let axis = Object.keys(DATA.axes)[0];
const xOf = (series) => series.x[axis] || series.x.x || series.x.steps;

// From this many steps on, a curve is faint under a running mean: of 5 steps, or of 1/15 of a long run.
const SMOOTHED_FROM = 15;
function runningMean(series) {
  if (series.kind !== "line" || !series.x.steps || (series.low && !series.band) || series.y.length < SMOOTHED_FROM) return null;
  const half = Math.max(5, Math.floor(series.y.length / 15) | 1) >> 1;
  return series.y.map((_, i) => {
    const near = series.y.slice(Math.max(0, i - half), i + half + 1).filter((value) => value !== null);
    return near.length ? near.reduce((sum, value) => sum + value, 0) / near.length : null;
  });
}

// Round numbers to read a range by.
function ticks([low, high], most, sizes = [1, 2, 5, 10]) {
  const raw = (high - low) / most, size = 10 ** Math.floor(Math.log10(raw));
  const step = sizes.map((part) => part * size).find((it) => it >= raw * 0.999), found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) found.push(i * step + 0);
  return found;
}
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 4 });
const told = (value, share) => share ? `${Number((100 * value).toPrecision(3))}%` : compact.format(value);

// What is drawn of each series: x, y, the mean of its neighbours, and of stacked ones what they stand on.
function layersOf(chart) {
  const below = new Map();
  return chart.series.map((series) => {
    const x = xOf(series), layer = { ...series, x, smooth: runningMean(series), isSquare: Boolean(series.low) && !series.band };
    if (series.kind !== "area") return layer;
    layer.low = x.map((at) => below.get(at) || 0);
    layer.high = x.map((at, i) => layer.low[i] + (series.y[i] || 0));
    x.forEach((at, i) => below.set(at, layer.high[i]));
    return layer;
  });
}

function rangesOf(chart, layers) {
  const all = (pick) => layers.flatMap(pick).filter((value) => value !== null && value !== undefined);
  const xs = all((layer) => layer.x), ys = all((layer) => [...layer.y, ...(layer.low || []), ...(layer.high || [])]);
  const bottom = ys.reduce((a, b) => Math.min(a, b), 0), top = ys.reduce((a, b) => Math.max(a, b), bottom);
  const y = [bottom && 1.05 * bottom, top + 0.06 * (top - bottom || 1)];
  if (chart.categories.length) return { x: [-0.6, chart.categories.length - 0.4], y };
  const low = chart.over_time ? xs.reduce((a, b) => Math.min(a, b)) : 0, high = xs.reduce((a, b) => Math.max(a, b));
  const pad = 0.02 * (high - low) || 1;
  return { x: [chart.over_time ? low - pad : 0, high + pad], y };
}

const zoomed = new Map();

function draw(element) {
  if (!element.clientWidth) return;
  drawn.set(element, element.clientWidth);
  const chart = DATA.charts[element.dataset.chart], layers = layersOf(chart), ranges = rangesOf(chart, layers);
  if (zoomed.has(element)) ranges.x = zoomed.get(element);
  const legend = make("div", "legend");
  if (layers.length > 1) for (const layer of layers) {
    const entry = make("span", "", visible(layer.name));
    entry.prepend(Object.assign(make("i", "swatch"), { style: `background: var(--${layer.color})` }));
    legend.append(entry);
  }
  element.replaceChildren(legend);
  const width = element.clientWidth, height = element.clientHeight - legend.offsetHeight;
  const yTicks = ticks(ranges.y, 5, [1, 2, 2.5, 5, 10]), labels = yTicks.map((at) => told(at, chart.y_share));
  const left = 14 + 7.5 * Math.max(...labels.map((label) => label.length)), top = 24, w = width - left - 8;
  const names = chart.categories.length ? chart.categories : ticks(ranges.x, w / 75).map((at) => told(at));
  const places = chart.categories.length ? names.map((_, i) => i) : ticks(ranges.x, w / 75);
  const isSlanted = chart.categories.length > 0 && w / names.length < 66, h = height - top - (isSlanted ? 76 : 44);
  const px = (x) => w * (x - ranges.x[0]) / (ranges.x[1] - ranges.x[0]), py = (y) => h * (ranges.y[1] - y) / (ranges.y[1] - ranges.y[0]);
  const root = svg(element, "svg", { viewBox: `0 0 ${width} ${height}`, width: "100%", height, role: "img", "aria-label": chart.title });
  svg(root, "text", { x: 0, y: 13, class: "quiet" }, visible(chart.y_label));
  svg(root, "text", { x: left + w / 2, y: height - 6, class: "quiet xtitle", "text-anchor": "middle" }, visible(chart.over_time ? DATA.axes[axis] || "" : chart.x_label));
  yTicks.forEach((at, i) => {
    svg(root, "path", { d: `M${left} ${top + py(at)}h${w}`, class: "grid" });
    svg(root, "text", { x: left - 7, y: top + py(at) + 4, "text-anchor": "end" }, labels[i]);
  });
  places.forEach((at, i) => {
    const x = left + px(at), y = top + h + 17;
    svg(root, "text", isSlanted ? { x, y: y - 4, "text-anchor": "end", transform: `rotate(-40 ${x} ${y - 4})` } : { x, y, "text-anchor": "middle" }, visible(names[i]));
  });
  // An svg within clips what a zoomed chart leaves out, and no marks at the edge else.
  const plot = svg(root, "svg", { x: left, y: top, width: w, height: h, overflow: zoomed.has(element) ? "hidden" : "visible" });
  const bars = layers.filter((layer) => layer.kind === "bar");
  for (const layer of layers) drawLayer(plot, layer, px, py, bars.indexOf(layer), bars.length);
  listen(element, { chart, layers, plot, px, py, w, h, left, top, ranges });
}

function drawLayer(plot, layer, px, py, place, numBars) {
  const ink = `var(--${layer.color})`, { x, y } = layer;
  const path = (values) => x.map((at, i) => values[i] === null ? "" : `${i && values[i - 1] !== null ? "L" : "M"}${px(at)} ${py(values[i])}`).join("");
  const between = (low, high, opacity) => {
    const back = [...x.keys()].reverse().map((i) => `L${px(x[i])} ${py(low[i])}`).join("");
    svg(plot, "path", { d: `${path(high)}${back}Z`, style: `fill: ${ink}; fill-opacity: ${opacity}` });
  };
  const stroke = (values, thick, opacity) => svg(plot, "path", { d: path(values), style: `fill: none; stroke: ${ink}; stroke-width: ${thick}; stroke-opacity: ${opacity}; stroke-linejoin: round` });
  const mark = (size, values) => x.forEach((at, i) => {
    if (values[i] === null) return;
    if (layer.isSquare) svg(plot, "rect", { class: "mark", x: px(at) - size, y: py(values[i]) - size, width: 2 * size, height: 2 * size, style: `fill: ${ink}` });
    else svg(plot, "circle", { class: "mark", cx: px(at), cy: py(values[i]), r: size, style: `fill: ${ink}` });
  });
  if (layer.kind === "bar") {
    const size = 0.8 / numBars;
    return x.forEach((at, i) => svg(plot, "rect", { x: px(at - 0.4 + place * size), y: py(y[i]), width: px(size) - px(0), height: py(0) - py(y[i]), style: `fill: ${ink}` }));
  }
  // A single step has no line.
  if (layer.kind === "area") return x.length > 1 ? between(layer.low, layer.high, 0.75) : mark(4, layer.high);
  if (layer.band) between(layer.low, layer.high, 0.18);
  else if (layer.low) x.forEach((at, i) => svg(plot, "path", { d: `M${px(at)} ${py(layer.low[i])}V${py(layer.high[i])}m-4 0h8M${px(at) - 4} ${py(layer.low[i])}h8`, style: `stroke: ${ink}; stroke-width: 1.6` }));
  if (layer.kind === "points") return mark(4.5, y);
  if (layer.smooth && !layer.band) stroke(y, 1, 0.35);
  stroke(layer.smooth || y, 2.2, 1);
  if (y.length <= 25 && !layer.smooth) mark(layer.isSquare ? 4 : 2.5, y);
}

// Under the pointer: the values at the nearest x. Drag to zoom, double-click to go back.
function listen(element, { chart, layers, plot, px, py, w, h, left, top, ranges }) {
  const box = make("div", "hover"), rule = svg(plot, "path", { class: "grid" }), chosen = svg(plot, "rect", { class: "chosen", y: 0, height: h, width: 0 });
  const root = plot.parentNode, places = [...new Set(layers.flatMap((layer) => layer.x))];
  let from = null;
  box.hidden = true;
  element.append(box);
  const at = (event) => Math.max(0, Math.min(w, event.clientX - root.getBoundingClientRect().left - left));
  root.addEventListener("pointermove", (event) => {
    const pixel = at(event), nearest = places.reduce((best, x) => Math.abs(px(x) - pixel) < Math.abs(px(best) - pixel) ? x : best, places[0]);
    if (from !== null) {
      chosen.setAttribute("x", Math.min(from, pixel));
      chosen.setAttribute("width", Math.abs(pixel - from));
    }
    rule.setAttribute("d", `M${px(nearest)} 0V${h}`);
    const lines = layers.flatMap((layer) => {
      const i = layer.x.indexOf(nearest), value = i < 0 ? null : (layer.smooth || layer.y)[i];
      return value === null || value === undefined ? [] : [`${layers.length > 1 ? `${visible(layer.name)}: ` : ""}${told(value, chart.y_share)}${layer.text ? ` · ${visible(layer.text[i])}` : ""}`];
    });
    const head = chart.categories.length ? visible(chart.categories[nearest]) : told(nearest);
    box.replaceChildren(...[head, ...lines].map((line) => make("div", "", line)));
    box.hidden = false;
    const x = left + px(nearest) + 12;
    box.style.left = `${x + box.offsetWidth > left + w ? Math.max(0, x - box.offsetWidth - 24) : x}px`;
    box.style.top = `${element.clientHeight - plot.parentNode.clientHeight + top}px`;
  });
  const end = () => { box.hidden = true; rule.removeAttribute("d"); from = null; chosen.setAttribute("width", 0); };
  root.addEventListener("pointerleave", end);
  root.addEventListener("pointerdown", (event) => { if (event.pointerType === "mouse" && !chart.categories.length) from = at(event); });
  root.addEventListener("pointerup", (event) => {
    const to = at(event), value = (pixel) => ranges.x[0] + pixel / w * (ranges.x[1] - ranges.x[0]);
    if (from === null || Math.abs(to - from) < 8) return end();
    zoomed.set(element, [value(Math.min(from, to)), value(Math.max(from, to))]);
    draw(element);
  });
  root.addEventListener("dblclick", () => { zoomed.delete(element); draw(element); });
}

// With the width that they were drawn for.
const drawn = new Map();

// Those out of sight wait, so that a page of many charts is there at once.
const watcher = new IntersectionObserver((seen) => {
  for (const entry of seen) if (entry.isIntersecting && !drawn.has(entry.target)) { draw(entry.target); sizes.observe(entry.target); }
}, { rootMargin: "600px" });
const sizes = new ResizeObserver((seen) => { for (const { target } of seen) if (drawn.get(target) !== target.clientWidth) draw(target); });
const watch = () => { for (const element of document.querySelectorAll(".plot")) watcher.observe(element); };
const redraw = () => { for (const element of drawn.keys()) draw(element); };
watch();
addEventListener("beforeprint", () => { for (const element of document.querySelectorAll(".plot")) draw(element); });

const chooser = document.getElementById("axis");
function offerAxes() {
  if (chooser.querySelector("button") || Object.keys(DATA.axes).length < 2) return;
  axis = Object.keys(DATA.axes)[0];
  chooser.hidden = false;
  for (const [name, label] of Object.entries(DATA.axes)) {
    const button = make("button", "", label);
    button.dataset.axis = name;
    button.setAttribute("aria-pressed", String(name === axis));
    button.addEventListener("click", () => {
      axis = name;
      zoomed.clear();
      for (const other of chooser.querySelectorAll("button")) other.setAttribute("aria-pressed", String(other === button));
      redraw();
    });
    chooser.append(button);
  }
}
offerAxes();

// ---- samples ----

const PAGE = 40;
let samples = DATA.samples, showSamples = null;

function setUpSamples() {
  const form = document.getElementById("filters"), list = document.getElementById("visits");
  const count = document.getElementById("found"), more = document.getElementById("more");
  let found = [], shown = 0, words = "";
  document.getElementById("samples").hidden = false;
  const next = () => {
    for (const visit of found.slice(shown, shown + PAGE)) list.append(visitElement(visit, words));
    shown = Math.min(shown + PAGE, found.length);
    more.hidden = shown === found.length;
    more.textContent = `Show more (${(found.length - shown).toLocaleString()} left)`;
  };
  // What the reader has opened stays open.
  const search = () => {
    const wanted = Math.max(shown, PAGE), open = new Set([...list.querySelectorAll("details[open]")].map((each) => each.dataset.visit));
    const here = samples.visits.length.toLocaleString(), total = samples.total.toLocaleString();
    if (here !== total) document.getElementById("cut").textContent = ` This page has ${here} of ${total}, evenly over the run; samples.jsonl has all.`;
    const filter = Object.fromEntries(new FormData(form));
    words = filter.text.trim().toLowerCase();
    found = samples.visits.filter((visit) => matches(visit, filter, words));
    list.replaceChildren();
    shown = 0;
    const rollouts = found.reduce((sum, visit) => sum + visit.m.length, 0);
    count.textContent = `${found.length.toLocaleString()} prompts with ${rollouts.toLocaleString()} samples`;
    do next(); while (shown < Math.min(wanted, found.length));
    for (const each of list.children) each.open = open.has(each.dataset.visit);
  };
  showSamples = search;
  let timer = 0;
  form.addEventListener("input", () => { clearTimeout(timer); timer = setTimeout(search, 150); });
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", () => setTimeout(search, 0));
  more.addEventListener("click", next);
  search();
}

const isRight = (visit, index) => visit.o ? visit.o[index] === 1 : visit.m[index] > 0.5;
const numberOfRight = (visit) => visit.m.reduce((sum, _, i) => sum + isRight(visit, i), 0);
const promptOf = (visit) => samples.prompts[visit.p] || [null, null];

function matches(visit, filter, words) {
  if (filter.step && visit.s !== Number(filter.step)) return false;
  if (filter.prompt && visit.p !== filter.prompt.trim()) return false;
  const trained = Object.keys(visit.k).length > 0;
  const signal = Object.values(visit.k).some((coefficient) => coefficient !== 0);
  if (filter.kept === "trained" && !trained) return false;
  if (filter.kept === "signal" && !signal) return false;
  if (filter.kept === "silent" && (signal || !trained)) return false;
  if (filter.kept === "dropped" && trained) return false;
  if (filter.kept === "text" && !visit.a) return false;
  const right = numberOfRight(visit);
  if (filter.score === "right" && right < visit.m.length) return false;
  if (filter.score === "wrong" && right > 0) return false;
  if (filter.score === "mixed" && (right === 0 || right === visit.m.length)) return false;
  if (filter.score === "partial" && !visit.m.some((score) => score !== 0 && score !== 1)) return false;
  if (!words) return true;
  const [prompt, label] = promptOf(visit);
  return [prompt, label, ...Object.values(visit.a || {})].some((text) => text && text.toLowerCase().includes(words));
}

function visitElement(visit, words) {
  const details = make("details"), summary = make("summary"), line = make("span", "line");
  const [prompt] = promptOf(visit);
  const oneLine = prompt === null ? `prompt ${visit.p}` : visible(prompt).split(/\s+/).join(" ").trim();
  const end = oneLine.length > 140 ? `\u2026 ${oneLine.slice(-140)}` : oneLine;
  const pool = make("span"), strip = make("span", "pool");
  visit.m.slice(0, 64).forEach((_, i) => strip.append(symbol(visit, i)));
  pool.append(strip, make("span", "counts", counts(visit)));
  line.append(make("span", "step", `step ${visit.s}`), make("span", "snippet text", end), pool);
  summary.append(line);
  details.append(summary);
  details.dataset.visit = `${visit.s} ${visit.p}`;
  details.addEventListener("toggle", () => { if (details.open && details.children.length === 1) details.append(inside(visit, words)); });
  return details;
}

function symbol(visit, index) {
  const right = isRight(visit, index), kept = String(index) in visit.k;
  const element = make("i", `s ${right ? "right" : "wrong"}${kept ? " kept" : ""}`);
  element.title = `sample ${index}: ${right ? "right" : "wrong"}, ${kept ? "trained" : "unused"}`;
  return element;
}

function counts(visit) {
  const trained = Object.values(visit.k), unequal = [...new Set(trained.filter((c) => c !== 0).map((c) => c.toFixed(2)))];
  const weights = unequal.length === 0 ? "no signal" : `coefficients ${unequal.sort((a, b) => a - b).slice(0, 4).join(" ")}${unequal.length > 4 ? " \u2026" : ""}`;
  return `${visit.m.length} drawn, ${numberOfRight(visit)} right, ${trained.length} trained, ${weights}`;
}

function inside(visit, words) {
  const box = make("div", "inside"), [prompt, label] = promptOf(visit);
  const add = (heading, text) => { box.append(make("h4", "", heading), marked(make("div", "text"), text, words)); };
  add(`Prompt ${visit.p}`, prompt === null ? "(text not recorded)" : prompt);
  if (label !== null && label !== undefined) add("Reference answer", label);
  if (visit.w !== undefined) add(`Why ${visit.m.length} rollouts`, samples.reasons[visit.w]);
  if (visit.q !== undefined) add("Predicted pass rate", visit.q);
  box.append(make("h4", "", visit.a ? "Samples" : "Samples (their texts were not recorded: --ada_log_texts)"), answers(visit, words));
  return box;
}

function answers(visit, words) {
  const scroll = make("div", "scroll"), table = make("table"), head = make("tr"), body = make("tbody");
  const names = ["#", "", ...(visit.a ? ["response"] : []), "score", ...(visit.r ? ["reward"] : []), "tokens", "coefficient"];
  for (const name of names) head.append(make("th", name === "response" ? "left" : "", name));
  visit.m.forEach((score, i) => {
    const row = make("tr"), mark = make("td");
    mark.append(symbol(visit, i));
    row.append(make("td", "", i), mark);
    if (visit.a) {
      const cell = make("td", "left wide");
      cell.append(marked(make("div", "text"), visit.a[i] === undefined ? "(not recorded)" : visit.a[i], words));
      row.append(cell);
    }
    row.append(make("td", "", score));
    if (visit.r) row.append(make("td", "", visit.r[i]));
    const coefficient = visit.k[i];
    row.append(make("td", "", visit.t[i]), make("td", "", coefficient === undefined ? "unused" : coefficient.toFixed(3)));
    body.append(row);
  });
  const top = make("thead");
  top.append(head);
  table.append(top, body);
  scroll.append(table);
  return scroll;
}

// The searched words, marked.
function marked(element, text, words) {
  const readable = visible(text), lower = readable.toLowerCase();
  let from = 0;
  for (let at = words ? lower.indexOf(words) : -1; at >= 0; at = lower.indexOf(words, from)) {
    element.append(readable.slice(from, at), make("mark", "", readable.slice(at, at + words.length)));
    from = at + words.length;
  }
  element.append(readable.slice(from));
  return element;
}

if (samples) setUpSamples();

// ---- a run that goes on: its server has a page for each of its states ----

const chartsIn = (page) => [...page.querySelectorAll(".plot")].map((element) => element.dataset.chart).join();

function take(page) {
  DATA = dataOf(page);
  samples = DATA.samples;
  const parts = ["subtitle", "head", "tables"], isSame = chartsIn(page) === chartsIn(document);
  offerAxes();
  if (isSame) redraw();
  else { parts.push("sections"); drawn.clear(); zoomed.clear(); }
  for (const part of parts) {
    const now = document.getElementById(part), next = page.getElementById(part);
    if (now.innerHTML !== next.innerHTML || !isSame) now.replaceChildren(...next.childNodes);
  }
  if (!isSame) watch();
  if (samples) showSamples ? showSamples() : setUpSamples();
}

async function follow() {
  let said = "no";
  try {
    const version = await fetch("version");
    if (version.ok && await version.text() !== DATA.version) {
      const page = await fetch("/");
      if (page.ok) take(new DOMParser().parseFromString(await page.text(), "text/html"));
    }
    if (version.ok) said = "yes";
  } catch (error) { if (!(error instanceof TypeError)) throw error; }
  document.documentElement.dataset.following = said;
  setTimeout(follow, 2000);
}

if (DATA.version) follow();
document.documentElement.dataset.ready = "yes";
