"use strict";
// All that was weighed: time against memory, narrowed by sliders.
page.openLattice = async function openLattice(data) {
  const packed = data.lattice;
  const [columns, places, step, gib, fits] = await Promise.all(
    [packed.columns, packed.places, packed.step_s, packed.gib, packed.fits].map(page.unpack));
  const wide = packed.whole.length, words = packed.words.length, rows = [];
  for (let n = 0; n < step.length; n += 1) {
    const row = { n, step_s: step[n], gib: gib[n], fits: fits[n] === 1 };
    packed.whole.forEach((name, place) => { row[name] = columns[n * wide + place]; });
    packed.words.forEach((name, place) => { row[name] = packed.spelled[place][places[n * words + place]]; });
    rows.push(row);
  }
  const refusals = [];
  for (const one of packed.refusals) {
    const degrees = await page.unpack(one.degrees);
    refusals.push({ name: one.name, rule: one.rule, degrees, known: null });
  }
  page.lattice = { rows, refusals, by: packed.refused_by };
};

page.pointLines = (row) => [
  "micro-batch " + row.micro + ", ZeRO " + row.zero + ", recompute " + row.recompute,
  ...(row.options ? [row.options] : []),
  row.step_s >= 0 ? page.seconds(row.step_s) + " a step" : "does not fit, however much runs again",
  row.gib.toFixed(1) + " GiB" + (row.fits ? "" : ", over the budget"),
];
page.pointTitle = (row) => page.degrees({ tp: row.tp, pp: row.pp, vpp: row.vpp, cp: row.cp, ep: row.ep, etp: row.etp,
  dp: row.dp });

page.asRow = (plan) => ({ ...plan, ...plan.degrees, gib: plan.device_bytes / 2 ** 30, fits: true });

page.frontier = function frontier(rows) {
  const found = [];
  let least = Infinity;
  for (const row of [...rows].sort((a, b) => a.step_s - b.step_s || a.gib - b.gib)) {
    if (row.gib < least) { least = row.gib; found.push(row); }
  }
  return found;
};

// Where no policy of any point fits: the least that each needs.
page.needs = function needs(parent, rows, limit) {
  const sorted = [...rows].sort((a, b) => a.gib - b.gib);
  page.chart(parent, () => ({
    legend: {},
    grid: { left: 70, right: 30, top: 50, bottom: 50 },
    tooltip: { formatter: (hit) => (hit.data && hit.data.row
      ? page.tip(page.pointTitle(hit.data.row), page.pointLines(hit.data.row)) : "") },
    xAxis: { type: "value", name: "choices, the leanest first", nameLocation: "middle", nameGap: 26 },
    yAxis: { type: "log", name: "GiB at the least", nameLocation: "middle", nameGap: 45 },
    series: [{ name: "needs at least", type: "scatter", symbolSize: 5, data: sorted.map((row, place) =>
      ({ value: [place + 1, row.gib], row })), markLine: { symbol: "none", silent: true,
      lineStyle: { color: page.ink("bad") }, label: { formatter: "budget", position: "insideEndTop", color: page.ink("ink") },
      data: [{ yAxis: limit }] } }],
  }), { label: "Scatter: the least memory that each choice of degrees needs",
    on: { click: (hit) => hit.data && hit.data.row && page.ask(hit.data.row) } });
};

page.view("weighed", "All that was weighed", ["lattice"],
  "Each dot is a choice of degrees, micro-batch and ZeRO stage with the best that recompute and options make of it, " +
  "by the formula for the schedule; the ranked plans are simulated, so that they differ a little.", (parent, data) => {
    const all = page.lattice.rows, chosen = { by: "pp", test: () => true };
    const timed = all.filter((row) => row.step_s > 0);
    const best = data.plans && data.plans[0];
    const status = page.element("p", { class: "note", role: "status" });
    const pinned = new Map();
    const tell = () => {
      const left = all.filter(chosen.test), fit = left.filter((row) => row.fits);
      status.textContent = page.count(left.length) + " of " + page.count(all.length) + " points, " + page.count(fit.length) + " fit" +
        (fit.length ? "; the fastest: " + page.pointTitle(fit[0]) + ", " + page.seconds(fit[0].step_s) : "") +
        (data.lattice.left_out ? ". " + page.count(data.lattice.left_out) + " slower points are left out." : ".");
    };
    const select = page.element("select", { id: "colour-by", onchange: () => { chosen.by = select.value; scatter.draw(); } },
      ...data.lattice.whole.map((name) => page.element("option", { value: name, text: name, selected: name === "pp" })));
    const sliders = data.lattice.whole.map((name) => {
      const values = [...new Set(all.map((row) => row[name]))].sort((a, b) => a - b);
      if (values.length < 2) return null;
      const shown = page.element("output", { for: "slide-" + name, text: "any" });
      const slider = page.element("input", { type: "range", id: "slide-" + name, min: 0, max: values.length, value: 0, step: 1,
        "aria-valuetext": "any", oninput: () => {
          const value = values[slider.value - 1];
          shown.textContent = value === undefined ? "any" : value;
          slider.setAttribute("aria-valuetext", shown.textContent);
          if (value === undefined) pinned.delete(name); else pinned.set(name, value);
          chosen.test = (row) => [...pinned].every(([field, wanted]) => row[field] === wanted);
          tell();
          if (page.scatter) page.scatter.draw();
          if (page.pin) page.pin(name === "micro" ? "mbs" : name, value);
        } });
      return page.element("label", { for: slider.id, text: name + " " }, slider, shown);
    });
    parent.append(page.element("fieldset", {}, page.element("legend", { text: "Pins: what the fastest is then" }),
      ...sliders.filter(Boolean)));
    parent.append(page.element("fieldset", {}, page.element("label", { for: "colour-by", text: "Colour by " }), select),
      status);
    tell();
    const limit = data.lattice.budget_bytes / 2 ** 30;
    if (!timed.length) { page.needs(parent, all, limit); return; }
    const slowest = 3 * timed.filter((row) => row.fits).reduce((least, row) => Math.min(least, row.step_s), Infinity);
    const scatter = page.chart(parent, () => {
      const rows = timed.filter(chosen.test);
      const values = [...new Set(rows.map((row) => row[chosen.by]))].sort((a, b) => a - b);
      const least = page.frontier(rows.filter((row) => row.fits));
      return {
        legend: {},
        grid: { left: 70, right: 30, top: 50, bottom: 80 },
        tooltip: { formatter: (hit) => (hit.data && hit.data.row
          ? page.tip(page.pointTitle(hit.data.row), page.pointLines(hit.data.row)) : "") },
        dataZoom: [page.inside({ xAxisIndex: 0, endValue: Number.isFinite(slowest) ? slowest : undefined,
          startValue: Number.isFinite(slowest) ? slowest / 3 : undefined }),
        { type: "slider", xAxisIndex: 0, bottom: 8, height: 18 }],
        xAxis: { type: "value", name: "seconds of a step", nameLocation: "middle", nameGap: 26, scale: true },
        yAxis: { type: "value", name: "GiB of a GPU", nameLocation: "middle", nameGap: 40, scale: true },
        series: [
          ...values.map((value, place) => ({
            name: chosen.by + " " + value, type: "scatter", symbolSize: 6, large: false,
            itemStyle: { color: page.colours[place % page.colours.length], opacity: 0.75 },
            data: rows.filter((row) => row[chosen.by] === value).map((row) => ({ value: [row.step_s, row.gib], row })),
          })),
          { name: "frontier", type: "line", symbol: "none", step: "end", lineStyle: { color: page.ink("ink"), width: 1.5 },
            itemStyle: { color: page.ink("ink") }, data: least.map((row) => [row.step_s, row.gib]),
            markLine: { symbol: "none", silent: true, lineStyle: { color: page.ink("bad") },
              label: { formatter: "budget", position: "insideEndTop", color: page.ink("ink") }, data: [{ yAxis: limit }] } },
          ...(best ? [{ name: "chosen plan", type: "scatter", symbol: "diamond", symbolSize: 16,
            itemStyle: { color: page.ink("bad") }, data: [{ value: [best.step_s, best.device_bytes / 2 ** 30],
              row: page.asRow(best) }] }] : []),
        ],
      };
    }, { tall: true, label: "Scatter: seconds of a step against memory of every weighed point",
      on: { click: (hit) => hit.data && hit.data.row && page.ask(hit.data.row) } });
    page.scatter = scatter;
  });
