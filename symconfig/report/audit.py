"""An audit for a person, as plain data, and as SARIF for code review."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace
from pathlib import PurePath
from typing import Any
from urllib.parse import quote

from symconfig.descriptor.document import shorten
from symconfig.errors import Problem
from symconfig.existing.audit.audit import RULES, Audit, step_s
from symconfig.existing.audit.configuration import UNKNOWN
from symconfig.existing.audit.judge import Judged
from symconfig.existing.launch.read import ARGUMENTS
from symconfig.existing.launch.reading import Reading
from symconfig.existing.launch.text import Place
from symconfig.existing.recover.arguments import WRONG
from symconfig.existing.recover.rl.step import Step
from symconfig.existing.recover.run import Described
from symconfig.format import count, gib, grouped, microbatches, picked, rounded, seconds, several, signed
from symconfig.graph.model import parameters
from symconfig.install import VERSION
from symconfig.plans.configuration import DEGREES
from symconfig.plans.plan import Plan
from symconfig.report import rl, table
from symconfig.report.estimate import SPENT, certainty, stages
from symconfig.report.grid import Block, Grid, present, titled

FORMATS = {
    "bash": "bash",
    "overrides": "overrides of Megatron-Bridge or NeMo 2",
    "deepspeed": "a DeepSpeed JSON",
    "verl": "overrides of verl",
    "nemo-rl": "YAML of NeMo-RL",
}

_YAML_OF_ARGUMENTS = "YAML of arguments"  # of a program around Transformers

_SEVERITIES = ("error", "warning", "note")

_OF_A_RULE = 3  # findings of one rule that are written out

_SHOWN = 40  # places that were not understood: of a longer list the rest is counted


def blocks(audit: Audit, *, headed: bool = False) -> list[Block]:
    """Return all blocks of an audit, in order; empty parts are left out. headed: whether the caller shows the input,
    the findings and the verdict itself; then they are left out. The prediction is of the RL or other steps if the plan
    has any, else stages, parts and certainty; then the better plan, or why there is none.
    """
    judged = audit.judged
    spent: list[Block] = []
    if judged is not None and judged.plan.steps:
        spent = rl.stated(judged.plan)
    elif judged is not None:
        spent = [stages(judged), table.parts(judged.plan, SPENT), certainty(judged.plan)]
    better: list[Block] = [f"No better plan: {audit.infeasible}"] if audit.infeasible else []
    if audit.better is not None:
        better = way(audit, audit.better)
    return present(
        "" if headed else read(audit),
        unread(audit.reading),
        "\n".join(
            f"Predicted without {item.what} (line {item.place.line}): no figure depends on it."
            if item.options
            else f"Assuming that {item.what} (line {item.place.line}) sets nothing to which the script gives a value."
            for item in audit.assumptions
        ),
        understood(judged) if judged is not None else "",
        ""
        if headed
        else titled("What is wrong", (f"{kind}: {text} [{rule}]" for kind, rule, text in finding_lines(audit))),
        *spent,
        titled("Nothing is predicted:", audit.unpredicted),
        *better,
        "" if headed else f"Verdict: {headline(audit)}.",
    )


def read(audit: Audit) -> str:
    """Return two lines: the input with companion files, its format, number of options (and of DeepSpeed keys) and
    program; and the framework with its release, marked if that is guessed.
    """
    reading, reader = audit.reading, audit.reader
    options = f"{count(len(reading.settings))} options"
    if reading.deepspeed is not None:
        options += f" and {count(len(reading.deepspeed.spans) - 1)} keys of {reading.deepspeed.text.file}"
    program = f" for {shorten(reading.program.text, 80)}" if reading.program is not None else ""
    others = [text.file for text in reading.texts[1:]]
    companions = f" (with {', '.join(others)})" if others else ""
    guessed = " (guessed; --megatron-version states it)" if reader.version_guessed else ""
    kind = _YAML_OF_ARGUMENTS if reading.json_alone and reading.tree is not None else FORMATS[reading.format]
    return f"{reading.file}{companions}: {kind}, {options}{program}\nread as {reader.label} {reader.version}{guessed}"


def unread(reading: Reading) -> Grid:
    """Return the table (place, text, reason) of places that were not understood, those on which a prediction may depend
    first, then of options with unknown values; at most _SHOWN rows, and one with the number of the others.
    """
    items = sorted(reading.unread, key=lambda item: (not item.matters, item.place))
    rows = [(str(item.place), shorten(item.what, 60), item.why) for item in items]
    rows += [
        (str(setting.place), setting.spelled, f"its value {word.unknown}")
        for setting in reading.settings
        for word in setting.values
        if word.unknown
    ]
    if len(rows) > _SHOWN:
        rows[_SHOWN:] = [("", f"and {count(len(rows) - _SHOWN)} more (--json has all)", "")]
    return Grid(("where", "what", "why"), tuple(rows), left=(0, 1, 2), title="Not understood")


def understood(judged: Judged) -> str:
    """Return lines on what was understood of a run: model; GPUs, framework and batch (of RL the step's); degrees and
    micro-batches; and a line for each assumed value with its reason.
    """
    plan, described = judged.plan, judged.run.described
    batch = plan.best.configuration
    runs = table.headline(plan) if judged.run.step is None else _step(judged, judged.run.step)
    degrees = ", ".join(f"{name} {getattr(plan.best.configuration, name)}" for name in DEGREES)
    lines = [
        model(described),
        runs.replace(plan.model.name, "runs", 1),
        f"{degrees}; micro-batch {batch.micro}, {microbatches(batch.num_microbatches)} a step",
    ]
    lines += [f"assumed: {item.what} {item.value} ({item.why})" for item in (*described.assumed, *judged.run.assumed)]
    return "\n".join(lines)


def _step(judged: Judged, step: Step) -> str:
    """Return three facts of the RL step that a script runs: GPUs and trainer; prompts and updates; generation."""
    section, plan = step.rl, judged.plan
    updates = several(section.updates, "update")
    share = f", {section.rollout.memory_share:g} of a GPU" if section.rollout.memory_share is not None else ""
    return (
        f"runs on {count(plan.best.configuration.world_size)} x {plan.cluster.gpu.product} ({plan.cluster.name}), for "
        f"{step.trainer.name} with {step.workers.name} workers\n"
        f"{section.algorithm}: {count(section.prompts)} prompts x {section.samples} samples a step, {updates} on up to "
        f"{count(plan.best.configuration.seq_length // plan.best.configuration.cp)} tokens a GPU at once; "
        f"generation by {section.rollout.engine}, tp {section.rollout.tp}{share}, {section.placement}"
    )


def model(described: Described) -> str:
    """Return the line on a model: the zoo model that computes the same, or the most similar one, parameters and shape,
    with its experts if it has any.
    """
    own, total = described.model, parameters(described.model).total
    heads = f"{own.num_attention_heads} heads on {own.num_key_value_heads} of keys"
    shape = (
        f"{count(own.num_hidden_layers)} layers of {count(own.hidden_size)}, {heads}, vocabulary "
        f"{count(own.vocab_size)}"
    )
    if own.experts is not None:
        shape += f", {own.experts.num_experts} experts of which {own.experts.num_experts_per_tok} work"
    name = f"the zoo's {described.zoo}" if described.zoo else "none of the zoo's"
    if described.nearest is not None and not described.zoo:
        zoo, fields = described.nearest
        name = f"like the zoo's {zoo} but for {', '.join(fields)}".replace("rope_scaling.rope_type", "rope_scaling")
    return f"model: {name}, {total / 1e9:.2f} billion parameters ({shape})"


def finding_lines(audit: Audit) -> Iterator[tuple[str, str, str]]:
    """Yield (severity, rule, sentence) of each finding by rule, the rule with the worst finding first. After _OF_A_RULE
    findings of one rule, a single line, of the first's severity, names the fields of the others.
    """
    ranked = sorted(audit.findings, key=lambda finding: _SEVERITIES.index(finding.severity))
    for rule, listed in grouped((finding.rule, finding) for finding in ranked).items():
        yield from ((each.severity, rule, str(each.problem)) for each in listed[:_OF_A_RULE])
        if len(listed) > _OF_A_RULE:
            fields = ", ".join(dict.fromkeys(each.problem.field or each.problem.what for each in listed[_OF_A_RULE:]))
            yield listed[0].severity, rule, f"the same of {shorten(fields, 300)}"


def headline(audit: Audit) -> str:
    """Return the verdict: `runs, 13.8 s a step; 2.94 s is possible (-78.7 %); 4 warnings`. First whether it runs
    (unknown trainer, cannot run, not all understood, not predicted, or runs) with the predicted step if it runs; then
    the better plan or that the run has the best one, if searched; then the numbers of findings by severity, or, without
    any, that nothing is wrong (of a run that is predicted) or was found (unless a malformed value is why none is).
    """
    judged, better = audit.judged, audit.better
    if audit.reader.backend == UNKNOWN:
        head = "the trainer is not known"
    elif not audit.runs:
        head = "cannot run as it is"
    elif not audit.reading.complete:
        head = "not all of it was understood"
    else:
        head = "nothing is predicted" if judged is None else "runs"
    if judged is not None and audit.runs:
        head += f", {rounded(step_s(judged.plan))} s a step"
    parts = [head]
    if better is not None and judged is not None and audit.already_best and audit.runs:
        parts.append("the best plan already")
    elif better is not None:
        gain = "" if audit.gain is None else f" ({signed(-audit.gain)})"
        parts.append(f"{rounded(step_s(better))} s a step is possible{gain}")
    counts = {name: sum(finding.severity == name for finding in audit.findings) for name in _SEVERITIES}
    counted = ", ".join(several(number, name) for name, number in counts.items() if number)
    if counted or judged is not None:
        parts.append(counted or "nothing is wrong")
    elif all(problem.what != WRONG for problem in audit.unpredicted):
        parts.append("no problem was found")
    return "; ".join(parts)


def way(audit: Audit, better: Plan) -> list[Block]:
    """Return the comparison of the run (if predicted) with the best plan, and a table of the changes between them if
    there are any. For RL only the comparison of whole steps; if both have other steps with phases, a sentence with
    their times replaces the table.
    """
    judged = audit.judged
    if better.rl:
        return [rl.compared((*([("now", judged.plan)] if judged is not None else []), ("best", better)))]
    now = [("now", judged.plan.best)] if judged is not None else []
    both = table.compared((*now, ("best", better.best)))
    steps = [each.steps[0].step_s for each in (*([judged.plan] if judged is not None else []), better) if each.steps]
    if len(steps) > 1:
        return [both, f"The table is of an update; whole steps take {' s and '.join(map(seconds, steps))} s."]
    rows = (
        {
            "change": ", ".join(step.changes) or "no change",
            "step s": seconds(step.step_s),
            "step time": signed(-step.gain),
            "GPU GiB": gib(step.device_bytes),
            "": "" if step.fits else "does not fit",
        }
        for step in audit.way
    )
    return [both, Grid.of(rows, "The way there, one change after the other", words=("change", ""))]


SCHEMA = "symconfig.audit/1"

SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"

RULES_PAGE = "docs/reference/rules.md"


def to_dict(audit: Audit) -> dict[str, Any]:
    """Return the JSON of `symconfig audit --json`: what was read and not understood, target, model, assumptions, the
    run's prediction (`step`: with phases, of RL with workers and the job's section), findings, and the better plan with
    the steps to it; None for what is unknown or not asked for.
    """
    judged, reading, reader = audit.judged, audit.reading, audit.reader
    described, step = (judged.run.described, judged.run.step) if judged is not None else (None, None)
    return {
        "schema": SCHEMA,
        "file": reading.file,
        "files": [text.file for text in reading.texts],
        "format": reading.format,
        "program": reading.program.text if reading.program is not None else None,
        "target": {"backend": reader.backend, "version": reader.version, "given": reader.version_given},
        "gpus": reader.gpus,
        "runs": audit.runs,
        "complete": reading.complete,
        "options": [
            {**_place(setting.place), **picked(setting, "name", "spelled")}
            | {"values": [None if word.unknown else word.text for word in setting.values]}
            for setting in reading.settings
        ],
        "environment": {name: word.text for name, word in reading.environment.items() if not word.unknown},
        "unread": [
            {**_place(item.place), **picked(item, "what", "why", "matters")}
            | {"hides": item.hides.value, "assumed": item.assumed}
            for item in reading.unread
        ],
        "assumptions": [{**_place(item.place), **picked(item, "what", "options")} for item in audit.assumptions],
        "model": None
        if described is None
        else {
            "zoo": described.zoo,
            "near": None
            if described.nearest is None
            else {"zoo": described.nearest[0], "fields": list(described.nearest[1])},
            "descriptor": described.model.model_dump(mode="json", by_alias=True),
        },
        "assumed": []
        if judged is None or described is None
        else [
            picked(item, "what", "value", "why") | _place(item.place)
            for item in (*described.assumed, *judged.run.assumed)
        ],
        "run": None if judged is None else judged.plan.best.to_dict(),
        "step": None
        if judged is None or judged.run.around is None
        else {
            "trainer": judged.run.around.trainer.name,
            **({} if step is None else {"workers": step.workers.name, "job": step.rl.model_dump(mode="json")}),
            **judged.plan.steps[0].to_dict(),
        },
        "fits": None if judged is None else judged.fits,
        "usable_bytes": None if judged is None else judged.plan.usable_bytes,
        "unpredicted": [asdict(problem) for problem in audit.unpredicted],
        "findings": [{**picked(each, "rule", "severity"), **asdict(each.problem)} for each in audit.findings],
        "best": None if audit.better is None else audit.better.best.to_dict(),
        "gain": audit.gain,
        "infeasible": audit.infeasible,
        "steps": [asdict(step) for step in audit.way],
    }


def _place(place: Place | None) -> dict[str, Any]:
    names = ("file", "line", "column")
    return dict.fromkeys(names) if place is None else picked(place, *names)


def sarif(audits: Iterable[Audit]) -> dict[str, Any]:
    """Return audits as SARIF 2.1.0 (OASIS): one run with a result per finding, whose message has neither place nor
    pins; unread places are notes of the rule `not-read`.
    """
    found: list[tuple[str, str, str, Problem | Place]] = []  # rule, severity, text and place of each result
    for audit in audits:
        for each in audit.findings:
            plain = replace(each.problem, file=None, line=None, column=None, pins=(), edit=None)
            found.append((each.rule, each.severity, str(plain), each.problem))
        found += (("not-read", "note", f"{item.what}: {item.why}", item.place) for item in audit.reading.unread)
    results = [
        {"ruleId": rule, "level": severity, "message": {"text": text}, "locations": _locations(place)}
        for rule, severity, text, place in found
    ]
    return {
        "$schema": SARIF_SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "symconfig",
                        "version": VERSION,
                        "rules": [
                            *(
                                {
                                    "id": rule.name,
                                    "shortDescription": {"text": rule.title},
                                    "fullDescription": {"text": rule.why},
                                    "help": {"text": f"See {RULES_PAGE}."},
                                    "defaultConfiguration": {"level": rule.severity},
                                }
                                for rule in RULES
                            ),
                            {
                                "id": "not-read",
                                "shortDescription": {"text": "A place that was not understood"},
                                "defaultConfiguration": {"level": "note"},
                            },
                        ],
                    }
                },
                "results": results,
            }
        ],
    }


def _locations(place: Problem | Place) -> list[dict[str, Any]]:
    """Return the SARIF location of a place, with line and column if known; [] for command-line arguments or without a
    file. Absolute paths become file URIs.
    """
    if place.file is None or place.file == ARGUMENTS:
        return []
    column = {"startColumn": place.column} if place.column else {}
    region, path = {"startLine": place.line, **column} if place.line else None, PurePath(place.file)
    where: dict[str, Any] = {
        "artifactLocation": {"uri": path.as_uri() if path.is_absolute() else quote(path.as_posix())}
    }
    return [{"physicalLocation": where | ({"region": region} if region else {})}]
