// The report is read from the page, every view is drawn, and drawn anew when its room changes.

const { report, detail, log, against } = (() => {
  const data = JSON.parse(at("data").textContent);
  return { ...data, detail: data.report.detail || null };
})();

at("subtitle").textContent = `${report.device}, ${report.numerics}, ${count(report.total_cycles)} cycles, ${time(report.total_us)}`;
summary(at("summary"));
if (against) comparison(at("comparison"), against);
kernels(at("kernels"));
const absent = "This report was written without detail, so there is nothing to draw here: simulate the program again with --report.";
for (const [id, view] of Object.entries({ timeline, roofline, scratchpad, ring, layouts })) {
  if (detail) view(at(id));
  else at(id).append(el("p", { class: "note" }, absent));
}
decisions(at("decisions"), log);
sources(at("sources"));

fit();
new ResizeObserver(() => fit()).observe(at("main"));
const paper = matchMedia("print");
paper.addEventListener("change", () => fit(paper.matches ? 690 : 0));
addEventListener("beforeprint", () => fit(690));
addEventListener("afterprint", () => fit());
