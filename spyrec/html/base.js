// What all views use: elements, figures as text, tables that sort, charts that follow their width.
// Names come from models: they become text nodes and attributes, never markup.

const SVG = "http://www.w3.org/2000/svg";
const BOUNDS = ["compute", "vector", "memory", "ring", "latency"];
const UNITS = ["memory_load", "memory_store", "ring_send", "ring_receive", "matrix", "vector"];

function filled(node, attrs, children) {
  for (const [name, value] of Object.entries(attrs || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.flat(9).filter((c) => c !== null && c !== undefined));
  return node;
}

const el = (tag, attrs, ...children) => filled(document.createElement(tag), attrs, children);
const svg = (tag, attrs, ...children) => filled(document.createElementNS(SVG, tag), attrs, children);
const at = (id) => document.getElementById(id);
const NUMBERS = new Intl.NumberFormat("en-US");
const ORDER = new Intl.Collator("en", { numeric: true });
const count = (n) => NUMBERS.format(Math.round(n));
const percent = (x) => `${(100 * x).toFixed(1)}%`;
const signed = (n, text) => (n ? `${n < 0 ? "−" : "+"}${text(Math.abs(n))}` : "0");
const plural = (n, one, many) => `${count(n)} ${n === 1 ? one : many || one + "s"}`;
const total = (numbers) => numbers.reduce((a, b) => a + b, 0);
const most = (numbers) => numbers.reduce((a, b) => (b > a ? b : a), 0);

function size(bytes) {
  if (bytes < 1024) return `${count(bytes)} B`;
  const names = ["KiB", "MiB", "GiB", "TiB"];
  let i = -1;
  do { bytes /= 1024; i += 1; } while (bytes >= 1024 && i < names.length - 1);
  return `${bytes.toFixed(1)} ${names[i]}`;
}

function scaled(n) {
  const [unit, name] = [[1e12, " T"], [1e9, " G"], [1e6, " M"]].find(([u]) => n >= u) || [1, ""];
  return unit > 1 ? (n / unit).toFixed(2) + name : count(n);
}

function time(us) {
  if (us >= 1e6) return `${(us / 1e6).toFixed(2)} s`;
  if (us >= 1e3) return `${(us / 1e3).toFixed(2)} ms`;
  return `${us.toFixed(us < 10 ? 2 : 1)} µs`;
}

// A few words of a long list, and how many are left out.
function some(words, n = 4) {
  const more = words.length - n;
  return words.slice(0, n).join(", ") + (more > 0 ? ` and ${count(more)} more` : "");
}

// 0, 3, 4, 5, 9 -> "0, 3-5, 9"
function spans(numbers) {
  const found = [];
  for (const n of numbers) {
    const last = found[found.length - 1];
    if (last && last[1] === n - 1) last[1] = n;
    else found.push([n, n]);
  }
  return found.map(([a, b]) => (a === b ? `${a}` : `${a}–${b}`)).join(", ");
}

// A name in a chart of little room.
function brief(text, width) {
  const n = Math.floor(width / 7);
  return text.length <= n ? text : n > 3 ? text.slice(0, n - 1) + "…" : "";
}

// columns: {title, value(row), text(row)?, num?, head?, node?(row)}. Rows beyond `limit` come on demand.
// Headings are buttons when the table sorts; aria-sort says how it is sorted.
function table(label, columns, rows, options = {}) {
  const { sorted = true, limit = 200, by = -1, down = true, tall = true, rowOf = null } = options;
  const state = { by, down, all: rows.length <= limit, rows };
  const body = el("tbody");
  const heads = columns.map((c, i) => {
    if (!sorted) return el("th", { scope: "col", class: c.num ? "num" : null }, c.title);
    const button = el("button", { type: "button", onclick: () => sort(i) }, c.title);
    return el("th", { scope: "col", class: c.num ? "num" : null }, button);
  });
  const more = el("button", { type: "button", onclick: () => { state.all = true; draw(); } });
  const below = el("div", { class: "bar" }, more);
  const inner = el("table", {}, el("caption", {}, label), el("thead", {}, el("tr", {}, heads)), body);
  const scroll = el("div", { class: tall ? "scroll tall" : "scroll", tabindex: 0, role: "region", "aria-label": label }, inner);

  function sort(i) {
    state.down = state.by === i ? !state.down : Boolean(columns[i].num);
    state.by = i;
    draw();
  }

  function draw() {
    const shown = [...state.rows];
    if (state.by >= 0) {
      const { value } = columns[state.by];
      const sign = state.down ? -1 : 1;
      shown.sort((a, b) => {
        const x = value(a), y = value(b);
        return sign * (typeof x === "number" && typeof y === "number" ? x - y : ORDER.compare(String(x), String(y)));
      });
    }
    heads.forEach((h, i) => {
      if (i === state.by) h.setAttribute("aria-sort", state.down ? "descending" : "ascending");
      else h.removeAttribute("aria-sort");
    });
    const cut = state.all ? shown : shown.slice(0, limit);
    body.replaceChildren(...cut.map((row) => {
      const cells = columns.map((c) => {
        const text = c.node ? c.node(row) : c.text ? c.text(row) : String(c.value(row));
        return c.head ? el("th", { scope: "row" }, text) : el("td", { class: c.num ? "num" : "text" }, text);
      });
      const line = el("tr", {}, cells);
      if (rowOf) rowOf(row, line);
      return line;
    }));
    below.hidden = cut.length === shown.length;
    more.textContent = `Show all ${count(shown.length)} rows`;
  }

  draw();
  return {
    node: el("div", {}, scroll, below),
    show(found) { state.rows = found; draw(); return found.length; },
  };
}

// A labelled field that narrows rows to those whose text has what was typed.
function filter(label, rows, textOf, shown) {
  const told = el("span", { role: "status", class: "hint" });
  const field = el("input", { type: "search", autocomplete: "off", oninput: () => {
    const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
    const n = shown(rows.filter((r) => words.every((w) => textOf(r).toLowerCase().includes(w))));
    told.textContent = words.length ? `${count(n)} of ${count(rows.length)}` : "";
  } });
  return el("div", { class: "bar" }, el("label", {}, label, field), told);
}

const key = (items) => el("ul", { class: "key" }, items.map(([cls, text, shape]) =>
  el("li", {}, svg("svg", { width: 14, height: 14, "aria-hidden": "true" }, shape || svg("rect", { class: cls, width: 14, height: 14 })), text)));
const boundKey = () => key(BOUNDS.map((b) => [b, b]));

// A chart as wide as its room: draw(width) gives the svg; it is drawn anew when the room changes.
let drawn = [];
function chart(draw, attrs = {}) {
  const box = el("div", { class: "chart", ...attrs });
  const again = (width) => box.replaceChildren(draw(Math.max(280, width)));
  const one = { box, again, width: 0 };
  drawn.push(one);
  return { node: box, redraw: () => { if (one.width) again(one.width); } };
}

function fit(forced = 0) {
  drawn = drawn.filter((one) => one.box.isConnected);
  const widths = drawn.map((one) => forced || Math.floor(one.box.clientWidth));
  drawn.forEach((one, i) => {
    if (widths[i] && widths[i] !== one.width) { one.width = widths[i]; one.again(widths[i]); }
  });
}

// What is made only when it is opened.
function folded(title, make) {
  const node = el("details", { ontoggle: () => { if (node.open && node.children.length === 1) node.append(make()); } }, el("summary", {}, title));
  return node;
}

const picture = (width, height, title, ...children) =>
  svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": title }, children);
const tip = (text) => svg("title", {}, text);
const rect = (cls, x, y, w, h, ...children) =>
  svg("rect", { class: cls, x: x.toFixed(1), y: y.toFixed(1), width: Math.max(0, w).toFixed(1), height: Math.max(0, h).toFixed(1) }, children);
const line = (cls, x1, y1, x2, y2) => svg("path", { class: cls, d: `M${x1.toFixed(1)} ${y1.toFixed(1)}L${x2.toFixed(1)} ${y2.toFixed(1)}` });
const label = (x, y, text, attrs) => svg("text", { x: x.toFixed(1), y: y.toFixed(1), ...attrs }, text);

// Round steps between two numbers, about n of them.
function ticks(low, high, n) {
  const raw = (high - low) / Math.max(1, n);
  if (!(raw > 0)) return [low];
  const unit = 10 ** Math.floor(Math.log10(raw));
  const step = unit * [1, 2, 5, 10].find((m) => m * unit >= raw);
  const found = [];
  for (let t = Math.ceil(low / step) * step; t <= high * (1 + 1e-9); t += step) found.push(t);
  return found;
}

// Buttons and keys for a range [low, high) of [0, end): shown(low, high) is told when it changes.
function zooming(end, least, what, shown) {
  const view = { low: 0, high: end };
  const go = (low, high) => {
    const width = Math.min(end, Math.max(least, high - low));
    view.low = Math.max(0, Math.min(low, end - width));
    view.high = view.low + width;
    buttons[0].disabled = width <= least;
    buttons[1].disabled = buttons[4].disabled = width >= end;
    buttons[2].disabled = view.low <= 0;
    buttons[3].disabled = view.high >= end;
    shown(view.low, view.high);
  };
  const scale = (by) => {
    const middle = (view.low + view.high) / 2, half = ((view.high - view.low) * by) / 2;
    go(middle - half, middle + half);
  };
  const move = (by) => { const d = (view.high - view.low) * by; go(view.low + d, view.high + d); };
  const button = (text, name, act) => el("button", { type: "button", "aria-label": `${name}, ${what}`, title: name, onclick: act }, text);
  const buttons = [
    button("+", "Zoom in", () => scale(0.5)), button("−", "Zoom out", () => scale(2)),
    button("◀", "Earlier", () => move(-0.5)), button("▶", "Later", () => move(0.5)),
    button("All", "All of the run", () => go(0, end)),
  ];
  return {
    view, go, buttons,
    keys(event) {
      const acts = {
        "+": () => scale(0.5), "=": () => scale(0.5), "-": () => scale(2), "0": () => go(0, end),
        PageUp: () => move(-0.5), PageDown: () => move(0.5),
        Home: () => go(0, view.high - view.low), End: () => go(end - (view.high - view.low), end),
      };
      if (event.ctrlKey || event.metaKey || event.altKey || !acts[event.key]) return false;
      event.preventDefault();
      acts[event.key]();
      return true;
    },
    // Bring a place into view.
    reach(low, high) {
      const width = view.high - view.low;
      if (low < view.low || high > view.high) go((low + high - width) / 2, (low + high + width) / 2);
      else go(view.low, view.high);
    },
  };
}
