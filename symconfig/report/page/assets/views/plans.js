"use strict";
// The ranked plans: their table and what is said of them, the parts of their steps and of their memory, each stage's peak.
page.view("plans", "The answer", ["blocks"], "", (parent, data) => {
  let groups = null;
  for (const block of data.blocks) {
    if (block.headers) {
      groups = null;
      parent.append(page.table(block.title || "Ranked by what can be expected of each", block.headers, block.rows, block.left,
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
      name: page.words(name), type: "bar", stack: "all", itemStyle: { color: page.colours[place % 9] },
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

page.view("sensitivity", "How sure it is", ["sensitivity"],
  "By how much the step changes where one constant of the GPU or of a link is off by its own uncertainty (one standard deviation).",
  (parent, data) => {
    const best = data.plans[0], [low, high] = best.interval;
    parent.append(page.element("p", { text: "A step takes " + page.seconds(best.step_s) + ", likely between " +
      page.seconds(low) + " and " + page.seconds(high) + "." }));
    if (!data.sensitivity.length) return;
    page.chart(parent, () => ({
      legend: {},
      grid: { left: page.side(190), right: 30, top: 40, bottom: 50 },
      tooltip: { formatter: (hit) => {
        const one = data.sensitivity[hit.dataIndex];
        return page.tip(page.words(one.name), [one.says, "uncertain by " + page.percent(one.uncertainty),
          "lower: " + page.percent(one.low) + " of the step", "higher: " + page.percent(one.high)]);
      } },
      xAxis: { type: "value", axisLabel: { formatter: (value) => value + " %" }, name: "change of the step",
        nameLocation: "middle", nameGap: 28 },
      yAxis: { type: "category", inverse: true, data: data.sensitivity.map((one) => page.words(one.name)) },
      series: [["constant lower", "low"], ["constant higher", "high"]].map(([name, field]) => ({
        name, type: "bar", stack: "all", data: data.sensitivity.map((one) => 100 * one[field]) })),
    }), { label: "Bars: change of the step where a constant is lower or higher" });
  });
