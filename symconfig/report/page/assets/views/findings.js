"use strict";
// What is wrong with a script, the worst first.
page.view("findings", "What is wrong", ["findings"], "", (parent, data) => {
  const signs = { error: "\u2716", warning: "\u26a0", note: "\u2139" };
  if (!data.findings.length) parent.append(page.element("p", { text: "Nothing that a rule knows." }));
  parent.append(page.element("ul", { class: "findings" }, ...data.findings.map((one) => page.element("li", { class: one.severity },
    page.element("span", { class: "sign", "aria-hidden": "true", text: signs[one.severity] }),
    page.element("div", {}, page.element("b", { text: one.severity }), page.element("span", { text: ": " + one.text + " " }),
      page.element("code", { text: one.rule }))))));
});
