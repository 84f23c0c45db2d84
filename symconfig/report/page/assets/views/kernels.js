"use strict";
// The products and attentions of a layer under the roofline of the GPU.
page.view("roofline", "Operators under the roofline", ["roofline"],
  "FLOP/s that each product and attention is predicted to reach, against FLOP for each byte of its operands and results.",
  (parent, data) => {
    const told = data.roofline, points = told.points.map((one) => ({ ...one, x: one.flops / one.bytes, y: one.flops / one.seconds }));
    if (!points.length) return;
    const phases = [...new Set(points.map((one) => one.phase))];
    const least = Math.min(...points.map((one) => one.x)) / 2, most = Math.max(...points.map((one) => one.x), told.peak_flops / told.bytes_per_s) * 2;
    const ridge = told.peak_flops / told.bytes_per_s;
    page.chart(parent, () => ({
      legend: {},
      grid: { left: 80, right: 30, top: 40, bottom: 50 },
      tooltip: { formatter: (hit) => {
        const one = hit.data && hit.data.one;
        return one ? page.tip(one.operator + ", " + one.phase + " (" + page.words(one.kind) + ")", [
          (one.y / 1e12).toFixed(0) + " TFLOP/s, " + page.percent(one.y / told.peak_flops) + " of the peak",
          one.x.toFixed(0) + " FLOP a byte", page.seconds(one.seconds)]) : "";
      } },
      xAxis: { type: "log", name: "FLOP a byte", nameLocation: "middle", nameGap: 28, min: least, max: most },
      yAxis: { type: "log", name: "FLOP/s", nameLocation: "middle", nameGap: 50 },
      series: [
        { name: "roofline", type: "line", symbol: "none", lineStyle: { color: page.ink("ink") }, itemStyle: { color: page.ink("ink") },
          data: [[least, least * told.bytes_per_s], [ridge, told.peak_flops], [most, told.peak_flops]] },
        ...phases.map((phase, place) => ({ name: phase, type: "scatter", symbolSize: 9, itemStyle: { color: page.colours[place] },
          data: points.filter((one) => one.phase === phase).map((one) => ({ value: [one.x, one.y], one })) })),
      ],
    }), { label: "Scatter: operators against the roofline of the GPU" });
  });
