"use strict";
// The files that start the plan, to copy.
page.view("files", "Files", ["files"], "What plan --out writes for this plan.", (parent, data) => {
  const pre = page.element("pre", { tabindex: 0, "aria-label": "Text of the file" }), status = page.element("span", { role: "status" });
  let text = "";
  const buttons = data.files.map((file) => page.element("button", { type: "button", text: file.name, onclick: () => show(file) }));
  const copy = page.element("button", { type: "button", text: "Copy", onclick: async () => {
    try { await navigator.clipboard.writeText(text); status.textContent = " copied"; }
    catch { const range = document.createRange(); range.selectNodeContents(pre); getSelection().removeAllRanges();
      getSelection().addRange(range); status.textContent = " selected: copy it with the keyboard"; }
  } });
  const show = (file) => {
    text = file.text;
    pre.textContent = page.visible(file.text);
    status.textContent = "";
    data.files.forEach((one, place) => buttons[place].setAttribute("aria-pressed", String(one === file)));
  };
  const zip = data.zip ? page.element("a", { href: data.zip, download: "plan.zip", text: "All as a zip" }) : null;
  parent.append(page.element("fieldset", {}, ...buttons, zip || ""), copy, status, pre);
  if (data.files.length) show(data.files.find((file) => file.name.endsWith(".sh")) || data.files[0]);
});
