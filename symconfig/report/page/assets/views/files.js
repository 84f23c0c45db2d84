"use strict";
// The commands that make and start the plan, and its files, to copy.
page.view("files", "Commands and files", ["files"], "", (parent, data) => {
  for (const [what, line] of data.commands || []) {
    parent.append(page.element("p", { class: "note", text: what }), page.copied(page.element("pre", {
      tabindex: 0, "aria-label": what, text: line }), () => line));
  }
  const pre = page.element("pre", { tabindex: 0, "aria-label": "Text of the file" });
  const text = page.copied(pre, () => pre.dataset.text);
  text.hidden = true;
  const buttons = data.files.map((file) => page.element("button", { type: "button", text: file.name, "aria-pressed": "false",
    onclick: () => {
      pre.dataset.text = file.text;
      pre.textContent = page.visible(file.text);
      text.hidden = false;
      data.files.forEach((one, place) => buttons[place].setAttribute("aria-pressed", String(one === file)));
    } }));
  const zip = data.zip ? page.element("a", { href: data.zip, download: "plan.zip", text: "All as a zip" }) : null;
  parent.append(page.element("fieldset", {}, page.element("legend", { text: "Its files" }), ...buttons, zip || ""), text);
});
