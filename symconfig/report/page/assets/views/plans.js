"use strict";
// The ranked plans: their table and what is said of them, the parts of their steps and of their memory, each stage's peak.
page.view("plans", "The answer", ["blocks"], "", (parent, data) => {
  let groups = null;
  for (const block of data.blocks) {
    if (block.headers) {
      groups = null;
      parent.append(page.table(block.title || (block.rows[0][0] === "1" ? "Ranked by what can be expected of each" : "Compared"), block.headers, block.rows, block.left,
        block.marked));
      continue;
    }
    if (!groups) parent.append(groups = page.element("div", { class: "groups" }));
    groups.append(page.element("div", {}, ...block.text.split("\n").map(page.sentence)));
  }
});

// A sentence, of which what it is about stands out: "Memory: 61 of 76 GiB".
page.sentence = function sentence(line) {
  const kept = line.replaceAll(" %", "\u00a0%"); // a sign stays with its number
  const [, about, rest] = /^([A-Z][^.:;,()]{2,40}:)( .*)$/.exec(kept) || [null, "", kept];
  return page.element("p", { class: "note" }, about ? page.element("b", { text: about }) : null,
    page.element("span", { text: rest }));
};

page.parts = function parts(parent, data, field, label, unit, limit) {
  const names = [...new Set(data.plans.flatMap((one) => Object.keys(one[field])))];
  const text = (value) => (unit === "s" ? page.seconds(value) : page.gib(value));
  const scale = unit === "s" ? 1 : 2 ** 30;
  page.chart(parent, () => ({
    legend: {},
    grid: { left: page.side(230), right: 30, top: 50, bottom: 50 },
    tooltip: { trigger: "axis", axisPointer: { type: "shadow" }, formatter: (hits) => {
      const one = data.plans[hits[0].dataIndex];
      const lines = Object.entries(one[field]).sort((a, b) => b[1] - a[1])
        .map(([name, value]) => page.words(name) + ": " + text(value));
      return page.tip("plan " + one.name + ": " + page.degrees(one.degrees), lines);
    } },
    xAxis: { type: "value", name: unit === "s" ? "seconds of a step" : "GiB", nameLocation: "middle", nameGap: 28 },
    yAxis: { type: "category", inverse: true, axisLabel: { width: page.side(230) - 10 }, data: data.plans.map((one) =>
      (page.side(230) < 230 ? one.name : one.name + ": " + page.degrees(one.degrees))) },
    series: names.map((name, place) => ({
      name: page.words(name), type: "bar", stack: "all", itemStyle: { color: page.partColour(page.words(name)) },
      data: data.plans.map((one) => (one[field][name] || 0) / scale),
      markLine: place === 0 && limit ? { symbol: "none", silent: true,
        label: { formatter: "usable", position: "start", color: page.ink("ink") },
        lineStyle: { color: page.ink("bad") }, data: [{ xAxis: limit / scale }] } : undefined,
    })),
  }), { label, rows: 1.2 * data.plans.length });
};

page.view("time", "Where the time goes", ["plans"], "Seconds of a step by part, of every plan that is shown.", (parent, data) => {
  page.parts(parent, data, "time", "Stacked bars: seconds of a step by part, for each plan", "s");
});

page.view("memory", "Where the memory goes", ["plans"], "Of the fullest GPU of each plan, against what a plan may use.",
  (parent, data) => {
    page.parts(parent, data, "memory", "Stacked bars: memory by part, for each plan", "GiB", data.usable_bytes);
    const best = data.plans[0];
    if (best.stages.length > 1) {
      page.chart(parent, () => ({
        grid: { left: 60, right: 20, top: 30, bottom: 50 },
        tooltip: { trigger: "axis", formatter: (hits) =>
          page.tip("stage " + hits[0].dataIndex, ["peak of what is allocated: " + page.gib(best.stages[hits[0].dataIndex])]) },
        xAxis: { type: "category", data: best.stages.map((_, place) => place), name: "pipeline stage",
          nameLocation: "middle", nameGap: 28, axisLabel: { width: undefined, overflow: "none" } },
        yAxis: { type: "value", name: "GiB at the peak", nameLocation: "middle", nameGap: 40 },
        series: [{ type: "bar", data: best.stages.map((bytes) => bytes / 2 ** 30) }],
      }), { label: "Bars: peak memory of each pipeline stage of the chosen plan" });
    }
  });

page.view("sure", "How sure it is", ["plans"], "The step of each plan with its 90 % interval, the error on held-out runs included.",
  (parent, data) => {
    const best = data.plans[0], names = data.plans.map((one) => one.name + ": " + page.degrees(one.degrees));
    parent.append(page.element("p", { text: "A step takes " + page.seconds(best.step_s) + ", likely between " +
      page.seconds(best.interval[0]) + " and " + page.seconds(best.interval[1]) + data.basis + "." }));
    page.chart(parent, () => ({
      legend: { data: ["90 % interval", "predicted"] },
      grid: { left: page.side(230), right: 30, top: 40, bottom: 50 },
      tooltip: { formatter: (hit) => {
        const one = data.plans[hit.dataIndex];
        return page.tip("plan " + names[hit.dataIndex], [page.seconds(one.step_s) + ", likely " + page.seconds(one.interval[0]) +
          " to " + page.seconds(one.interval[1])]);
      } },
      xAxis: { type: "value", name: "seconds of a step", nameLocation: "middle", nameGap: 28 },
      yAxis: { type: "category", inverse: true, axisLabel: { width: page.side(230) - 10 },
        data: page.side(230) < 230 ? data.plans.map((one) => one.name) : names },
      series: [
        { name: "from", type: "bar", stack: "all", silent: true, itemStyle: { color: "transparent" },
          data: data.plans.map((one) => one.interval[0]) },
        { name: "90 % interval", type: "bar", stack: "all", barWidth: 10, itemStyle: { color: page.colours[4] },
          data: data.plans.map((one) => one.interval[1] - one.interval[0]) },
        { name: "predicted", type: "scatter", symbolSize: 11, itemStyle: { color: page.colours[5] },
          data: data.plans.map((one, place) => [one.step_s, place]) },
      ],
    }), { label: "Bars: the 90 % interval of each plan's step", rows: 1.2 * data.plans.length });
  });
