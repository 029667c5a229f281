// Who owns which sticks of the tensors on chip, what is in card memory, and what the planner decided.

// From dark to light through hues that all readers can tell apart: five points of the map viridis (Smith, van der Walt).
const STOPS = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]];

function ramp(core, cores) {
  const x = (4 * core) / Math.max(1, cores - 1), i = Math.min(3, Math.floor(x));
  return STOPS[i].map((from, c) => Math.round(from + (STOPS[i + 1][c] - from) * (x - i)));
}

const css = (rgb) => `rgb(${rgb.join(" ")})`;

// Black or white, whichever stands out more.
function inkOn(rgb) {
  const [r, g, b] = rgb.map((n) => (n <= 10 ? n / 3294 : ((n / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.18 ? "#000" : "#fff";
}

// Where the parts of any core begin or end along a dimension.
function cutsOf(layout, d) {
  const found = new Set([0, layout.shape[d]]);
  for (const box of layout.boxes) {
    if (box.some((n, i) => i % 2 && !n)) continue;
    found.add(box[2 * d]);
    found.add(Math.min(layout.shape[d], box[2 * d] + box[2 * d + 1]));
  }
  const points = [...found].sort((a, b) => a - b);
  return points.slice(1).map((p, i) => [points[i], p]);
}

const range = ([a, b]) => (b - a === 1 ? `${a}` : `${a}–${b - 1}`);

// Rows: combinations of pieces along all dimensions but the stick's; columns: pieces along that one.
function gridOf(layout) {
  const others = layout.shape.map((_, d) => d).filter((d) => d !== layout.stick_dim);
  const pieces = layout.shape.map((_, d) => cutsOf(layout, d));
  const full = total([others.reduce((n, d) => n * pieces[d].length, 1)]);
  let rows = [{}];
  for (const d of others) rows = rows.slice(0, 200).flatMap((row) => pieces[d].slice(0, 200).map((p) => ({ ...row, [d]: p })));
  rows = rows.slice(0, 64);
  const columns = pieces[layout.stick_dim].slice(0, 64);
  const live = layout.boxes.map((box, core) => [box, core]).filter(([box]) => box.every((n, i) => i % 2 === 0 || n > 0));
  const inside = (box, d, [a, b]) => box[2 * d] <= a && b <= box[2 * d] + box[2 * d + 1];
  const cells = rows.map((row) => columns.map((column) => live
    .filter(([box]) => inside(box, layout.stick_dim, column) && others.every((d) => inside(box, d, row[d])))
    .map(([, core]) => core)));
  const cut = others.filter((d) => pieces[d].length > 1);
  const shownDims = cut.length ? cut : others.slice(-1);
  return {
    rows, columns, cells, left: full - rows.length + pieces[layout.stick_dim].length - columns.length,
    rowName: (row) => shownDims.map((d) => `d${d} ${range(row[d])}`).join(", ") || "all",
    rowSize: (row) => others.reduce((n, d) => n * (row[d][1] - row[d][0]), 1),
    groups: (column) => Math.ceil(column[1] / 64) - Math.floor(column[0] / 64),
  };
}

function layoutPicture(layout, width) {
  const cores = detail.machine.cores, g = gridOf(layout);
  const left = Math.min(190, 20 + 6.4 * most(g.rows.map((r) => g.rowName(r).length))), top = 36;
  const h = Math.max(14, Math.min(24, 420 / g.rows.length)), groups = g.columns.map(g.groups);
  const { bytes } = partGroups(layout), each = bytes / 128; // sticks of a group: 1 where elements have 16 bits
  const all = total(groups), wide = Math.max(width, left + g.columns.length * 30 + 4);
  const spare = wide - left - 4 - g.columns.length * 30;
  const widths = groups.map((n) => 30 + (spare * n) / all);
  const height = top + g.rows.length * h + 6, nodes = [label(left, 12, `d${layout.stick_dim}, a line every ${each === 1 ? "stick of " : ""}64 elements`, { class: "small" })];
  let x = left;
  g.columns.forEach((column, j) => {
    nodes.push(label(x + 2, 28, brief(range(column), widths[j] + 8), { class: "small soft" }));
    if (groups[j] > 1 && widths[j] / groups[j] > 7) {
      for (let s = 1; s < groups[j]; s += 1) nodes.push({ late: line("cell", x + (widths[j] * s) / groups[j], top, x + (widths[j] * s) / groups[j], height - 6) });
    }
    g.rows.forEach((row, i) => {
      const owners = g.cells[i][j], y = top + i * h;
      const text = owners.length ? spans(owners) : "none";
      const cell = rect(owners.length ? "cell" : "cell h0", x, y, widths[j], h, tip(`${g.rowName(row)}; d${layout.stick_dim} ${range(column)}, ${plural(g.rowSize(row) * groups[j] * each, "stick")}: core ${text}`));
      if (owners.length) cell.style.fill = css(ramp(owners[0], cores));
      nodes.push(cell);
      const mark = label(x + 5, y + h / 2 + 4, brief(text, widths[j] - 2), { class: "small" });
      if (owners.length) mark.style.fill = inkOn(ramp(owners[0], cores));
      nodes.push({ late: mark });
    });
    x += widths[j];
  });
  g.rows.forEach((row, i) => nodes.push(label(left - 6, top + (i + 0.5) * h + 4, brief(g.rowName(row), left + 6), { class: "small soft", "text-anchor": "end" })));
  const drawnFirst = nodes.filter((n) => !n.late), after = nodes.filter((n) => n.late).map((n) => n.late);
  return picture(wide, height, "Which core owns which sticks; the table below tells the same", drawnFirst, after);
}

function layouts(root) {
  const cores = detail.machine.cores;
  const users = detail.layouts.map(() => []);
  detail.held.forEach((t) => users[t.layout].push(t.name));
  root.append(el("p", { class: "hint" }, `Tensors that stay in the scratchpads, by how they are dealt out. d0 is a tensor's first dimension; a stick is 128 bytes along one dimension: 64 elements of 16 bits. `
    + `A cell names the cores that own its sticks; several own copies.`));
  if (!detail.layouts.length) root.append(el("p", { class: "note" }, "The program keeps no tensor in the scratchpads, or does not tell (it was assembled from a listing without claims, or by an older compiler)."));
  else {
    let current = 0;
    const name = (l, i) => `${l.shape.join("×")} ${l.dtype}, ${size(l.core_bytes)} a core: ${some(users[i], 1)}`;
    const choice = el("select", { onchange: () => show(Number(choice.value)) }, detail.layouts.map((l, i) => el("option", { value: i }, name(l, i))));
    const title = el("h3"), told = el("p", { class: "told", role: "status" });
    const drawing = chart((width) => layoutPicture(detail.layouts[current], width), { class: "chart wide", tabindex: 0, role: "region", "aria-label": "Picture of the layout" });
    const owned = table("What each core holds", [
      { title: "core", value: (r) => r.core, head: true },
      { title: "elements along each dimension", value: (r) => r.text },
      { title: "bytes", value: (r) => r.bytes, text: (r) => size(r.bytes), num: true },
    ], []);
    function show(i) {
      current = i;
      const l = detail.layouts[i], parts = partBytes(l), g = gridOf(l);
      title.textContent = `${l.shape.join(" × ")} ${l.dtype}, sticks along d${l.stick_dim}`;
      const copies = most(g.cells.flat().map((c) => c.length));
      told.textContent = `${plural(users[i].length, "tensor")}: ${some(users[i], 5)}. ${plural(parts.filter((b) => b > 0).length, "core")} of ${cores} hold a part of up to ${size(most(parts))}`
        + `${copies > 1 ? `; some sticks lie on ${copies} cores at once` : ""}${g.left > 0 ? `; ${count(g.left)} more pieces are not drawn` : ""}.`;
      drawing.redraw();
      owned.show(l.boxes.map((box, core) => ({ core, bytes: parts[core], text: parts[core] > 0 ? l.shape.map((_, d) => `d${d} ${range([box[2 * d], box[2 * d] + box[2 * d + 1]])}`).join(", ") : "nothing" })));
    }
    root.append(el("div", { class: "bar" }, el("label", {}, "Layout", choice)), title, drawing.node, told);
    root.append(folded("The layout as a table", () => owned.node));
    show(0);
  }
  const kernel = (i) => (detail.launches[i] ? report.kernels[detail.launches[i].kernel].name : "–");
  const rows = [
    ...detail.held.map((t) => {
      const l = detail.layouts[t.layout];
      return { name: t.name, shape: l.shape, space: "scratchpads", bytes: l.core_bytes, launches: t.launches, more: `${l.dtype}, at ${count(t.address)} of each` };
    }),
    ...detail.buffers.map((b) => ({ name: b.name, shape: b.shape, space: "card memory", bytes: b.bytes, launches: b.launches, more: b.kind })),
  ];
  const shown = table("Tensors; bytes of one core for those in the scratchpads", [
    { title: "tensor", value: (t) => t.name, head: true },
    { title: "shape", value: (t) => t.shape.join("×") || "–" },
    { title: "where", value: (t) => t.space },
    { title: "bytes", value: (t) => t.bytes, text: (t) => size(t.bytes), num: true },
    { title: "what", value: (t) => t.more },
    { title: "first launch", value: (t) => (t.launches.length ? t.launches[0] : -1), text: (t) => (t.launches.length ? `${t.launches[0]} ${kernel(t.launches[0])}` : "–") },
    { title: "others that use it", value: (t) => t.launches.length, text: (t) => some(t.launches.slice(1).map((i) => `${i} ${kernel(i)}`), 3) || "–" },
  ], rows, { limit: 40 });
  root.append(el("h3", {}, "All tensors"), filter("Find a tensor", rows, (t) => `${t.name} ${t.space} ${t.more}`, (found) => shown.show(found)), shown.node);
}

function decisions(root, log) {
  const price = (x) => (x === null ? "" : count(x));
  root.append(el("p", { class: "hint" }, log
    ? "What the planner chose for each kernel, at what price in cycles, and the best of what it rejected. Prices rank choices; they are not the simulated time."
    : "What was decided for each kernel. For prices, alternatives and reasons, compile with --emit-plan plan.json and make this page with --plan plan.json."));
  if (!log) {
    root.append(table("Decisions", [
      { title: "kernel", value: (k) => k.name, head: true },
      { title: "iterates over", value: (k) => k.dims.replaceAll(",", " ") || "–" },
      { title: "cores", value: (k) => k.cores, num: true },
      { title: "cut into", value: (k) => (k.dims && named(k.dims, k.parts)) || "–" },
      { title: "tile", value: (k) => (k.dims && named(k.dims, k.tile)) || "–" },
      { title: "bound", value: (k) => k.bound },
    ], report.kernels).node);
    return;
  }
  if (log.searched) root.append(el("p", { class: "note" }, log.searched));
  const shown = table("Cuts and tiles", [
    { title: "kernel", value: (r) => r.kernel, head: true },
    { title: "cut", value: (r) => r.cut },
    { title: "price", value: (r) => r.cut_cost ?? -1, text: (r) => price(r.cut_cost), num: true },
    { title: "best rejected cut", value: (r) => r.cut_rejected },
    { title: "price", value: (r) => r.cut_rejected_cost ?? -1, text: (r) => price(r.cut_rejected_cost), num: true },
    { title: "tile", value: (r) => r.tile },
    { title: "price", value: (r) => r.tile_cost ?? -1, text: (r) => price(r.tile_cost), num: true },
    { title: "best rejected tile", value: (r) => r.tile_rejected },
    { title: "price", value: (r) => r.tile_rejected_cost ?? -1, text: (r) => price(r.tile_rejected_cost), num: true },
    { title: "also", value: (r) => r.notes },
  ], log.kernels);
  root.append(filter("Find a kernel", log.kernels, (r) => [r.kernel, r.cut, r.tile, r.notes].join(" "), (rows) => shown.show(rows)), shown.node);
  root.append(el("h3", {}, "Where tensors went"));
  root.append(table("Places, tensors with one reason together", [
    { title: "where", value: (r) => r.space },
    { title: "why", value: (r) => r.why },
    { title: "tensors", value: (r) => r.names.length, text: (r) => count(r.names.length), num: true },
    { title: "which", value: (r) => r.names.length, text: (r) => some(r.names, 4) },
  ], log.tensors, { limit: 60 }).node);
}
