// Summary, comparison, kernels with the detail of one, and the model's nodes.

const share = (k) => (report.total_cycles ? (k.count * k.cycles) / report.total_cycles : 0);
const hbm = (k) => k.hbm_read_bytes + k.hbm_write_bytes;
const sum = (of) => total(report.kernels.map((k) => k.count * of(k)));

function figures(items) {
  return el("dl", { class: "figures" }, items.filter(Boolean).map(([name, text, more]) =>
    el("div", {}, el("dt", {}, name), el("dd", {}, text, more ? el("small", {}, more) : null))));
}

function summary(root) {
  const launches = sum(() => 1);
  const us = report.total_us;
  const bus = detail ? (1e6 * sum((k) => k.bus_busy_cycles)) / Math.max(1, report.total_cycles) / 1e6 : null;
  const b = report.bucket, h = report.host;
  root.append(figures([
    ["Time on the device", time(us), `${count(report.total_cycles)} cycles at ${count(report.clock_mhz)} MHz`],
    ["Kernel runs", count(launches), `of ${plural(report.kernels.length, "kernel")} in the table`],
    ["Starting up", percent(report.launch_cycles / Math.max(1, report.total_cycles)), `${count(report.launch_cycles)} cycles in which nothing ran`],
    ["Matrix unit, of its peak", us ? percent(sum((k) => k.compute_floor_us) / us) : "–", `${scaled(sum((k) => k.macs))} multiply-accumulates`],
    ["Card memory", size(sum(hbm)), bus === null ? null : `bus busy ${percent(bus)} of the time`],
    ["Ring", size(sum((k) => k.ring_bytes)), "sent, partial sums included"],
    ["Fullest scratchpad", size(most(report.kernels.map((k) => k.lx_peak_bytes))), detail ? `of ${size(detail.machine.scratchpad_bytes)} a core` : null],
    ["Numbers", report.numerics, report.functional ? "computed" : "time only, none computed"],
    b && ["Bucket", b.name, `${percent(b.padding)} padding, ${percent(b.macs_waste)} of the products`],
    h && ["With the host", time(h.wall_us), `${h.launch}: host ${time(h.host_us)}, copies ${time(h.copy_us)}, ${plural(h.jobs, "job")}`],
  ]));
  const parts = BOUNDS.map((bound) => [bound, total(report.kernels.filter((k) => k.bound === bound).map((k) => k.count * k.cycles))]);
  parts.push(["starting up", report.launch_cycles], ["meeting", report.meeting_cycles || 0]);
  const all = total(parts.map(([, n]) => n)) || 1;
  const shade = (name) => (BOUNDS.includes(name) ? name : name === "meeting" ? "h1" : "h2");
  const held = parts.filter(([, n]) => n > 0).sort((x, y) => y[1] - x[1]);
  root.append(el("h3", {}, "What holds the run back"));
  root.append(chart((width) => {
    let x = 0;
    return picture(width, 34, `Share of cycles by what bounds the kernels: ${held.map(([n, c]) => `${n} ${percent(c / all)}`).join(", ")}`,
      held.map(([name, n]) => {
        const w = (width * n) / all;
        const bar = rect(`${shade(name)} cell`, x, 2, w, 30, tip(`${name}: ${percent(n / all)}`));
        x += w;
        return bar;
      }));
  }).node);
  root.append(key(held.map(([name, n]) => [shade(name), `${name} ${percent(n / all)}`])));
  root.append(el("p", { class: "hint" }, "A kernel is bound by what worked longest for it: the matrix unit (compute), the vector unit, ",
    "card memory's bus or the ring; by latency when nothing worked for half of its time. Simulated by spyrec ", report.spyrec,
    `, which took ${report.wall_s.toFixed(2)} s and ${count(report.events)} events.`));
}

function comparison(root, c) {
  root.hidden = false;
  at("to-comparison").hidden = false;
  const change = (a, b) => (a || !b ? signed(a ? b / a - 1 : 0, percent) : "new");
  root.append(el("p", { class: "hint" }, `From ${c.models[0]}, the run before, to ${c.models[1]}, this one. Kernels are paired by the model nodes they carry out.`));
  for (const doubt of c.warnings) root.append(el("p", { class: "note" }, doubt));
  const totals = [
    ["cycles", c.cycles, count], ["kernels run", c.runs, count], ["start-up and meeting", c.idle_cycles, count],
    ["card memory", c.hbm_bytes, size], ["ring", c.ring_bytes, size], ["scratchpad peak", c.lx_peak_bytes, size],
  ].map(([name, [a, b], text]) => ({ name, a, b, text }));
  root.append(table("The run", [
    { title: "figure", value: (r) => r.name, head: true },
    { title: "before", value: (r) => r.a, text: (r) => r.text(r.a), num: true },
    { title: "now", value: (r) => r.b, text: (r) => r.text(r.b), num: true },
    { title: "change", value: (r) => r.b - r.a, text: (r) => change(r.a, r.b), num: true },
  ], totals, { sorted: false, tall: false }).node);
  const changed = c.pairs.filter((p) => p.before !== p.after || p.changed.length);
  root.append(el("h3", {}, `Kernels that changed: ${count(changed.length)} of ${count(c.pairs.length)}`));
  if (!changed.length) return;
  root.append(table("Kernels that changed; cycles of all their launches", [
    { title: "kernel", value: (p) => p.names.join(" "), text: (p) => [...new Set(p.names.map((n) => n.split("+").join(" + ")))].join(" → "), head: true },
    { title: "before", value: (p) => p.before, text: (p) => count(p.before), num: true },
    { title: "now", value: (p) => p.after, text: (p) => count(p.after), num: true },
    { title: "difference", value: (p) => p.after - p.before, text: (p) => signed(p.after - p.before, count), num: true },
    { title: "change", value: (p) => (p.before ? p.after / p.before : Infinity), text: (p) => change(p.before, p.after), num: true },
    { title: "decided otherwise", value: (p) => p.changed.join("; ").replaceAll(" -> ", " → ") },
  ], [...changed].sort((p, q) => Math.abs(q.after - q.before) - Math.abs(p.after - p.before))).node);
}

function kernels(root) {
  const panel = el("div", { class: "detail", id: "kernel-detail", tabindex: -1, role: "region", "aria-label": "The chosen kernel" });
  const lines = new Map();
  let chosen = null;
  function choose(row, focus) {
    chosen = row;
    lines.forEach((line, r) => line.classList.toggle("chosen", r === row));
    panel.replaceChildren(...kernelDetail(row));
    fit();
    if (focus) { panel.focus({ preventScroll: true }); panel.scrollIntoView({ block: "nearest" }); }
  }
  const number = (title, value, text) => ({ title, value, text: (k) => text(value(k)), num: true });
  const bytes = (n) => (n ? size(n) : "–");
  const shown = table("Kernels, numbers of one launch", [
    { title: "kernel", value: (k) => k.name, head: true, node: (k) => el("button", { type: "button", class: "link", onclick: () => choose(k, true) }, k.name) },
    number("count", (k) => k.count, count),
    number("cycles", (k) => k.cycles, count),
    number("time", (k) => k.us, time),
    number("share", share, percent),
    number("cores", (k) => k.cores, count),
    { title: "matrix use", value: (k) => k.pt_utilisation, text: (k) => (k.macs ? percent(k.pt_utilisation) : "–"), num: true },
    number("card memory", hbm, bytes),
    number("ring", (k) => k.ring_bytes, bytes),
    number("scratchpad", (k) => k.lx_peak_bytes, bytes),
    { title: "bound", value: (k) => k.bound },
  ], report.kernels, { by: 4, rowOf: (k, line) => { lines.set(k, line); line.classList.toggle("chosen", k === chosen); } });
  root.append(el("p", { class: "hint" }, "Launches that agree in every number are one row. A heading sorts; a kernel's name shows more of it below."));
  root.append(filter("Find a kernel, op or model node", report.kernels, (k) => [k.name, k.bound, ...k.ops, ...k.source].join(" "), (rows) => shown.show(rows)));
  root.append(shown.node, panel);
  const first = [...report.kernels].sort((a, b) => share(b) - share(a))[0];
  if (first) choose(first, false);
}

const named = (dims, numbers) => {
  const names = dims.split(",").map((d) => d.split("=")[0]), values = numbers.split("x");
  return names.length === values.length ? names.map((n, i) => `${n}=${values[i]}`).join(" ") : numbers;
};

function kernelDetail(k) {
  const items = [
    ["carries out", some(k.ops, 12)], ["model nodes", some(k.source, 8) || "–"],
    ["iterates over", k.dims.replaceAll(",", " ") || "–"], ["cut into", (k.dims && named(k.dims, k.parts)) || "–"],
    ["tile", (k.dims && named(k.dims, k.tile)) || "–"],
    ["floors", `compute ${time(k.compute_floor_us)}, card memory ${time(k.memory_floor_us)}, took ${time(k.us)}`],
    ["weights early", k.prefetch_us ? `loading began ${time(k.prefetch_us)} before its start` : "no"],
    ["reaches over", k.span_bytes ? `${size(k.span_bytes)} of one tensor in card memory` : "–"],
  ];
  const nodes = [el("h3", {}, `${k.name}, ${plural(k.count, "launch", "launches")}, ${k.bound}`),
    el("dl", { class: "pairs" }, items.map(([n, v]) => [el("dt", {}, n), el("dd", {}, v)]))];
  const d = detail && detail.kernels[report.kernels.indexOf(k)];
  if (!d) return nodes;
  const lanes = UNITS.map((u) => [u.replace("_", " "), d.core_busy[u]]);
  const cores = detail.machine.cores, span = k.cycles || 1;
  const step = (x) => (x <= 0 ? 0 : Math.min(6, Math.ceil((x / span) * 6)));
  const drawing = chart((width) => {
    const left = 100, row = 18, w = (width - left - 2) / cores;
    return picture(width, 24 + row * lanes.length, `How long each unit of each core worked in one launch: ${lanes.map(([n, v]) => `${n} at most ${percent(most(v) / span)}`).join(", ")}`,
      lanes.map(([name, busy], i) => [label(0, 14 + i * row, name, { class: "small" }),
        Array.from({ length: cores }, (_, c) => rect(`h${step(busy[c] || 0)} cell`, left + c * w, 2 + i * row, w, row - 2,
          tip(`core ${c}, ${name}: ${count(busy[c] || 0)} cycles, ${percent((busy[c] || 0) / span)}`)))]),
      ticks(0, cores - 1, Math.min(16, (width - left) / 30)).map((c) => label(left + (c + 0.5) * w, 20 + row * lanes.length, String(Math.round(c)), { class: "small soft", "text-anchor": "middle" })));
  });
  nodes.push(el("h3", {}, "Its units, core by core"), drawing.node,
    key([["h0", "idle"], ...[1, 2, 3, 4, 5, 6].map((i) => [`h${i}`, `up to ${Math.round((100 * i) / 6)}%`])]),
    el("p", { class: "hint" }, "Of the cycles from its start to its end; weights that were loaded before count too."),
    folded("The same as a table", () => table("Busy cycles of each core in one launch", [{ title: "core", value: (c) => c, head: true },
        ...lanes.map(([name, busy]) => ({ title: name, value: (c) => busy[c] || 0, text: (c) => count(busy[c] || 0), num: true }))],
      Array.from({ length: cores }, (_, c) => c)).node));
  return nodes;
}

function sources(root) {
  const nodes = new Map();
  for (const k of report.kernels) {
    for (const name of k.source) {
      if (!nodes.has(name)) nodes.set(name, []);
      nodes.get(name).push(k);
    }
  }
  const rows = [...nodes].map(([name, by]) => ({ name, by, cycles: total(by.map((k) => k.cycles)) }));
  root.append(el("p", { class: "hint" }, "Each node or source line of the model, with the kernels that carry it out. Cycles are of one launch of each; a kernel may stand for several nodes, so they do not add up."));
  if (!rows.length) { root.append(el("p", { class: "note" }, "The program does not say what its kernels come from.")); return; }
  const shown = table("Nodes of the model", [
    { title: "node", value: (r) => r.name, head: true },
    { title: "cycles", value: (r) => r.cycles, text: (r) => count(r.cycles), num: true },
    { title: "kernels", value: (r) => r.by.length, text: (r) => count(r.by.length), num: true },
    { title: "carried out by", value: (r) => r.by.map((k) => k.name).join(" "), text: (r) => some(r.by.map((k) => k.name), 6) },
    { title: "bound", value: (r) => [...new Set(r.by.map((k) => k.bound))].join(", ") },
  ], rows, { limit: 60 });
  root.append(filter("Find a node or kernel", rows, (r) => [r.name, ...r.by.map((k) => k.name)].join(" "), (found) => shown.show(found)), shown.node);
}
