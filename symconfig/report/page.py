"""An answer as one static HTML page: tables, bars of time and memory, files. It runs no script and fetches nothing."""

from __future__ import annotations

import unicodedata
from base64 import b64encode
from collections.abc import Mapping, Sequence
from functools import cache
from hashlib import sha256
from html import escape
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from symconfig.descriptor.document import shorten
from symconfig.descriptor.load import zoo_models
from symconfig.existing.audit.audit import Audit
from symconfig.format import count, gib, masked, microbatches, percent, rounded, seconds, words
from symconfig.plans.plan import Candidate, Plan
from symconfig.report import audit as report
from symconfig.report.grid import Block, Grid, condensed
from symconfig.report.table import blocks, headline, plan_command

ASSETS = Path(__file__).parent / "assets"
FRAME_PIXELS = 900  # height of a notebook's cell
# Okabe and Ito's colours, "Color Universal Design", and two more.
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8c8c8c", "#b8a800", "#a98bdb")
_INVISIBLE = ("Cf", "Cc", "Co", "Cs")  # Unicode categories of characters that do not show, or change how others look


def plan_page(plan: Plan, files: Mapping[str, str], before: Sequence[Block] = ()) -> str:
    """Return the HTML page of a plan. files: text by name; before: blocks shown above the plan's own."""
    return _page(headline(plan).split("\n")[0], sentence(plan), (*before, *blocks(plan)[1:]), plan, files)


def audit_page(audit: Audit, source: str, files: Mapping[str, str]) -> str:
    """Return the HTML page of an audit: headline, findings, tables, and the better plan with its files if there is one.
    source: the audited script's name, for the title; files: the better plan's, {name: text}.
    """
    title = f"{shorten(source, 80)}: {report.headline(audit)}"
    lead, better = report.read(audit).replace("\n", "; "), audit.better
    shown = [*report.blocks(audit, headed=True), *(blocks(better) if better is not None else ())]
    return _page(title, lead, shown, better, files, list(report.finding_lines(audit)))


def framed(html: str) -> str:
    """Return a page in a sandboxed iframe, for a notebook's cell."""
    return (
        f'<iframe sandbox style="width:100%;height:{FRAME_PIXELS}px;border:0" title="plan" '
        f'srcdoc="{escape(html, quote=True)}"></iframe>'
    )


def form_page() -> tuple[str, str]:
    """Return (HTML, content security policy) of the server's page with its form."""
    script = (ASSETS / "form.js").read_text(encoding="utf-8")
    allowed = f"{policy()}; script-src {digest(script)}; connect-src 'self'"
    return _rendered("form.html", allowed, script=script), allowed


def _page(
    title: str,
    lead: str,
    blocks: Sequence[Block],
    plan: Plan | None,
    files: Mapping[str, str],
    findings: Sequence[tuple[str, str, str]] | None = None,
) -> str:
    """Return a page's HTML; equal arguments give equal bytes. lead: text below the title. blocks: as printed. plan:
    whose bars and commands are shown; None: neither. files: {name: text}. findings: (severity, rule, text) of an audit;
    None: no such section.
    """
    data: dict[str, Any] = {"title": title, "lead": lead, "findings": findings, "files": files}
    data["blocks"] = [condensed(block) if isinstance(block, Grid) else block for block in blocks]
    data["charts"] = [] if plan is None else charts(plan)
    data["commands"] = [] if plan is None else _commands(plan, files)
    return _rendered("page.html", policy(), **data)


def _rendered(name: str, allowed: str, **data: Any) -> str:
    template = Environment(
        loader=FileSystemLoader(ASSETS), autoescape=True, undefined=StrictUndefined, finalize=_shown, trim_blocks=True
    ).get_template(name)
    return template.render(policy=allowed, style=_style(), **data)


def _shown(value: object) -> object:
    """Return str(value) with secrets masked and invisible characters but newline and tab written out, as `<U+202E>`; a
    value with __html__ unchanged.
    """
    if hasattr(value, "__html__"):
        return value
    return "".join(
        f"<U+{ord(x):04X}>" if unicodedata.category(x) in _INVISIBLE and x not in "\n\t" else x
        for x in masked(str(value))
    )


@cache
def _style() -> str:
    return (ASSETS / "style.css").read_text(encoding="utf-8")


def policy() -> str:
    """Return the content security policy that allows the page's style alone."""
    return f"default-src 'none'; style-src {digest(_style())}; img-src data:; base-uri 'none'; form-action 'none'"


def digest(text: str) -> str:
    """Return a text's SHA-256 in the form of a content security policy."""
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


def charts(plan: Plan) -> list[dict[str, Any]]:
    """Return two charts (`_chart`), step time in seconds and peak memory of a GPU in GiB by part, each with a bar
    for each ranked plan, and for the fastest one if that is kept beside the ranking.
    """
    named = [(str(number), one) for number, one in enumerate(plan.ranked, 1)]
    if plan.beside.fastest is not None:
        named.append(("fastest", plan.beside.fastest))
    return [
        _chart("time", "Step time by part, s", [(n, one, one.predicted.time) for n, one in named]),
        _chart("memory", "Peak memory of a GPU by part, GiB", [(n, one, one.predicted.memory) for n, one in named]),
    ]


def _chart(name: str, title: str, bars: Sequence[tuple[str, Candidate, Mapping[str, float]]]) -> dict[str, Any]:
    """Return a chart {id, title, rows, legend}: a row of stacked segments per bar, in percent of the longest bar, and
    the colour of each part; parts that are 0 in all bars are left out. Parts are ordered by their largest value in any
    bar. bars: (label, candidate, {part: value}). name: "time" (seconds) or "memory" (bytes, shown as GiB).
    """
    text = seconds if name == "time" else gib
    names = {part for *_, parts in bars for part, value in parts.items() if value}
    largest = {part: max(parts.get(part, 0.0) for *_, parts in bars) for part in sorted(names)}
    order = sorted(largest, key=lambda part: -largest[part])
    colour = {part: COLOURS[place % len(COLOURS)] for place, part in enumerate(order)}
    longest = max(sum(parts.values()) for *_, parts in bars)
    rows = []
    for label, one, parts in bars:
        begin, segments = 0.0, []
        for part in order:
            share = 100 * parts.get(part, 0.0) / longest
            what = f"{words(part)}: {text(parts.get(part, 0.0))}"
            segments.append({"x": f"{begin:.3f}", "width": f"{share:.3f}", "fill": colour[part], "title": what})
            begin += share
        degrees = ", ".join(one.configuration.degrees) or "one GPU"
        rows.append({"name": f"{label}: {degrees}", "sum": text(sum(parts.values())), "segments": segments})
    return {"id": name, "title": title, "rows": rows, "legend": [(words(part), colour[part]) for part in order]}


def _commands(plan: Plan, files: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return up to two (title, command) pairs: the `symconfig plan` command that makes the plan, if its model is in the
    zoo and options can express its job; and `sbatch sbatch.sh`, or else `bash launch.sh`, if `files` has that.
    """
    job = plan.job.model_dump(mode="json", by_alias=True, exclude_defaults=True, exclude={"target"})
    pins, training = job.pop("pins", {}), job.pop("training", {})
    given = {"derived", *training.get("derived", ())} >= set(training) and plan.job.model in zoo_models()
    commands = []
    if given and all(isinstance(value, str | int) for value in job.values()):
        commands.append(("Write the files of this plan", plan_command(job, pins)))
    starts = {"sbatch.sh": "sbatch sbatch.sh", "launch.sh": "bash launch.sh"}
    starting = [("Start the plan, in their folder", line) for name, line in starts.items() if name in files]
    return commands + starting[:1]


def sentence(plan: Plan) -> str:
    """Return the plan in one sentence: degrees above 1, micro-batch, microbatches, ZeRO stage and recompute if any, and
    the predicted step, throughput, MFU and memory.
    """
    best, predicted = plan.best, plan.best.predicted
    recompute = best.configuration.recompute_text
    layout = best.configuration.degrees or ["one GPU"]
    layout += [f"micro-batch {best.configuration.micro}", f"{microbatches(best.configuration.num_microbatches)} a step"]
    layout += [f"ZeRO stage {best.configuration.zero_stage}"] if best.configuration.zero_stage else []
    layout += [] if recompute == "none" else [f"recompute {recompute}"]
    speed = f"{rounded(predicted.step_s)} s a step, {count(predicted.tokens_per_s_per_gpu)} tokens/s/GPU"
    memory = f"{gib(predicted.device_bytes)} of {gib(plan.usable_bytes)} GiB"
    return f"{', '.join(layout)}: {speed}, {percent(predicted.mfu)} MFU, {memory}."
