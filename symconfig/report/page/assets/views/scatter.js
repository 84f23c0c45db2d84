"use strict";
// Points over two logarithmic axes, as several commands have them.
page.view("scatter", "At a glance", ["scatters"], "", (parent, data) => {
  for (const told of data.scatters) {
    const all = told.series.flatMap(([, dots]) => dots);
    if (!all.length) continue;
    const ends = (values) => [Math.min(...values) / 1.3, Math.max(...values) * 1.3];
    const x = ends(all.map((dot) => dot.x)), y = ends(all.map((dot) => dot.y));
    const low = Math.min(x[0], y[0]), high = Math.max(x[1], y[1]);
    const [left, right] = told.diagonal ? [low, high] : x, [bottom, top] = told.diagonal ? [low, high] : y;
    page.chart(parent, () => ({
      legend: { top: 0 },
      grid: { left: 80, right: 30, top: 50, bottom: 60 },
      tooltip: { formatter: (hit) => (hit.data && hit.data.dot ? page.tip(hit.seriesName, [...hit.data.dot.says,
        told.x + ": " + page.brief(hit.data.dot.x), told.y + ": " + page.brief(hit.data.dot.y)]) : "") },
      xAxis: { type: "log", name: told.x, nameLocation: "middle", nameGap: 28, min: left, max: right },
      yAxis: { type: "log", name: told.y, nameLocation: "middle", nameGap: 55, min: bottom, max: top },
      series: [
        ...told.series.map(([name, dots], place) => ({ name, type: "scatter", symbolSize: 7,
          itemStyle: { color: page.colours[place % page.colours.length], opacity: 0.8 },
          data: dots.map((dot) => ({ value: [dot.x, dot.y], dot })) })),
        ...(told.diagonal ? [{ name: "equal", type: "line", symbol: "none", lineStyle: { color: page.ink("soft") },
          itemStyle: { color: page.ink("soft") }, data: [[low, low], [high, high]] }] : []),
        ...(told.upright ? [{ name: told.upright[0], type: "line", symbol: "none", lineStyle: { color: page.ink("bad"),
          type: "dashed" }, itemStyle: { color: page.ink("bad") }, data: [[told.upright[1], bottom], [told.upright[1], top]] }] : []),
      ],
    }), { tall: true, label: told.title });
  }
});
