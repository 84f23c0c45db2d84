"use strict";
// The server's form: a job, solved by a worker with progress and cancel; each state is a link.
page.form = function form(parent, show) {
  const fields = {}, status = page.element("p", { class: "answer", role: "status", id: "form-status" });
  const add = (name, label, made) => { fields[name] = made; made.id = "form-" + name;
    return page.element("label", { for: made.id, text: label + " " }, made); };
  const text = (size, value) => page.element("input", { type: "text", size, value, spellcheck: "false" });
  let config = null, running = null;
  const file = page.element("input", { type: "file", accept: ".json,.sh,.txt,application/json", id: "form-file" });
  const pins = page.element("input", { type: "text", size: 24, placeholder: "tp=8 pp=2..8" });
  const differs = page.element("input", { type: "text", size: 28, placeholder: "network=4x200Gb/s gpu_memory=96GB" });
  const solve = page.element("button", { type: "submit", text: "Solve" });
  const cancel = page.element("button", { type: "button", text: "Cancel", disabled: true });
  const bar = page.element("progress", { max: 1, value: 0, "aria-label": "Progress", hidden: true });
  const script = page.element("textarea", { id: "form-script", rows: 6, spellcheck: "false" });
  const audit = page.element("button", { type: "button", text: "Audit it" });
  const form = page.element("form", { id: "form" }, page.element("fieldset", {},
    add("model", "Model", page.element("select", {})), add("cluster", "Cluster", page.element("select", {})),
    add("set", "Changes", differs),
    add("gpus", "GPUs", text(6, "64")), add("global_batch_size", "Global batch", text(6, "1024")),
    add("seq_length", "Sequence length", text(6, "4096")), add("task", "Task", page.element("select", {})),
    add("backend", "Framework", page.element("select", {})), add("precision", "Precision", page.element("select", {})),
    add("pins", "Pins", pins)),
  page.element("fieldset", {}, page.element("label", { for: "form-file",
    text: "Or drop a config.json (another model) or a launch script (to audit) " }), file),
  page.element("details", {}, page.element("summary", { text: "Paste a launch script to audit" }),
    page.element("label", { for: "form-script", text: "Its text, for the cluster above; it is never executed" }), script, audit),
  solve, cancel, bar, status);
  parent.append(form);

  const ask = async (path, options) => {
    const answer = await fetch(path, options), data = await answer.json();
    if (!answer.ok) throw new Error(data.error || answer.statusText);
    return data;
  };
  const post = (path, data) => ask(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(data) });
  const say = (words, bad) => { status.textContent = page.visible(words); status.className = "answer" + (bad ? " bad" : ""); };

  const wait = async (taken) => {
    running = taken.id;
    cancel.disabled = false;
    solve.disabled = true;
    try {
      for (;;) {
        const now = await ask("/api/requests/" + taken.id);
        if (now.state === "done" || now.state === "failed") break;
        if (now.state === "cancelled") { say("Cancelled."); return null; }
        bar.hidden = false;
        if (now.progress.share) bar.value = now.progress.share; else bar.removeAttribute("value");
        say(now.state === "waiting" ? "Waiting for a worker …" : "Solving … " + (now.progress.words || ""));
        await new Promise((next) => setTimeout(next, 150));
      }
      const told = await ask("/api/requests/" + taken.id + "/answer");
      if (told.problems && told.problems.length) say(told.problems.join(" "), true); else say("");
      if (told.error) return null;
      return await ask("/api/requests/" + taken.id + "/page");
    } finally { running = null; bar.hidden = true; cancel.disabled = true; solve.disabled = false; }
  };
  const words = (text) => text.trim().split(/[\s,]+/).filter(Boolean);
  const cluster = () => fields.cluster.value + (words(differs.value).length ? " with " + words(differs.value).join(" and ") : "");
  const job = () => {
    const told = { cluster: cluster(), gpus: fields.gpus.value === "auto" ? "auto" : Number(fields.gpus.value),
      global_batch_size: Number(fields.global_batch_size.value) };
    if (fields.seq_length.value) told.seq_length = Number(fields.seq_length.value);
    for (const name of ["backend", "task", "precision"]) if (fields[name].value) told[name] = fields[name].value;
    if (words(pins.value).length) told.pins = Object.fromEntries(words(pins.value).map((one) => one.split("=", 2)));
    if (config) told.model_config = config; else told.model = fields.model.value;
    return told;
  };
  // A slider below is a pin of the next search.
  page.pin = (name, value) => {
    const kept = words(pins.value).filter((one) => !one.startsWith(name + "="));
    if (value !== undefined) kept.push(name + "=" + value);
    pins.value = kept.join(" ");
  };
  const link = () => {
    const query = new URLSearchParams(Object.entries(fields).map(([name, made]) => [name, made.value]).filter(([, value]) => value));
    history.replaceState(null, "", "?" + query);
  };
  const start = async (path, data, kept) => {
    try {
      const taken = await post(path, data), found = await wait(taken);
      if (!found) return;
      if (kept) found.zip = "/api/requests/" + taken.id + "/files.zip";
      await show(found);
    } catch (error) { say(error.message, true); }
  };
  form.addEventListener("submit", (event) => { event.preventDefault(); link(); start("/api/plan", job(), true); });
  cancel.addEventListener("click", () => running && ask("/api/requests/" + running, { method: "DELETE" }).catch((error) => say(error.message, true)));
  const take = async (given) => {
    if (given.size > 2 ** 20) { say(given.name + " is larger than 1 MiB.", true); return; }
    const content = await given.text();
    let read = null;
    try { read = JSON.parse(content); } catch { read = null; }
    if (read && read.model_type) { config = read; say("The model is that of " + given.name + "."); return; }
    config = null;
    await judge(content);
  };
  const judge = (content) => start("/api/audit", { script: content, cluster: cluster() }, false);
  audit.addEventListener("click", () => judge(script.value));
  file.addEventListener("change", () => file.files.length && take(file.files[0]));
  addEventListener("dragover", (event) => event.preventDefault());
  addEventListener("drop", (event) => { event.preventDefault(); if (event.dataTransfer.files.length) take(event.dataTransfer.files[0]); });
  fields.model.addEventListener("change", () => { config = null; });

  return (async () => {
    const zoo = await ask("/api/zoo"), given = new URLSearchParams(location.search);
    for (const [name, values] of [["model", zoo.models], ["cluster", zoo.clusters], ["task", ["", ...zoo.tasks]],
      ["backend", ["", ...zoo.backends]], ["precision", ["", ...zoo.precisions]]]) {
      fields[name].append(...values.map((value) => page.element("option", { value, text: value || "default" })));
    }
    fields.model.value = "llama2-13b";
    fields.cluster.value = "a100-80gb";
    for (const [name, made] of Object.entries(fields)) if (given.has(name)) made.value = given.get(name);
    if (given.has("model")) start("/api/plan", job(), true);
  })();
};
