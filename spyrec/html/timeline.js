// The launches over time, and how much of each its units worked.

const cycleTime = (cycles) => time(cycles / report.clock_mhz);

function launchText(i) {
  const l = detail.launches[i], k = report.kernels[l.kernel];
  const early = l.start_cycle < l.go_cycle ? `, loading from ${cycleTime(l.start_cycle)}` : "";
  return `Launch ${count(i)} (0 to ${count(detail.launches.length - 1)}): ${k.name}, from ${cycleTime(l.go_cycle)} to ${cycleTime(l.end_cycle)}, `
    + `${count(l.end_cycle - l.go_cycle)} cycles, ${k.bound}${early}`;
}

function timeline(root) {
  const launches = detail.launches;
  if (!launches.length) { root.append(el("p", { class: "note" }, "Nothing was launched.")); return; }
  const end = most(launches.map((l) => l.end_cycle)) || 1;
  const lanes = [
    ["matrix", "compute", (k) => k.busy_cycles.matrix / (detail.machine.cores * k.cycles)],
    ["vector", "vector", (k) => k.busy_cycles.vector / (detail.machine.cores * k.cycles)],
    ["memory bus", "memory", (k) => k.bus_busy_cycles / k.cycles],
    ["ring", "ring", (k) => k.busy_cycles.ring_send / (detail.machine.cores * k.cycles)],
  ];
  const use = lanes.map(([, , of]) => report.kernels.map((k) => (k.cycles ? Math.min(1, of(k)) : 0)));
  let low = 0, high = end, picked = 0;
  const told = el("p", { class: "told" });
  const drawing = chart((width) => draw(width), {
    role: "slider", tabindex: 0, "aria-label": "Launch", "aria-orientation": "horizontal",
    "aria-valuemin": 0, "aria-valuemax": launches.length - 1, onkeydown: keys,
  });
  const zoom = zooming(end, Math.min(end, 200), "timeline", (a, b) => { low = a; high = b; drawing.redraw(); });

  function pick(i) {
    picked = Math.max(0, Math.min(launches.length - 1, i));
    const text = launchText(picked);
    told.textContent = text;
    drawing.node.setAttribute("aria-valuenow", picked);
    drawing.node.setAttribute("aria-valuetext", text);
    const l = launches[picked];
    zoom.reach(l.go_cycle, l.end_cycle);
  }

  function keys(event) {
    if (zoom.keys(event)) return;
    const by = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1 }[event.key];
    if (!by || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    pick(picked + by);
  }

  // Neighbours too narrow to be seen alone become one piece, coloured by what most of it is bound by.
  function pieces(scale) {
    const found = [];
    let run = null;
    const close = () => { if (run) found.push(run); run = null; };
    launches.forEach((l, i) => {
      if (l.end_cycle < low || l.go_cycle > high) return;
      const x = (Math.max(l.go_cycle, low) - low) * scale, right = (Math.min(l.end_cycle, high) - low) * scale;
      const own = { x, right, launches: [i], cycles: l.end_cycle - l.go_cycle };
      if (right - x >= 1.5) { close(); found.push(own); return; }
      if (run && right - run.x <= 2) { run.right = Math.max(run.right, right); run.launches.push(i); } else { close(); run = own; }
    });
    close();
    return found;
  }

  function bound(ids) {
    const cycles = {};
    for (const i of ids) {
      const l = launches[i], b = report.kernels[l.kernel].bound;
      cycles[b] = (cycles[b] || 0) + l.end_cycle - l.go_cycle;
    }
    return Object.keys(cycles).sort((a, b) => cycles[b] - cycles[a])[0];
  }

  function draw(width) {
    const left = width < 500 ? 56 : 84, scale = (width - left - 2) / (high - low), bar = 40, small = 26, gap = 8;
    const top = 22, height = top + 14 + bar + lanes.length * (small + gap) + 26;
    const nodes = [];
    const step = ticks(low / report.clock_mhz, high / report.clock_mhz, Math.max(2, (width - left) / 110));
    for (const us of step) {
      const x = left + (us * report.clock_mhz - low) * scale;
      nodes.push(line("grid", x, top - 4, x, height - 20));
      nodes.push(label(Math.min(x, width - 28), 12, tickTime(us, step), { class: "small soft", "text-anchor": x < left + 20 ? "start" : "middle" }));
    }
    nodes.push(label(0, top + 14 + bar / 2, "launches", { class: "small" }));
    const found = pieces(scale);
    launches.forEach((l) => {
      if (l.start_cycle >= l.go_cycle || l.go_cycle < low || l.start_cycle > high) return;
      const x = (Math.max(l.start_cycle, low) - low) * scale, right = (Math.min(l.go_cycle, high) - low) * scale;
      if (right - x >= 1) nodes.push(rect("memory", left + x, top, right - x, 6, tip(`weights of ${report.kernels[l.kernel].name} come early`)));
    });
    for (const p of found) {
      const w = Math.max(1, p.right - p.x), one = p.launches.length === 1 ? p.launches[0] : null;
      const name = one === null ? `${plural(p.launches.length, "launch", "launches")}, ${launchText(p.launches[0])} and on` : launchText(one);
      const node = rect(`${bound(p.launches)}${w > 3 ? " cell" : ""}`, left + p.x, top + 10, w, bar, tip(name));
      node.addEventListener("click", () => { pick(p.launches[0]); drawing.node.focus({ preventScroll: true }); });
      nodes.push(node);
    }
    lanes.forEach(([name, cls], i) => {
      const y = top + 14 + bar + gap + i * (small + gap);
      nodes.push(label(0, y + small / 2 + 4, width < 500 ? name.replace("memory ", "") : name, { class: "small" }), rect("lane", left, y, width - left - 2, small));
      for (const p of found) {
        const cycles = total(p.launches.map((j) => launches[j].end_cycle - launches[j].go_cycle)) || 1;
        const worked = total(p.launches.map((j) => use[i][launches[j].kernel] * (launches[j].end_cycle - launches[j].go_cycle))) / cycles;
        if (worked > 0.004) nodes.push(rect(cls, left + p.x, y + small * (1 - worked), Math.max(0.6, p.right - p.x), small * worked));
      }
    });
    const l = launches[picked];
    if (l.end_cycle >= low && l.go_cycle <= high) {
      const x = left + (Math.max(l.go_cycle, low) - low) * scale;
      nodes.push(rect("picked", x, top + 8, Math.max(3, (Math.min(l.end_cycle, high) - Math.max(l.go_cycle, low)) * scale), bar + 4));
    }
    nodes.push(label(left, height - 4, `${cycleTime(low)} to ${cycleTime(high)}, ${plural(new Set(found.flatMap((p) => p.launches)).size, "launch", "launches")}`, { class: "small soft" }));
    return svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" }, nodes);
  }

  root.append(el("p", { class: "hint" }, "Above, each launch coloured by what bounds it, with what was loaded early on top. Below, how much of its time each unit worked, all cores together. "
    + "With the chart in focus, arrows go from launch to launch, + and − zoom, Page Up and Page Down move, 0 shows all."));
  root.append(el("div", { class: "bar", role: "group", "aria-label": "Timeline" }, zoom.buttons,
    el("button", { type: "button", onclick: () => pick(picked - 1) }, "Launch before"),
    el("button", { type: "button", onclick: () => pick(picked + 1) }, "Next launch")));
  root.append(boundKey(), drawing.node, told);
  root.append(folded("The launches as a table", () => table("Launches in order", [
    { title: "launch", value: (i) => i, head: true },
    { title: "kernel", value: (i) => report.kernels[launches[i].kernel].name },
    { title: "start", value: (i) => launches[i].go_cycle, text: (i) => count(launches[i].go_cycle), num: true },
    { title: "end", value: (i) => launches[i].end_cycle, text: (i) => count(launches[i].end_cycle), num: true },
    { title: "cycles", value: (i) => launches[i].end_cycle - launches[i].go_cycle, text: (i) => count(launches[i].end_cycle - launches[i].go_cycle), num: true },
    { title: "bound", value: (i) => report.kernels[launches[i].kernel].bound },
  ], launches.map((_, i) => i), { limit: 60 }).node));
  pick(0);
}

// Times along an axis, all in the unit and to the place that their distance asks for.
function tickTime(us, all) {
  const step = all.length > 1 ? all[1] - all[0] : us || 1, top = all[all.length - 1];
  const [unit, name] = top >= 1e6 ? [1e6, "s"] : top >= 1e3 ? [1e3, "ms"] : [1, "µs"];
  return `${(us / unit).toFixed(Math.max(0, Math.min(6, -Math.floor(Math.log10(step / unit) + 1e-9))))} ${name}`;
}
