"use strict";
// Pictures that several commands have: points over two logarithmic axes, bars of parts, and who holds which part.
page.view("pictures", "At a glance", ["pictures"], "", (parent, data) => {
  for (const told of data.pictures) {
    if (data.pictures.length > 1) parent.append(page.element("h3", { text: told.title }));
    page.pictures[told.kind](parent, told);
  }
});

page.pictures = {};

page.pictures.scatter = function scatter(parent, told) {
  const all = told.series.flatMap(({ dots }) => dots);
  if (!all.length) return;
  const ends = (values) => [Math.min(...values) / 1.3, Math.max(...values) * 1.3];
  const x = ends(all.map((dot) => dot.x)), y = ends(all.map((dot) => dot.y));
  const low = Math.min(x[0], y[0]), high = Math.max(x[1], y[1]);
  const [left, right] = told.diagonal ? [low, high] : x, [bottom, top] = told.diagonal ? [low, high] : y;
  page.chart(parent, () => ({
    legend: {},
    grid: { left: 80, right: 30, top: 50, bottom: 60 },
    tooltip: { formatter: (hit) => (hit.data && hit.data.dot ? page.tip(hit.seriesName, [...hit.data.dot.says,
      told.x + ": " + page.brief(hit.data.dot.x), told.y + ": " + page.brief(hit.data.dot.y)]) : "") },
    xAxis: { type: "log", name: told.x, nameLocation: "middle", nameGap: 28, min: left, max: right },
    yAxis: { type: "log", name: told.y, nameLocation: "middle", nameGap: 55, min: bottom, max: top },
    series: [
      ...told.series.map(({ name, dots }, place) => ({ name, type: "scatter", symbolSize: 7,
        itemStyle: { color: page.colours[place % page.colours.length], opacity: 0.8 },
        data: dots.map((dot) => ({ value: [dot.x, dot.y], dot })) })),
      ...told.series.flatMap(({ name, dots, lines }, place) => lines.map((line) => ({ name, type: "line", symbol: "none",
        silent: true, lineStyle: { color: page.colours[place % page.colours.length], width: 1 },
        data: line.map((one) => [dots[one].x, dots[one].y]) }))),
      ...(told.diagonal ? [["equal", 1, "solid"], ["±10 %", 0.9, "dashed"], ["±10 %", 1.1, "dashed"]].map(([name, times, type]) => ({
        name, type: "line", symbol: "none", lineStyle: { color: page.ink("soft"), type },
        itemStyle: { color: page.ink("soft") }, data: [[low, times * low], [high, times * high]] })) : []),
      ...(told.upright ? [{ name: told.upright[0], type: "line", symbol: "none", lineStyle: { color: page.ink("bad"),
        type: "dashed" }, itemStyle: { color: page.ink("bad") }, data: [[told.upright[1], bottom], [told.upright[1], top]] }] : []),
    ],
  }), { tall: true, label: told.title });
};

// On a narrow screen the end of a name, which tells it from others.
page.short = (name) => (page.side(310) < 310 && name.length > 15 ? "…" + name.slice(-14) : name);

// A bar for each name, of parts that are stacked or side by side. A part that is null is said not to be.
page.pictures.bars = function bars(parent, told) {
  page.chart(parent, () => ({
    legend: {},
    grid: { left: page.side(310), right: 40, top: 40, bottom: 50 },
    tooltip: { trigger: "axis", axisPointer: { type: "shadow" }, formatter: (hits) => page.tip(hits[0].name,
      hits.filter((hit) => hit.data.part !== 0).map((hit) =>
        hit.seriesName + ": " + (hit.data.part === null ? told.none : page.brief(hit.data.part) + " " + told.unit))) },
    xAxis: { type: "value", name: told.unit, nameLocation: "middle", nameGap: 28,
      max: told.upright ? ({ max }) => (max < told.upright[1] ? 1.05 * told.upright[1] : null) : undefined },
    yAxis: { type: "category", inverse: true, data: told.names,
      axisLabel: { width: page.side(310) - 10, overflow: "truncate", formatter: page.short } },
    series: told.series.map(([name, parts], place) => ({
      name, type: "bar", stack: told.stacked ? "all" : undefined,
      itemStyle: { color: told.stacked ? page.partColour(name) : page.colours[place % 9] },
      data: parts.map((part) => ({ value: part === null ? 0 : part, part, label: { show: part === null, position: "right",
        color: page.ink("ink"), formatter: name + ": " + told.none } })),
      markLine: place === 0 && told.upright ? { symbol: "none", silent: true, label: { formatter: told.upright[0], position: "start",
        color: page.ink("ink") },
        lineStyle: { color: page.ink("bad") }, data: [{ xAxis: told.upright[1] }] } : undefined,
    })),
  }), { label: "Bars: " + told.title, rows: told.names.length * (told.stacked ? 1 : told.series.length) });
};

// Which GPUs hold the same part of a tensor.
page.pictures.held = function held(parent, told) {
  const note = page.element("p", { class: "note", role: "status" });
  const { svg, shown, paint } = page.blocks(told.gpus, told.per_node);
  const select = page.element("select", { id: "held", onchange: () => show() },
    ...told.tensors.map((one, place) => page.element("option", { value: place, text: one.name, selected: place === told.first })));
  const show = () => {
    const one = told.tensors[select.value];
    const parts = told.axes.reduce((count, [size], k) => count * (one.cut[k] ? size : 1), 1);
    const part = (rank) => told.axes.reduceRight((before, [size, stride], k) =>
      (one.cut[k] ? before * size + (Math.floor(rank / stride) % size) : before), 0);
    paint(part, part);
    note.textContent = page.visible(one.says) + ": " + (parts === 1 ? "every GPU has all of it." : parts + " parts, each on " +
      told.gpus / parts + " GPU" + (parts < told.gpus ? "s, of one colour and number." : ".")) +
      (shown < told.gpus ? " The first " + shown + " of " + told.gpus + " GPUs are drawn, each block a node." : "");
    svg.setAttribute("aria-label", note.textContent);
  };
  parent.append(page.element("fieldset", {}, page.element("label", { for: "held", text: "Tensor " }), select), svg, note);
  show();
  page.painted = show;
};
