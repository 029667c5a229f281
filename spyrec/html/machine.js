// The machine's limits against the run: roofline, scratchpads, ring.

function roofline(root) {
  const m = detail.machine, peak = (m.macs_per_cycle * report.clock_mhz) / 1e6; // T multiply-accumulates/s
  const rate = (m.hbm_bytes_per_cycle * report.clock_mhz) / 1e6; // T bytes/s
  const ridge = m.macs_per_cycle / m.hbm_bytes_per_cycle;
  const points = report.kernels.filter((k) => k.macs && k.us).map((k) => {
    const x = hbm(k) ? k.macs / hbm(k) : Infinity, y = k.macs / k.us / 1e6;
    return { k, x, y, roof: Math.min(peak, x * rate) };
  });
  root.append(el("p", { class: "hint" }, `Kernels with matrix work: how much they multiply for each byte of card memory, and how fast. The roof is ${(rate).toFixed(3)} TB/s up to the ridge at `
    + `${ridge.toFixed(1)} multiply-accumulates a byte, then ${peak.toFixed(1)} T multiply-accumulates a second. Weights that came early let a kernel stand above its slope. Marks are as large as their share of the run.`));
  if (!points.length) { root.append(el("p", { class: "note" }, "No kernel of this run multiplies matrices.")); return; }
  const finite = points.filter((p) => p.x < Infinity);
  const x0 = Math.floor(Math.log10(Math.min(ridge / 10, ...finite.map((p) => p.x))));
  const x1 = Math.ceil(Math.log10(Math.max(ridge * 10, ...finite.map((p) => p.x * 1.5)))) + (finite.length < points.length ? 0.5 : 0);
  const y0 = Math.floor(Math.log10(Math.min(peak / 15, ...points.map((p) => p.y))));
  const y1 = Math.ceil(Math.log10(Math.max(peak * 1.3, ...points.map((p) => p.y))));
  const tens = (a, b) => Array.from({ length: Math.floor(b) - Math.ceil(a) + 1 }, (_, i) => Math.ceil(a) + i);
  const plain = (e) => (e >= 7 || e < -3 ? `1e${e}` : (10 ** e).toLocaleString("en-US"));
  const drawing = chart((width) => {
    const left = 52, bottom = 44, height = Math.max(280, Math.min(440, width * 0.55)), right = width - 8, top = 22;
    const X = (v) => left + ((Math.min(x1, v < Infinity ? Math.log10(v) : x1 - 0.2) - x0) / (x1 - x0)) * (right - left);
    const Y = (v) => height - bottom - ((Math.log10(v) - y0) / (y1 - y0)) * (height - bottom - top);
    const nodes = [];
    for (const e of tens(x0, x1)) {
      nodes.push(line("grid", X(10 ** e), top, X(10 ** e), height - bottom));
      nodes.push(label(X(10 ** e), height - bottom + 16, plain(e), { class: "small soft", "text-anchor": "middle" }));
    }
    for (const e of tens(y0, y1)) {
      nodes.push(line("grid", left, Y(10 ** e), right, Y(10 ** e)));
      nodes.push(label(left - 6, Y(10 ** e) + 4, plain(e), { class: "small soft", "text-anchor": "end" }));
    }
    const from = Math.max(10 ** x0, 10 ** y0 / rate);
    nodes.push(svg("path", { class: "roof", d: `M${X(from)} ${Y(from * rate)}L${X(ridge)} ${Y(peak)}L${right} ${Y(peak)}` }));
    nodes.push(line("grid", X(ridge), Y(peak), X(ridge), height - bottom));
    nodes.push(label(X(ridge) + 4, height - bottom - 6, `ridge ${ridge.toFixed(0)}`, { class: "small soft" }));
    nodes.push(label((left + right) / 2, height - 8, "multiply-accumulates per byte of card memory", { class: "small", "text-anchor": "middle" }));
    nodes.push(label(left, 10, "T multiply-accumulates a second", { class: "small" }));
    const order = [...points].sort((a, b) => share(b.k) - share(a.k));
    const radius = (p) => 4 + 12 * Math.sqrt(share(p.k));
    const taken = points.map((p) => [X(p.x) - radius(p), Y(p.y) - radius(p), X(p.x) + radius(p), Y(p.y) + radius(p)]);
    const free = (box) => box[0] > left && box[2] < right && !taken.some((t) => box[0] < t[2] && t[0] < box[2] && box[1] < t[3] && t[1] < box[3]);
    const names = [];
    for (const p of order) {
      const r = radius(p), x = X(p.x), y = Y(p.y);
      nodes.push(mark(p.k.bound, x, y, r, tip(`${p.k.name}: ${p.y.toFixed(2)} T/s, ${p.x < Infinity ? `${p.x.toFixed(1)} a byte` : "no card memory"}, ${percent(p.y / p.roof)} of its roof`)));
      if (names.length === 10) continue;
      const text = brief(p.k.name, 170), w = text.length * 6.4; // to the right, the left, then lower and lower
      const places = [0, 1, 2, 3, 4].flatMap((n) => [[x + r + 4, y + 16 * n], [x - r - 4 - w, y + 16 * n]]);
      const place = places.find(([lx, ly]) => free([lx, ly - 7, lx + w, ly + 7]));
      if (!place) continue;
      taken.push([place[0], place[1] - 7, place[0] + w, place[1] + 7]);
      names.push(label(place[0], place[1] + 4, text, { class: "small name" }));
    }
    nodes.push(names);
    return picture(width, height, `Roofline of ${plural(points.length, "kernel")}; the table below has the same figures`, nodes);
  });
  root.append(key(BOUNDS.map((b) => [b, b, mark(b, 7, 7, 6)])), drawing.node);
  root.append(folded("The roofline as a table", () => table("Kernels against the roof", [
    { title: "kernel", value: (p) => p.k.name, head: true },
    { title: "per byte", value: (p) => p.x, text: (p) => (p.x < Infinity ? p.x.toFixed(1) : "no traffic"), num: true },
    { title: "T a second", value: (p) => p.y, text: (p) => p.y.toFixed(2), num: true },
    { title: "roof", value: (p) => p.roof, text: (p) => p.roof.toFixed(2), num: true },
    { title: "of the roof", value: (p) => p.y / p.roof, text: (p) => percent(p.y / p.roof), num: true },
    { title: "share of run", value: (p) => share(p.k), text: (p) => percent(share(p.k)), num: true },
    { title: "bound", value: (p) => p.k.bound },
  ], points, { by: 5 }).node));
}

// A shape for each bound, so that colour is not the only sign.
function mark(bound, x, y, r, ...children) {
  const d = {
    compute: `M${x - r} ${y}a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0Z`,
    vector: `M${x - r * 0.85} ${y - r * 0.85}h${r * 1.7}v${r * 1.7}h${-r * 1.7}Z`,
    memory: `M${x} ${y - r}L${x + r} ${y + r * 0.8}H${x - r}Z`,
    ring: `M${x} ${y - r}L${x + r} ${y}L${x} ${y + r}L${x - r} ${y}Z`,
    latency: `M${x - r} ${y - r * 0.8}H${x + r}L${x} ${y + r}Z`,
  }[bound];
  return svg("path", { class: `${bound} mark`, d }, children);
}

// Bytes that lie in each core's scratchpad while each launch runs: launches * cores numbers.
function heldBytes() {
  const cores = detail.machine.cores, n = detail.launches.length, held = new Float64Array(n * cores);
  const parts = detail.layouts.map(partBytes);
  for (const t of detail.held) {
    const part = parts[t.layout], last = Math.min(n - 1, t.launches[t.launches.length - 1]);
    for (let i = t.launches[0]; i <= last; i += 1) {
      for (let c = 0; c < part.length && c < cores; c += 1) held[i * cores + c] += part[c];
    }
  }
  return held;
}

// Groups of 64 elements in each core's part, and the bytes of one: what is set aside is for the longest of all parts.
function partGroups(layout) {
  const rank = layout.shape.length;
  const groups = (counts) => counts.reduce((n, c, d) => n * (d === layout.stick_dim ? Math.ceil(c / 64) : c), 1);
  const counts = layout.boxes.map((box) => Array.from({ length: rank }, (_, d) => box[2 * d + 1]));
  const whole = groups(Array.from({ length: rank }, (_, d) => most(counts.map((c) => c[d])))) || 1;
  return { parts: counts.map(groups), bytes: layout.core_bytes / whole };
}

// Bytes of each core's part, in whole sticks.
function partBytes(layout) {
  const { parts, bytes } = partGroups(layout);
  return parts.map((n) => n * bytes);
}

function scratchpad(root) {
  const cores = detail.machine.cores, room = detail.machine.scratchpad_bytes, n = detail.launches.length;
  if (!n) { root.append(el("p", { class: "note" }, "Nothing was launched.")); return; }
  const held = heldBytes(), bytes = Float64Array.from(held);
  detail.kernels.forEach((k) => { k.works = Array.from({ length: cores }, (_, c) => UNITS.some((u) => k.core_busy[u][c] > 0)); });
  detail.launches.forEach((l, i) => {
    const k = detail.kernels[l.kernel];
    for (let c = 0; c < cores; c += 1) if (k.works[c]) bytes[i * cores + c] += k.tile_bytes;
  });
  const peaks = detail.launches.map((l) => report.kernels[l.kernel].lx_peak_bytes);
  const top = Math.max(most(bytes), most(peaks)) || 1;
  root.append(el("p", { class: "hint" }, `What lies in each core's scratchpad while each launch runs: the parts of tensors that stay on chip, and on cores that work the kernel's tiles. `
    + `The line is the highest address in use, as planned, the same on all cores; a core has ${size(room)}, of which the run takes up to ${size(top)}. What the next launch loads early counts in the line alone. Left to right launches, not time.`));
  const cls = (x) => (x <= 0 ? "h0" : `h${Math.min(6, Math.ceil((x / top) * 6))}`);
  let low = 0, high = n;
  const told = el("p", { class: "told", role: "status" });
  const drawing = chart((width) => draw(width), { role: "group", tabindex: 0, "aria-label": "Scratchpads over the launches: + and − zoom, Page Up and Page Down move, 0 shows all", onkeydown: (e) => zoom.keys(e) });
  const zoom = zooming(n, Math.min(n, 8), "scratchpad", (a, b) => {
    low = Math.floor(a);
    high = Math.min(n, Math.max(low + 1, Math.ceil(b)));
    drawing.redraw();
    const all = bytes.subarray(low * cores, high * cores);
    told.textContent = `Launches ${count(low)} to ${count(high - 1)}: fullest core ${size(most(all))} of tensors and tiles, highest address ${size(most(peaks.slice(low, high)))}.`;
  });

  function draw(width) {
    const left = 68, above = 16, row = width < 500 ? 7 : 9, line0 = above + cores * row + 14, line1 = line0 + 70;
    const columns = Math.min(high - low, Math.max(1, Math.floor((width - left - 2) / 4)));
    const w = (width - left - 2) / columns, nodes = [];
    const of = (x) => [low + Math.floor((x * (high - low)) / columns), low + Math.max(Math.floor((x * (high - low)) / columns) + 1, Math.floor(((x + 1) * (high - low)) / columns))];
    let d = "";
    for (let x = 0; x < columns; x += 1) {
      const [from, to] = of(x);
      let start = 0;
      const value = (c) => { let v = 0; for (let i = from; i < to; i += 1) v = Math.max(v, bytes[i * cores + c]); return v; };
      let before = value(0);
      for (let c = 1; c <= cores; c += 1) { // neighbours that hold as much are one piece
        const now = c < cores ? value(c) : -1;
        if (now === before) continue;
        const name = report.kernels[detail.launches[from].kernel].name;
        nodes.push(rect(cls(before), left + x * w, above + start * row, w + 0.4, (c - start) * row,
          tip(`launch ${from}${to > from + 1 ? ` to ${to - 1}` : `, ${name}`}, core ${start}${c > start + 1 ? ` to ${c - 1}` : ""}: ${size(before)}`)));
        start = c;
        before = now;
      }
      const y = line1 - (Math.min(1, most(peaks.slice(from, to)) / top)) * (line1 - line0);
      d += `${x ? "L" : "M"}${(left + x * w).toFixed(1)} ${y.toFixed(1)}H${(left + (x + 1) * w).toFixed(1)}`;
    }
    for (const c of ticks(0, cores - 1, 4)) nodes.push(label(left - 6, above + (c + 0.5) * row + 4, `core ${Math.round(c)}`, { class: "small soft", "text-anchor": "end" }));
    nodes.push(rect("lane", left, line0, width - left - 2, line1 - line0));
    nodes.push(svg("path", { class: "peak", d }));
    nodes.push(label(left - 6, line0 + 10, size(top), { class: "small soft", "text-anchor": "end" }), label(left - 6, line1, "0", { class: "small soft", "text-anchor": "end" }));
    for (const i of ticks(low, high - 1, (width - left) / 90)) {
      if (i === Math.round(i)) nodes.push(label(left + ((i - low + 0.5) / (high - low)) * (width - left - 2), line1 + 16, count(i), { class: "small soft", "text-anchor": "middle" }));
    }
    return picture(width, line1 + 22, `Scratchpad of ${cores} cores over launches ${low} to ${high - 1}; the table below has the same figures`, nodes);
  }

  const levels = Array.from({ length: 6 }, (_, i) => [`h${i + 1}`, `up to ${size((top * (i + 1)) / 6)}`]);
  root.append(el("div", { class: "bar", role: "group", "aria-label": "Scratchpad" }, zoom.buttons), key([["h0", "nothing"], ...levels]), drawing.node, told);
  zoom.go(0, n);
  root.append(folded("The scratchpads as a table", () => table("While each launch runs", [
    { title: "launch", value: (i) => i, head: true },
    { title: "kernel", value: (i) => report.kernels[detail.launches[i].kernel].name },
    { title: "tensors, fullest core", value: (i) => most(held.subarray(i * cores, (i + 1) * cores)), text: (i) => size(most(held.subarray(i * cores, (i + 1) * cores))), num: true },
    { title: "tensors, emptiest core", value: (i) => Math.min(...held.subarray(i * cores, (i + 1) * cores)), text: (i) => size(Math.min(...held.subarray(i * cores, (i + 1) * cores))), num: true },
    { title: "tiles", value: (i) => detail.kernels[detail.launches[i].kernel].tile_bytes, text: (i) => size(detail.kernels[detail.launches[i].kernel].tile_bytes), num: true },
    { title: "highest address", value: (i) => peaks[i], text: (i) => size(peaks[i]), num: true },
  ], detail.launches.map((_, i) => i), { limit: 60 }).node));
}

function ring(root) {
  const stops = detail.machine.cores + 1;
  const empty = () => new Array(stops).fill(0);
  const lanes = ["up", "down", "sums_up", "sums_down"];
  const loads = (of) => lanes.map((lane) => report.kernels.reduce((sums, k, i) => {
    const links = (of < 0 || of === i) && detail.kernels[i].links;
    if (links) links[lane].forEach((b, s) => { sums[s] += b * (of < 0 ? k.count : 1); });
    return sums;
  }, empty()));
  let load = loads(-1);
  const busy = report.kernels.map((k, i) => [k, i]).filter(([, i]) => detail.kernels[i].links);
  root.append(el("p", { class: "hint" }, `Bytes over each piece of the ring, upwards above the line and downwards below it. Piece s lies between core s and the next; the last two lead to card memory's stop and on to core 0.`));
  if (!busy.length) { root.append(el("p", { class: "note" }, "Nothing goes over the ring in this run.")); return; }
  const choice = el("select", { onchange: () => { load = loads(Number(choice.value)); drawing.redraw(); shown.show(rows()); tell(); } },
    el("option", { value: -1 }, "the whole run"),
    [...busy].sort((a, b) => b[0].count * b[0].ring_bytes - a[0].count * a[0].ring_bytes).map(([k, i]) => el("option", { value: i }, `${k.name}, one launch, ${size(k.ring_bytes)}`)));
  const told = el("p", { class: "told", role: "status" });
  const rows = () => Array.from({ length: stops }, (_, s) => s);
  const ends = (s) => (s < stops - 2 ? `core ${s} – core ${s + 1}` : s === stops - 2 ? `core ${s} – memory` : "memory – core 0");
  const drawing = chart((width) => {
    const left = 64, half = 110, middle = half + 14, height = 2 * half + 48, w = (width - left - 2) / stops;
    const top = most([0, 1].flatMap((i) => load[i].map((b, s) => b + load[i + 2][s]))) || 1;
    const nodes = [];
    for (const t of [0.5, 1]) {
      nodes.push(line("grid", left, middle - half * t, width, middle - half * t), line("grid", left, middle + half * t, width, middle + half * t));
      for (const sign of [-1, 1]) nodes.push(label(left - 6, middle + sign * half * t + 4, size(top * t), { class: "small soft", "text-anchor": "end" }));
    }
    for (let s = 0; s < stops; s += 1) {
      const x = left + s * w + 1;
      for (const [way, sign] of [[0, -1], [1, 1]]) {
        const plain = (half * load[way][s]) / top, sums = (half * load[way + 2][s]) / top;
        const text = tip(`${ends(s)}, ${way ? "down" : "up"}: ${size(load[way][s])}${load[way + 2][s] ? `, partial sums ${size(load[way + 2][s])}` : ""}`);
        nodes.push(rect("compute", x, sign < 0 ? middle - plain : middle, w - 2, plain, text));
        if (sums) nodes.push(rect("memory", x, sign < 0 ? middle - plain - sums : middle + plain, w - 2, sums));
      }
    }
    nodes.push(line("axis", left, middle, width, middle), label(0, middle - half / 4, "up", { class: "small" }), label(0, middle + half / 4 + 8, "down", { class: "small" }));
    for (const s of ticks(0, stops - 1, Math.min(16, (width - left) / 34))) nodes.push(label(left + (s + 0.5) * w, height - 6, String(Math.round(s)), { class: "small soft", "text-anchor": "middle" }));
    return picture(width, height, "Bytes over each piece of the ring in both directions; the table below has the same figures", nodes);
  });
  const cell = (title, i) => ({ title, value: (s) => load[i][s], text: (s) => size(load[i][s]), num: true });
  const shown = table("Bytes over each piece of the ring", [
    { title: "piece", value: (s) => s, text: (s) => ends(s), head: true },
    cell("up", 0), cell("down", 1), cell("partial sums up", 2), cell("partial sums down", 3),
  ], rows());
  function tell() {
    const [up, down] = [0, 1].map((i) => load[i].map((b, s) => b + load[i + 2][s]));
    const name = (lane) => `${size(most(lane))} at ${ends(lane.indexOf(most(lane)))}`;
    told.textContent = `Fullest piece upwards ${name(up)}, downwards ${name(down)}; all pieces together ${size(total(up) + total(down))}.`;
  }
  root.append(el("div", { class: "bar" }, el("label", {}, "Load of", choice)), key([["compute", "tensors"], ["memory", "partial sums"]]), drawing.node, told);
  root.append(folded("The ring as a table", () => shown.node));
  tell();
}
