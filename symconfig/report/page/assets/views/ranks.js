"use strict";
// Who talks to whom: the ranks of the first nodes, and what a GPU exchanges over each level of the network.
// GPUs in blocks of a node each, as many as a screen can show; `paint` gives each the colour of its order.
page.blocks = function blocks(gpus, node) {
  const shown = Math.min(gpus, Math.max(node, Math.floor(128 / node) * node));
  const wide = 16, cell = 34, gap = 12, rows = Math.ceil(shown / node);
  const across = page.side(200) < 200 ? 1 : Math.max(1, Math.floor(wide / node)), name = "http://www.w3.org/2000/svg";
  const width = Math.min(across, rows) * (Math.min(node, wide) * cell + gap);
  const deep = Math.ceil(node / wide), height = Math.ceil(rows / across) * (deep * cell + gap);
  const make = (kind, given) => {
    const made = document.createElementNS(name, kind);
    for (const [key, value] of Object.entries(given)) made.setAttribute(key, value);
    return made;
  };
  const svg = make("svg", { viewBox: "0 0 " + width + " " + height, class: "ranks", role: "img" });
  svg.style.maxWidth = width + "px";
  const boxes = [];
  for (let rank = 0; rank < shown; rank += 1) {
    const box = Math.floor(rank / node), inside = rank % node;
    const x = (box % across) * (Math.min(node, wide) * cell + gap) + (inside % wide) * cell;
    const y = Math.floor(box / across) * (deep * cell + gap) + Math.floor(inside / wide) * cell;
    const rect = make("rect", { x, y, width: cell - 3, height: cell - 3, rx: 4 });
    const text = make("text", { x: x + (cell - 3) / 2, y: y + cell / 2 + 3, "text-anchor": "middle", "font-size": 11 });
    svg.append(rect, text);
    boxes.push({ rect, text });
  }
  const paint = (order, words) => boxes.forEach(({ rect, text }, rank) => {
    const colour = order(rank), strong = colour < page.colours.length;
    rect.setAttribute("fill", page.colours[colour % page.colours.length]);
    rect.setAttribute("fill-opacity", strong ? 1 : 0.4);
    text.setAttribute("fill", strong ? "#000" : page.ink("ink"));
    text.textContent = words(rank);
  });
  return { svg, shown, paint };
};

page.view("ranks", "Who talks to whom", ["ranks"], "Choose an axis: ranks of one colour form a group, and exchange with each other.",
  (parent, data) => {
    const { axes, per_node: node } = data.ranks, { svg, shown, paint: fill } = page.blocks(data.gpus, node);
    const note = page.element("p", { class: "note", role: "status" });
    const paint = (axis) => {
      fill((rank) => {
        const group = rank - (Math.floor(rank / axis.stride) % axis.ranks) * axis.stride;
        return Math.floor(group / (axis.stride * axis.ranks)) * axis.stride + (group % axis.stride);
      }, (rank) => rank);
      const mine = data.exchanges.filter((one) => one.axes.includes(axis.name));
      const sum = mine.reduce((total, one) => total + one.bytes, 0), levels = [...new Set(mine.map((one) => one.level))];
      note.textContent = axis.name + ": groups of " + axis.ranks + ", neighbours " + axis.stride + " rank" +
        (axis.stride > 1 ? "s" : "") + " apart" + (mine.length ? "; each GPU exchanges " + page.size(sum) + " a step, " +
        [...new Set(mine.map((one) => one.kind))].join(" and ") + " over " + levels.join(", ") : "") + "." +
        (shown < data.gpus ? " The first " + shown + " of " + data.gpus + " ranks are drawn, each block a node." : "");
      svg.setAttribute("aria-label", note.textContent);
      for (const button of buttons) button.setAttribute("aria-pressed", String(button.dataset.axis === axis.name));
    };
    const buttons = axes.map((axis) => page.element("button", { type: "button", "data-axis": axis.name, text:
      axis.name + " " + axis.ranks, onclick: () => paint(axis) }));
    if (axes.length) {
      parent.append(page.element("fieldset", {}, page.element("legend", { text: "Axis" }), ...buttons), svg, note);
      paint(axes[0]);
      page.painted = () => paint(axes.find((axis) => buttons.some((one) => one.dataset.axis === axis.name
        && one.getAttribute("aria-pressed") === "true")));
    } else parent.append(page.element("p", { text: "One GPU: nothing is exchanged." }));
    if (!data.exchanges.length) return;
    const labels = data.exchanges.map((one) => one.kind + " over " + one.axes.join(" x "));
    page.chart(parent, () => ({
      legend: {},
      grid: { left: page.side(210), right: 30, top: 40, bottom: 50 },
      tooltip: { formatter: (hit) => {
        const one = data.exchanges[hit.dataIndex];
        return page.tip(labels[hit.dataIndex], [page.size(one.bytes) + " a step and GPU, over " + one.level,
          one.seconds === null ? "its time is part of the step's own parts" : page.seconds(one.seconds) + ", of which work waits for "
            + page.seconds(one.exposed_s)]);
      } },
      xAxis: { type: "value", name: "GB a step and GPU", nameLocation: "middle", nameGap: 28 },
      yAxis: { type: "category", inverse: true, data: labels },
      series: data.levels.filter((level) => data.exchanges.some((one) => one.level === level)).map((level, place) => ({ name: level, type: "bar", stack: "all",
        itemStyle: { color: page.colours[place] },
        data: data.exchanges.map((one) => (one.level === level ? one.bytes / 1e9 : 0)),
      })),
    }), { label: "Bars: bytes that a GPU exchanges in a step, by collective and level of the network" });
  });
