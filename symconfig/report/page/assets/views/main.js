"use strict";
// Everything in its place, then each view.
page.show = async function show(data) {
  const main = document.getElementById("main"), contents = document.getElementById("contents");
  delete document.documentElement.dataset.drawn;
  page.clear();
  page.data = data;
  main.replaceChildren();
  contents.replaceChildren();
  document.getElementById("sentence").textContent = page.visible(data.sentence || "");
  if (data.title) document.querySelector("h1").textContent = page.visible(data.title);
  if (data.lattice) await page.openLattice(data);
  for (const view of page.views) {
    if (view.needs.some((name) => data[name] === undefined)) continue;
    const section = page.element("section", { id: view.id, "aria-labelledby": view.id + "-title" },
      page.element("h2", { id: view.id + "-title", text: view.title }),
      view.note ? page.element("p", { class: "note", text: view.note }) : null);
    main.append(section);
    contents.append(page.element("a", { href: "#" + view.id, text: view.title }));
    await view.draw(section, data);
  }
  contents.append(page.element("button", { type: "button", text: "Light or dark", onclick: () => {
    const dark = document.documentElement.dataset.theme
      ? document.documentElement.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    document.documentElement.dataset.theme = dark ? "light" : "dark";
    page.redraw();
  } }));
  document.documentElement.dataset.drawn = "yes";
  performance.mark("drawn");
};

page.redraw = () => { page.charts.forEach((one) => one.draw()); if (page.painted) page.painted(); };
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => page.redraw());
// Paper is light. What was chosen before comes back.
let before;
addEventListener("beforeprint", () => {
  before = document.documentElement.dataset.theme;
  document.documentElement.dataset.theme = "light";
  page.charts.forEach((one) => one.now());
  page.redraw();
});
addEventListener("afterprint", () => {
  if (before === undefined) delete document.documentElement.dataset.theme; else document.documentElement.dataset.theme = before;
  page.redraw();
});

if (page.data.served) {
  const place = page.element("section", { id: "job", "aria-label": "The job" });
  document.querySelector("header").append(place);
  page.form(place, page.show).then(() => { document.documentElement.dataset.ready = "yes"; });
} else page.show(page.data);
