"use strict";
// What all views share: data, elements, numbers, colours, charts.
const page = {
  data: JSON.parse(document.getElementById("data").textContent),
  charts: [],
  views: [],
};

// Okabe and Ito's colours, which the colour-blind tell apart.
page.colours = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8c8c8c", "#b8a800", "#a98bdb"];

// Parts of a step and of memory: one colour each on every page, and what belongs together has one.
page.partColours = Object.fromEntries([
  ["compute", "computation", "weights"],
  ["layer communication", "communication that shows", "activations"],
  ["data-parallel communication", "gradients"],
  ["pipeline send/receive"],
  ["working set", "while it runs", "kept, over gamma"],
  ["optimizer", "optimizer state"],
  ["pipeline bubble", "context and libraries"],
  ["recompute", "logits and loss"],
  ["overhead", "allocator"],
].flatMap((names, place) => names.map((name) => [name, page.colours[place]])));
page.partColour = (name) => page.partColours[name] || page.colours[[...name].reduce((sum, letter) =>
  sum + letter.codePointAt(0), 0) % page.colours.length];

// needs: the parts of the data without which a view is left out.
page.view = function view(id, title, needs, note, draw) {
  page.views.push({ id, title, needs, note, draw });
};

// Take down what was drawn before.
page.clear = function clear() {
  for (const one of page.charts) one.end();
  page.charts = [];
  for (const name of ["lattice", "scatter", "timeline", "painted", "ask"]) page[name] = null;
};

page.element = function element(name, given, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(given || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (key === "text") made.textContent = page.visible(value);
    else if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
};

// Letters that change how others look are written out.
page.visible = function visible(text) {
  return String(text).replace(/[\p{Cf}\p{Co}\p{Cs}]|[\u0000-\u0008\u000b-\u001f\u007f-\u009f]/gu, (letter) =>
    "<U+" + letter.codePointAt(0).toString(16).toUpperCase().padStart(4, "0") + ">");
};

page.unpack = async function unpack(packed) {
  const raw = Uint8Array.from(atob(packed.data), (letter) => letter.charCodeAt(0));
  const stream = new Blob([raw]).stream().pipeThrough(new DecompressionStream("deflate"));
  const buffer = await new Response(stream).arrayBuffer();
  const kinds = { u1: Uint8Array, i2: Int16Array, i4: Int32Array, f4: Float32Array };
  return new kinds[packed.width](buffer);
};

page.seconds = (value) => {
  if (value >= 100) return value.toFixed(0) + " s";
  if (value >= 1) return value.toPrecision(3) + " s";
  return value >= 1e-3 ? (1e3 * value).toPrecision(3) + " ms" : (1e6 * value).toPrecision(3) + " µs";
};
page.gib = (bytes) => (bytes / 2 ** 30).toFixed(1) + " GiB";
page.size = (bytes) => {
  const units = ["B", "kB", "MB", "GB", "TB", "PB"];
  let place = 0;
  while (bytes >= 1000 && place < units.length - 1) { bytes /= 1000; place += 1; }
  return bytes.toPrecision(3) + " " + units[place];
};
page.count = (value) => value.toLocaleString("en");
page.percent = (share) => (100 * share).toFixed(1) + " %";
// A number on an axis, without the digits that nobody reads.
page.brief = (value) => (Math.abs(value) >= 1e7 || (value !== 0 && Math.abs(value) < 1e-3)
  ? Number(value).toExponential(0) : Number(Number(value).toPrecision(3)).toLocaleString("en", { maximumFractionDigits: 6 }));
page.words = (name) => name.replace(/_(bytes_per_)?s$/, "").replace(/[._]/g, " ");

page.ink = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();

page.tip = function tip(title, lines) {
  const made = page.element("div", { class: "tip" }, page.element("b", { text: title }));
  for (const line of lines) made.append(page.element("div", { text: line }));
  return made;
};

// A chart that follows the width of its element and the theme, drawn when it comes near the screen.
page.chart = function chart(parent, options, given) {
  const place = page.element("div", { class: "chart" + (given && given.tall ? " tall" : ""), role: "img",
    "aria-label": given && given.label, tabindex: given && given.label ? 0 : undefined });
  if (given && given.rows) place.style.height = 110 + 26 * given.rows + "px";
  parent.append(place);
  // ECharts keeps every wheel to itself, also those that it was told to leave.
  for (const name of ["wheel", "mousewheel"]) {
    place.addEventListener(name, (event) => { if (!event.ctrlKey) event.stopPropagation(); }, { capture: true, passive: true });
  }
  const tall = place.clientHeight;
  const held = { place, made: null, options, on: (given && given.on) || {} };
  page.charts.push(held);
  const draw = () => {
    if (!held.made) {
      held.made = echarts.init(place, null);
      for (const [event, handler] of Object.entries(held.on)) held.made.on(event, handler);
    }
    held.made.setOption(page.spaced(place, tall, page.themed(held.options())), true);
  };
  held.draw = () => { if (held.made) draw(); };
  const watch = new IntersectionObserver((seen) => {
    if (seen.some((one) => one.isIntersecting)) { watch.disconnect(); draw(); }
  }, { rootMargin: "600px" });
  watch.observe(place);
  held.now = () => { watch.disconnect(); draw(); };
  const size = new ResizeObserver(() => held.made && held.made.resize());
  size.observe(place);
  held.end = () => { watch.disconnect(); size.disconnect(); if (held.made) held.made.dispose(); };
  return held;
};

page.themed = function themed(options) {
  const ink = page.ink("ink"), line = page.ink("line");
  const numbers = (one) => (one.type === "category" ? { width: page.side(200) - 10, overflow: "break", lineHeight: 13 }
    : { formatter: page.brief, hideOverlap: true });
  const axis = (one) => ({ ...one, axisLabel: { color: ink, ...numbers(one), ...(one.axisLabel || {}) },
    nameTextStyle: { color: ink, ...(one.nameTextStyle || {}) }, axisLine: { lineStyle: { color: page.ink("soft") } },
    splitLine: { lineStyle: { color: line }, ...(one.splitLine || {}) } });
  const each = (value) => (value === undefined ? value : Array.isArray(value) ? value.map(axis) : axis(value));
  return {
    animation: false,
    color: page.colours,
    textStyle: { color: ink, fontFamily: "system-ui, sans-serif" },
    ...options,
    legend: options.legend && { textStyle: { color: ink }, top: 0, ...options.legend },
    grid: options.grid && [options.grid].flat().map((one) => ({ outerBoundsMode: "none", ...one })),
    xAxis: each(options.xAxis),
    yAxis: each(options.yAxis),
    tooltip: { confine: true, backgroundColor: page.ink("paper"), borderColor: line, textStyle: { color: ink },
      ...(options.tooltip || {}) },
    aria: { enabled: true },
  };
};

// Zoom by Ctrl and the wheel (see `page.chart`) or by two fingers, so that the page scrolls where a chart is in the way.
page.inside = (given) => ({ type: "inside", moveOnMouseMove: !matchMedia("(pointer: coarse)").matches,
  preventDefaultMouseMove: false, ...given });

// A legend has the lines that it needs, and the chart begins below them.
page.spaced = function spaced(place, tall, options) {
  if (!options.legend) return options;
  let lines = 1, used = 0;
  for (const name of new Set(options.legend.data || options.series.map((one) => one.name))) {
    const wide = 6.3 * name.length + 45;
    if (used + wide > place.clientWidth) { lines += 1; used = 0; }
    used += wide;
  }
  const more = 24 * (lines - 1);
  place.style.height = tall + more + "px";
  return { ...options, grid: options.grid.map((one) => ({ ...one, top: typeof one.top === "number" ? one.top + more : one.top })) };
};

// On a narrow screen the room for labels is less.
page.side = (pixels) => (innerWidth < 600 ? Math.min(pixels, 100) : pixels);

// Text with a button that copies it.
page.copied = function copied(shown, text) {
  const status = page.element("span", { role: "status" });
  const button = page.element("button", { type: "button", text: "Copy", onclick: async () => {
    try { await navigator.clipboard.writeText(text()); status.textContent = " copied"; }
    catch { const range = document.createRange(); range.selectNodeContents(shown); getSelection().removeAllRanges();
      getSelection().addRange(range); status.textContent = " selected: copy it with the keyboard"; }
  } });
  return page.element("div", { class: "copied" }, shown, page.element("div", {}, button, status));
};

// On a narrow screen a plan's table has its layout in one cell, its step and its memory.
page.narrowed = function narrowed(headers, rows) {
  const found = (test) => headers.findIndex((text) => test.test(text)), step = found(/^step/), gib = found(/GiB$/);
  if (step < 0 || gib < 0 || !headers.some((text) => text === "tp" || text === "dp")) return null;
  const kept = headers.map((text, column) => [text, column]).filter(([text]) =>
    /^(tp|pp|vpp|cp|ep|etp|dp|micro|zero|recompute|precision|others|options)$/.test(text));
  const layout = (row) => kept.filter(([text, column]) => row[column] &&
    (text === "zero" || !/^(1|none)$/.test(row[column]))).map(([text, column]) =>
    (/^(others|options|precision)$/.test(text) ? row[column] : text + " " + row[column])).join(", ");
  return { headers: [headers[0], "layout", headers[step], headers[gib]], left: [1],
    rows: rows.map((row) => [row[0], layout(row), row[step], row[gib]]) };
};

page.table = function table(caption, headers, rows, left, best) {
  const short = page.narrowed(headers, rows);
  if (!short) return page.wide(caption, headers, rows, left, best);
  const made = page.element("div", {}, page.wide(caption, headers, rows, left, best),
    page.wide(caption, short.headers, short.rows, short.left, best));
  made.firstChild.classList.add("on-wide");
  made.lastChild.classList.add("on-narrow");
  return made;
};

page.wide = function wide(caption, headers, rows, left, best) {
  const cell = (name, text, column) => page.element(name, {
    text, class: left.includes(column) ? "words" : undefined, scope: name === "th" ? "col" : undefined });
  const head = page.element("tr", {}, ...headers.map((text, column) => cell(text ? "th" : "td", text, column)));
  const body = rows.map((row, number) => page.element("tr", { class: number === best ? "best" : undefined },
    ...row.map((text, column) => cell("td", text, column))));
  return page.element("div", { class: "table", tabindex: 0, role: "region", "aria-label": caption },
    page.element("table", {}, page.element("caption", { text: caption }), page.element("thead", {}, head),
      page.element("tbody", {}, ...body)));
};

page.degrees = (one) => Object.entries(one).filter(([, value]) => value > 1)
  .map(([name, value]) => name + " " + value).join(", ") || "one GPU each";
