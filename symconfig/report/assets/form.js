"use strict";
// The server's form: a job, solved by a worker with progress and cancel. The address holds the fields.
const form = document.getElementById("form"), fields = form.elements, result = document.getElementById("result");
const [status, solve, audit, cancel] = ["status", "solve", "audit", "cancel"].map((id) => document.getElementById(id));
const say = (text, bad) => { status.textContent = text; status.className = bad ? "error" : ""; };
const words = (text) => text.trim().split(/[\s,]+/).filter(Boolean);
const cluster = () => [fields.cluster.value, ...(fields.set.value.trim() ? [words(fields.set.value).join(" and ")] : [])].join(" with ");

// Post data and read lines of JSON: progress, then the answer.
async function ask(path, data) {
  const stop = new AbortController();
  cancel.onclick = () => stop.abort();
  cancel.disabled = false;
  solve.disabled = audit.disabled = true;
  try {
    say("Waiting for a worker …");
    const response = await fetch(path, { method: "POST", signal: stop.signal, body: JSON.stringify(data),
      headers: { "Content-Type": "application/json" } });
    if (!response.ok) throw new Error((await response.json()).error);
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let text = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done) break;
      const lines = (text + value).split("\n");
      text = lines.pop();
      for (const line of lines.filter(Boolean).map(JSON.parse)) {
        if (line.progress) say(`Solving … ${line.progress[0]}`);
        if (line.answer) show(line.answer);
      }
    }
  } catch (error) { say(stop.signal.aborted ? "Cancelled." : error.message, true); }
  finally { cancel.disabled = true; solve.disabled = audit.disabled = false; }
}

function show(answer) {
  say(answer.problems.join(" "), answer.problems.length > 0);
  if (!answer.html) return;
  const made = new DOMParser().parseFromString(answer.html, "text/html");
  document.title = made.title;
  result.replaceChildren(...made.body.children);
}

async function job() {
  const asked = { cluster: cluster(), gpus: fields.gpus.value === "auto" ? "auto" : Number(fields.gpus.value),
    global_batch_size: Number(fields.global_batch_size.value) };
  if (fields.seq_length.value) asked.seq_length = Number(fields.seq_length.value);
  for (const name of ["backend", "task", "precision"]) if (fields[name].value) asked[name] = fields[name].value;
  if (words(fields.pins.value).length) asked.pins = Object.fromEntries(words(fields.pins.value).map((one) => one.split("=", 2)));
  const [config] = document.getElementById("config").files;
  if (config) asked.model_config = JSON.parse(await config.text()); else asked.model = fields.model.value;
  return asked;
}

async function start() {
  const query = new URLSearchParams([...new FormData(form)].filter(([, value]) => value));
  history.replaceState(null, "", "?" + query);
  try { await ask("/api/plan", await job()); } catch (error) { say(error.message, true); }
}
form.addEventListener("submit", (event) => { event.preventDefault(); start(); });
audit.addEventListener("click", () => ask("/api/audit", { script: document.getElementById("script").value, cluster: cluster() }));

(async () => {
  const zoo = await (await fetch("/api/zoo")).json(), given = new URLSearchParams(location.search);
  for (const [name, values] of Object.entries(zoo)) fields[name].append(...values.map((value) => new Option(value || "default", value)));
  fields.model.value = "llama2-13b";
  fields.cluster.value = "a100-80gb";
  for (const [name, value] of given) if (fields[name]) fields[name].value = value;
  document.documentElement.dataset.ready = "yes";
  if (given.has("model")) start();
})();
