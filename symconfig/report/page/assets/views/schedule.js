"use strict";
// The step, event by event, and each stage's memory below. Zoom with Ctrl and the wheel, the slider, or the buttons.
page.view("schedule", "The step, stage by stage", ["schedule"], "", async (parent, data) => {
  const told = data.schedule;
  if (told.why) { parent.append(page.element("p", { text: told.why })); return; }
  for (const note of told.notes) parent.append(page.element("p", { class: "note", text: note }));
  if (told.left_out) parent.append(page.element("p", { class: "note", text: told.left_out + " later events are not drawn." }));
  const [where, when] = await Promise.all([page.unpack(told.where), page.unpack(told.when)]);
  const memory = await Promise.all(told.memory.map(async (one) => {
    const [seconds, gib] = await Promise.all([page.unpack(one.seconds), page.unpack(one.gib)]);
    return Array.from(seconds, (second, place) => [second, gib[place]]);
  }));
  const series = told.kinds.map(() => []);
  for (let n = 0; n < when.length / 2; n += 1) {
    const [stage, kind, chunk, microbatch] = where.slice(4 * n, 4 * n + 4);
    series[kind].push([when[2 * n], when[2 * n + 1], stage, chunk, microbatch]);
  }
  const render = (kind) => (params, api) => {
    const start = api.coord([api.value(0), api.value(2)]), end = api.coord([api.value(1), api.value(2)]);
    const height = api.size([0, 1])[1] * 0.8, thin = kind.beside ? 0.25 : 1;
    const box = { x: start[0], y: start[1] + height / 2 - height * thin, width: Math.max(end[0] - start[0], 0.5), height: height * thin };
    const area = params.coordSys;
    const x = Math.max(box.x, area.x), right = Math.min(box.x + box.width, area.x + area.width);
    if (right <= x) return undefined;
    return { type: "rect", shape: { ...box, x, width: right - x }, style: { fill: kind.colour,
      stroke: right - x > 4 ? "#00000055" : undefined, lineWidth: 0.5 } };
  };
  const zoom = { start: 0, end: 100 };
  const buttons = page.element("fieldset", {}, ...[["Zoom in", 0.5], ["Zoom out", 2]].map(([text, factor]) =>
    page.element("button", { type: "button", text, onclick: () => {
      const middle = (zoom.start + zoom.end) / 2, half = Math.min(50, ((zoom.end - zoom.start) / 2) * factor);
      zoom.start = Math.max(0, Math.min(middle - half, 100 - 2 * half));
      zoom.end = zoom.start + 2 * half;
      held.now();
      held.made.dispatchAction({ type: "dataZoom", start: zoom.start, end: zoom.end });
    } })));
  parent.append(buttons);
  const stages = told.stages;
  const held = page.chart(parent, () => ({
    legend: { data: told.kinds.map((kind) => kind.words) },
    grid: [{ left: 70, right: 20, top: 40, height: "52%" }, { left: 70, right: 20, top: "68%", bottom: 60 }],
    tooltip: { formatter: (hit) => {
      if (hit.seriesType !== "custom") return page.tip(hit.seriesName, [hit.value[1].toFixed(1) + " GiB from " +
        page.seconds(hit.value[0]) + " on"]);
      const [start, end, stage, chunk, microbatch] = hit.value, kind = told.kinds[hit.seriesIndex];
      return page.tip(kind.words + ", stage " + stage, [microbatch >= 0 ? "microbatch " + microbatch + ", chunk " + chunk : "",
        page.seconds(end - start) + ", from " + page.seconds(start) + " on"].filter(Boolean));
    } },
    dataZoom: [page.inside({ xAxisIndex: [0, 1], filterMode: "weakFilter", ...zoom }),
      { type: "slider", xAxisIndex: [0, 1], bottom: 8, height: 18, filterMode: "weakFilter", ...zoom }],
    xAxis: [{ type: "value", gridIndex: 0, max: told.total_s, axisLabel: { show: false } },
      { type: "value", gridIndex: 1, max: told.total_s, name: "seconds", nameLocation: "middle", nameGap: 24 }],
    yAxis: [{ type: "category", gridIndex: 0, inverse: true, data: Array.from({ length: stages }, (_, place) => place), name: "stage", nameLocation: "middle", nameGap: 40 },
      { type: "value", gridIndex: 1, name: "GiB", nameLocation: "middle", nameGap: 40, scale: true }],
    series: [
      ...told.kinds.map((kind, place) => ({ name: kind.words, type: "custom", renderItem: render(kind), clip: true,
        itemStyle: { color: kind.colour }, encode: { x: [0, 1], y: 2 }, data: series[place], progressive: 4000 })),
      ...memory.map((steps, stage) => ({ name: "memory of stage " + stage, type: "line", step: "end", symbol: "none",
        xAxisIndex: 1, yAxisIndex: 1, lineStyle: { width: 1.2 }, sampling: "max", data: steps,
        itemStyle: { color: page.colours[stage % page.colours.length] } })),
    ],
  }), { tall: true, label: told.title + ": a lane for each stage, its memory below",
    on: { datazoom: () => { const [one] = held.made.getOption().dataZoom; zoom.start = one.start; zoom.end = one.end; } } });
  page.timeline = held;
});
