"use strict";
// "Why not?": what any layout costs, or which constraint forbids it.
page.whyNot = function whyNot(asked) {
  const { limits, plans, lattice } = page.data;
  const { rows, refusals } = page.lattice;
  const best = plans && plans[0], inner = asked.tp * asked.pp * asked.cp;
  const kept = (row) => ["tp", "pp", "cp", "ep", "etp"].every((name) => row[name] === asked[name])
    && ["vpp", "micro", "zero"].every((name) => asked[name] === undefined || row[name] === asked[name]);
  const mine = rows.filter(kept), fit = mine.filter((row) => row.fits);
  if (fit.length) {
    // The chosen plan by the formula, too, where it is among the points: its own seconds are simulated.
    const same = best && rows.find((row) => row.fits && row.micro === best.micro && row.zero === best.zero
      && Object.entries(best.degrees).every(([name, value]) => row[name] === value));
    const one = fit[0], slower = one.step_s / (same || best).step_s - 1;
    const costs = Math.abs(slower) < 5e-4 ? "takes as long as the chosen plan"
      : "takes " + page.percent(Math.abs(slower)) + (slower > 0 ? " longer than" : " less than") + " the chosen plan";
    return { verdict: "runs", row: one, text: "It runs, and " + costs + " by the formula: " + page.seconds(one.step_s) +
      ", " + one.gib.toFixed(1) + " GiB, with " + page.pointTitle(one) + ", micro-batch " + one.micro + ", ZeRO " + one.zero +
      ", recompute " + one.recompute + (one.options ? ", " + one.options : "") + "." };
  }
  if (mine.length) {
    const least = Math.min(...mine.map((row) => row.gib)), most = lattice.budget_bytes / 2 ** 30;
    return { verdict: "memory", text: "It does not fit: it needs at least " + least.toFixed(1) + " GiB, whatever runs again, " +
      "and the budget is " + most.toFixed(1) + " GiB at a risk of " + page.percent(limits.risk) + " of running out. " +
      "Pinned, it may be planned with more risk or with options that are not stable, as --pin then says." };
  }
  const first = [];
  if (limits.gpus % inner) first.push("tp x pp x cp = " + inner + " does not divide " + limits.gpus + " GPUs.");
  if (limits.gpus % (asked.ep * asked.etp)) first.push("ep x etp does not divide " + limits.gpus + " GPUs.");
  if (limits.experts % asked.ep) first.push(limits.experts + " experts cannot be split over ep " + asked.ep + ".");
  if (asked.tp > limits.heads) first.push("tp is at most the number of attention heads, " + limits.heads + ".");
  if (asked.etp > asked.tp) first.push("An expert is never cut finer than a dense layer: etp is at most tp.");
  if (asked.pp > limits.layers) first.push("Every pipeline stage needs a layer, and there are " + limits.layers + ".");
  if (!first.length && limits.global_batch % (limits.gpus / inner)) {
    first.push("dp " + limits.gpus / inner + " does not divide the global batch of " + limits.global_batch + ".");
  }
  if (first.length) return { verdict: "impossible", text: "It cannot be: " + first.join(" ") };
  const key = (values) => values.join(" ");
  const wanted = [key([asked.tp, asked.cp, asked.ep, asked.etp, asked.pp]), key([asked.tp, asked.cp, asked.ep, asked.etp, 0])];
  const found = [];
  for (const one of refusals) {
    if (!one.known) {
      one.known = new Set();
      for (let at = 0; at < one.degrees.length; at += 5) one.known.add(key(one.degrees.slice(at, at + 5)));
    }
    if (wanted.some((text) => one.known.has(text))) found.push(one);
  }
  if (found.length) return { verdict: "refused", names: found.map((one) => one.name), text: "The framework cannot run it: " +
    found.map((one) => one.rule).join("; ") + "." };
  const pins = Object.entries(limits.pins).map(([name, value]) => name + "=" + value).join(", ");
  return { verdict: "unknown", text: pins ? "The job's pins leave it out: " + pins + "."
    : lattice.left_out ? "It is among the slower points that this page leaves out." : "It is outside the lattice of this job." };
};

page.view("why", "Why not …?", ["lattice"], "Choose a layout, or click a dot above: what it costs, or what forbids it.", (parent, data) => {
  const best = data.plans ? data.plans[0].degrees : { tp: 1, pp: 1, cp: 1, ep: 1, etp: 1 };
  const powers = (most) => { const found = []; for (let one = 1; one <= most; one *= 2) found.push(one); return found; };
  const values = (name) => {
    const seen = new Set([...page.lattice.rows.map((row) => row[name]), ...powers(Math.min(data.limits.gpus, 64)), best[name]]);
    return [...seen].sort((a, b) => a - b);
  };
  const names = ["tp", "pp", "cp", ...(data.limits.experts > 1 ? ["ep", "etp"] : [])];
  const answer = page.element("p", { class: "answer", role: "status", id: "why-answer" });
  const selects = {};
  const tell = () => {
    const asked = { tp: 1, pp: 1, cp: 1, ep: 1, etp: 1 };
    for (const name of names) asked[name] = Number(selects[name].value);
    const found = page.whyNot(asked);
    answer.textContent = page.visible(found.text);
    answer.className = "answer " + (found.verdict === "runs" ? "good" : "bad");
  };
  const labels = names.map((name) => {
    selects[name] = page.element("select", { id: "why-" + name, onchange: tell }, ...values(name).map((value) =>
      page.element("option", { value, text: value, selected: value === best[name] })));
    return page.element("label", { for: "why-" + name, text: name + " " }, selects[name]);
  });
  parent.append(page.element("fieldset", {}, page.element("legend", { text: "Layout" }), ...labels), answer);
  page.ask = (row) => {
    for (const name of names) selects[name].value = String(row[name]);
    tell();
    document.getElementById("why").scrollIntoView({ block: "nearest" });
  };
  tell();
});
