"use strict";
// Draws the charts of a report and lists its samples. Every text from a run becomes a text node; nothing of it is HTML.

const DATA = JSON.parse(document.getElementById("data").textContent);
const dark = matchMedia("(prefers-color-scheme: dark)");
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
// Plotly reads a few tags in names and hover texts.
const plain = (text) => visible(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

// ---- charts ----

let axis = Object.keys(DATA.axes)[0];
const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const faint = (hex, part) => hex + Math.round(255 * part).toString(16).padStart(2, "0");
const xOf = (series) => series.x[axis] || series.x.x || series.x.steps;

function traces(chart) {
  return chart.series.flatMap((series) => seriesTraces(series, chart));
}

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

function seriesTraces(series, chart) {
  const x = xOf(series), ink = color(series.color), name = plain(series.name);
  const hover = (series.text || []).map(plain);
  const base = { x, y: series.y, name, legendgroup: name, hovertext: hover, hovertemplate: hoverLine(chart, hover.length) };
  if (series.kind === "bar") return [{ ...base, type: "bar", marker: { color: ink } }];
  if (series.kind === "area") {
    // A single step has no line.
    return [{ ...base, mode: x.length > 1 ? "lines" : "markers", marker: { color: ink, size: 8 }, stackgroup: "all", line: { color: ink, width: 0.5 }, fillcolor: faint(ink, 0.75) }];
  }
  const low = series.low, high = series.high;
  const error = low && !series.band
    ? { type: "data", symmetric: false, array: high.map((h, i) => h - series.y[i]), arrayminus: low.map((l, i) => series.y[i] - l), thickness: 1.6, width: 4 }
    : undefined;
  if (series.kind === "points") return [{ ...base, mode: "markers", marker: { color: ink, size: 9 }, error_y: error }];
  const line = { color: ink, width: 2.2 };
  const smooth = runningMean(series);
  if (smooth && !series.band) {
    const raw = { ...base, mode: "lines", line: { color: faint(ink, 0.35), width: 1 }, showlegend: false, hoverinfo: "skip", hovertemplate: undefined };
    return [raw, { ...base, y: smooth, mode: "lines", line }];
  }
  const few = series.y.length <= 25;
  const drawn = { ...base, y: smooth || series.y, mode: few && !smooth ? "lines+markers" : "lines", line, marker: { size: low && !series.band ? 8 : 5, symbol: low && !series.band ? "square" : "circle" }, error_y: error };
  if (!series.band) return [drawn];
  const edge = { x, mode: "lines", line: { width: 0 }, showlegend: false, hoverinfo: "skip", legendgroup: name };
  return [{ ...edge, y: low }, { ...edge, y: high, fill: "tonexty", fillcolor: faint(ink, 0.18) }, drawn];
}

function hoverLine(chart, hasText) {
  const value = chart.y_share ? "%{y:.1%}" : "%{y:.4~g}";
  return `${value}${hasText ? " · %{hovertext}" : ""}`;
}

function layout(chart) {
  const ink = color("ink"), grid = color("line");
  const line = { gridcolor: grid, zerolinecolor: grid, linecolor: grid, automargin: true, fixedrange: innerWidth < 700 };
  const x = { ...line, title: { text: plain(chart.over_time ? DATA.axes[axis] || "" : chart.x_label), standoff: 6 } };
  if (chart.categories.length) Object.assign(x, { tickvals: chart.categories.map((_, i) => i), ticktext: chart.categories.map(plain), range: [-0.6, chart.categories.length - 0.4], showgrid: false });
  if (!chart.over_time && !chart.categories.length) x.rangemode = "tozero";
  const y = { ...line, title: { text: plain(chart.y_label), standoff: 8 }, rangemode: "tozero" };
  if (chart.y_share) y.tickformat = ".0%";
  return {
    paper_bgcolor: color("page"), plot_bgcolor: color("page"), font: { color: ink, size: 13, family: getComputedStyle(document.body).fontFamily },
    margin: { l: 52, r: 12, t: 8, b: 40 }, xaxis: x, yaxis: y, hovermode: chart.series.some((s) => s.kind === "points") ? "closest" : "x unified",
    legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0, font: { size: 12 } }, barmode: "group",
    hoverlabel: { bgcolor: color("soft"), font: { color: ink }, bordercolor: grid },
    showlegend: chart.series.length > 1,
  };
}

const OPTIONS = { responsive: true, displayModeBar: false };
const drawn = new Set();
function draw(element) {
  drawn.add(element);
  const chart = DATA.charts[element.dataset.chart];
  return Plotly.react(element, traces(chart), layout(chart), OPTIONS);
}

// Those out of sight wait, so that a page of many charts is there at once.
const watcher = new IntersectionObserver((seen) => {
  for (const entry of seen) if (entry.isIntersecting && !drawn.has(entry.target)) draw(entry.target);
}, { rootMargin: "600px" });
for (const element of document.querySelectorAll(".plot")) watcher.observe(element);
const redraw = () => { for (const element of drawn) draw(element); };
dark.addEventListener("change", redraw);
addEventListener("beforeprint", () => { for (const element of document.querySelectorAll(".plot")) draw(element); });

const chooser = document.getElementById("axis");
if (Object.keys(DATA.axes).length > 1) {
  chooser.hidden = false;
  for (const [name, label] of Object.entries(DATA.axes)) {
    const button = make("button", "", label);
    button.dataset.axis = name;
    button.setAttribute("aria-pressed", String(name === axis));
    button.addEventListener("click", () => {
      axis = name;
      for (const other of chooser.querySelectorAll("button")) other.setAttribute("aria-pressed", String(other === button));
      redraw();
    });
    chooser.append(button);
  }
}

// ---- samples ----

const PAGE = 40;
const samples = DATA.samples;

function setUpSamples() {
  const form = document.getElementById("filters"), list = document.getElementById("visits");
  const count = document.getElementById("found"), more = document.getElementById("more");
  let found = [], shown = 0, words = "";
  const here = samples.visits.length.toLocaleString(), total = samples.total.toLocaleString();
  document.getElementById("samples").hidden = false;
  if (here !== total) document.getElementById("cut").textContent = ` This page has ${here} of ${total}, evenly over the run; samples.jsonl has all.`;
  const next = () => {
    for (const visit of found.slice(shown, shown + PAGE)) list.append(visitElement(visit, words));
    shown = Math.min(shown + PAGE, found.length);
    more.hidden = shown === found.length;
    more.textContent = `Show more (${(found.length - shown).toLocaleString()} left)`;
  };
  const search = () => {
    const filter = Object.fromEntries(new FormData(form));
    words = filter.text.trim().toLowerCase();
    found = samples.visits.filter((visit) => matches(visit, filter, words));
    list.replaceChildren();
    shown = 0;
    const rollouts = found.reduce((sum, visit) => sum + visit.m.length, 0);
    count.textContent = `${found.length.toLocaleString()} prompts with ${rollouts.toLocaleString()} samples`;
    next();
  };
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
document.documentElement.dataset.ready = "yes";
