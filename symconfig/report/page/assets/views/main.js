"use strict";
// Everything in its place, then each view.
(async () => {
  const { data } = page, main = document.getElementById("main"), contents = document.getElementById("contents");
  document.getElementById("sentence").textContent = page.visible(data.sentence);
  const redraw = () => { page.charts.forEach((one) => one.draw()); if (page.painted) page.painted(); };
  const theme = page.element("button", { type: "button", text: "Light or dark", onclick: () => {
    const dark = document.documentElement.dataset.theme
      ? document.documentElement.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    document.documentElement.dataset.theme = dark ? "light" : "dark";
    redraw();
  } });
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
  contents.append(theme);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  addEventListener("beforeprint", () => page.charts.forEach((one) => one.now()));
  document.documentElement.dataset.drawn = "yes";
})();
