"""Two plans: one made again, and any two side by side; for a person and as data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import groupby
from typing import Any

from symconfig.descriptor.document import shorten
from symconfig.format import count, gib, percent, picked, seconds, signed, words
from symconfig.frameworks.known import BACKENDS
from symconfig.plans.plan import Plan
from symconfig.plans.sentences import caveats
from symconfig.report import table
from symconfig.report.checkpoint import verdict
from symconfig.report.grid import Block, Grid, present, titled
from symconfig.report.rl import whole_step
from symconfig.runs.checkpoint.table import Verdict
from symconfig.runs.replan.changes import Judgement, NearPlan
from symconfig.runs.replan.diff import Diff, Difference
from symconfig.runs.replan.replanned import Replan

SHOWN = 12  # fields of a descriptor that are written out: --json has all


def replan_blocks(replan: Replan) -> list[Block]:
    """Return the report of a new plan: inputs, changes, schedule, checkpoint, commands and files; empty parts are left
    out. A plan nearer to the old one is first if it costs nothing, else after the changes.
    """
    other, edited = replan.near_plan, ", ".join(replan.edited)
    closer = "" if other is None else _near_plan(other, replan.checkpoint.verdict)
    free = other is not None and other.free
    after = ("now", *(str(number) for number in range(2, len(replan.new.alternatives) + 2)))
    every = zip(after, replan.new.ranked, strict=True)
    backend, (old, new) = replan.new.best.target.backend, replan.targets
    files = f"All files change: the target is {new}, and was {old}." if old != new else ""
    if replan.files is not None:
        files = f"Files that change: {', '.join(('plan.json', *replan.files))}."
    whose = f", as {BACKENDS[backend].program} takes it" if replan.targets[1] != backend else ""
    rescaled = (
        {"iterations": words(each.field), "before": count(each.before), "now": count(each.after)}
        for each in replan.schedule.rescaled
    )
    return present(
        table.headline(replan.new),
        *caveats(replan.new),
        replan.other_batch or "",
        closer if free else "",  # before all else: it has its checkpoint for nothing
        values("What is asked for", replan.inputs) if replan.inputs else "The job is the same as before.",
        f"Edited in the file: {edited}. The checkpoint's verdict takes the values of the file." if edited else "",
        *whole_step(replan.new),
        table.compared((("old", replan.old.best), *every), marked=1),
        *_changes(replan),
        "" if free else closer,
        Grid.of(rescaled, "The schedule, of the same tokens as before", words=("iterations",)),
        "\n".join(f"{note[:1].upper()}{note[1:]}." for note in replan.schedule.notes),
        f"The old plan's checkpoint ({replan.checkpoint.kind}){whose}",
        *verdict(replan.checkpoint),
        *_command(replan),
        files,
        table.footer(replan.new),
    )


def values(title: str, differences: Sequence[Difference], most: int = SHOWN) -> Grid:
    """Return the table of differing fields with both values; after `most` rows one with the number of the others."""
    rows = [(words(each.field), value(each.before), value(each.after)) for each in differences[:most]]
    if len(differences) > most:
        rows.append((f"and {count(len(differences) - most)} more (--json has all)", "", ""))
    return Grid(("", "before", "now"), tuple(rows), left=(0, 1, 2), title=title)


def value(given: Any) -> str:
    """Return a value as short text: "-" for None, "none" for an empty mapping, yes or no for a boolean, six digits of a
    float, else at most 40 characters.
    """
    if given is None:
        return "-"
    if isinstance(given, bool):
        return "yes" if given else "no"
    if isinstance(given, float):
        return f"{given:.6g}"
    if isinstance(given, Mapping) and not given:
        return "none"
    return shorten(str(given), 40)


def listed(each: Difference) -> dict[str, Any]:
    """Return a difference as JSON; numbers have `delta`, after - before."""
    data = picked(each, "field", "before", "after")
    return data if each.delta is None else {**data, "delta": each.delta}


def _changes(replan: Replan) -> Iterator[Block]:
    """Yield the table of decisions with the cost of keeping each, derived values, and what the old plan kept whole
    would do; without decisions that nothing changes.
    """
    changes = replan.changes
    if changes.decisions:
        rows = tuple((each.text, str(each.kept)) for each in changes.decisions)
        yield Grid(("change", "if it alone stayed"), rows, left=(0, 1), title="What changes, and why")
    yield titled("What follows from it", changes.follows)
    if changes.decisions:
        yield f"Kept whole, the old plan {changes.stayed}."
    else:
        yield "The old plan is still the best: the planner changes nothing."


def _near_plan(other: NearPlan, new: Verdict) -> str:
    """Return the sentence on a plan that keeps more old choices: its pins, its step (or that it costs nothing), and how
    it loads the checkpoint, compared with `new`, how the new plan loads it.
    """
    pins = " ".join(f"--pin {name}={text}" for name, text in other.pins.items())
    step = f"{seconds(other.candidate.predicted.step_s)} s a step"
    takes = f"costs nothing ({step})" if other.free else f"takes {percent(other.slower)} longer, {step},"
    return (
        f"A plan nearer to the old one: {pins} {takes} and loads the checkpoint: "
        f"{other.verdict}, where this one loads it: {new}."
    )


def _command(replan: Replan) -> Iterator[str]:
    """Yield the sentence on a lost step, if one is, and, for a step above 0, the command that resumes the run there, or
    that it is not known for this target.
    """
    schedule, target = replan.schedule, replan.targets[1]
    if schedule.lost:
        yield f"Step {count(schedule.lost)} is lost: the new run starts from its first step, with a whole schedule."
    if schedule.step and replan.going_on is not None:
        yield f"To go on at step {count(schedule.step)}: {replan.going_on}"
    elif schedule.step:
        program = BACKENDS[replan.new.best.target.backend].program
        yield (
            f"How {target} goes on at step {count(schedule.step)} is not known here: the steps above are for {program}."
        )


def replan_data(replan: Replan) -> dict[str, Any]:
    """Return the JSON of `symconfig replan --json`: all of `Replan`, with the new plan as `plan` and the old one's best
    candidate as `old`. `near` is None without a nearer plan, `going_on` (the command) at step 0 or if it is not known,
    `files` if they cannot be compared.
    """
    nearest, changes, schedule = replan.near_plan, replan.changes, replan.schedule
    return {
        "schema": "symconfig.replan/1",
        "same": replan.same,
        "inputs": [listed(each) for each in replan.inputs],
        "edited": list(replan.edited),
        "old": replan.old.best.to_dict(),
        "changes": [
            {"decision": each.decision, "said": each.text, "kept": _verdict(each.kept)} for each in changes.decisions
        ],
        "follows": list(changes.follows),
        "stayed": _verdict(changes.stayed),
        "near": None
        if nearest is None
        else {
            "pins": nearest.pins,
            "best": nearest.candidate.to_dict(),
            **picked(nearest, "slower", "free", "verdict"),
        },
        "schedule": {
            "step": schedule.step,
            "consumed_sequences": schedule.consumed,
            "consumed_tokens": schedule.run.tokens,
            "lost_step": schedule.lost,
            "rescaled": [asdict(each) for each in schedule.rescaled],
            "options": list(schedule.options),
            "notes": list(schedule.notes),
        },
        "going_on": replan.going_on if schedule.step else None,
        "checkpoint": replan.checkpoint.to_dict(),
        "other_batch": replan.other_batch,
        "files": None if replan.files is None else list(replan.files),
        "plan": replan.new.to_dict(),
    }


def _verdict(verdict: Judgement) -> dict[str, Any]:
    """Return a verdict as JSON: only runs, fits (both false) and `why` if the configuration cannot run; else whether it
    fits, how much slower its step is, whether its memory is at risk, step, memory, and bytes too many on GPU and host,
    0 if it fits.
    """
    if verdict.candidate is None:
        return {"runs": False, "fits": False, "why": verdict.refused}
    return {
        "runs": True,
        **picked(verdict, "fits", "slower", "at_risk"),
        **picked(verdict.candidate.predicted, "step_s", "device_bytes"),
        "over_bytes": max(0.0, verdict.over_bytes),
        "host_over_bytes": max(0.0, verdict.host_over_bytes),
    }


_TITLES = {
    "inputs": "What was asked for",
    "training": "What is passed on",
    "parallel": "Degrees",
    "batch": "Batch",
    "options": "Options",
    "stages": "Stages",
}


def diff_blocks(diff: Diff) -> list[Block]:
    """Return all blocks of a diff, in order: headlines, both plans, a table for each section with differences, time and
    memory, arguments. A single sentence if the plans are equal; another if the arguments are of two frameworks and not
    compared.
    """
    if diff.same:
        return ["The plans are the same."]
    both = table.compared((("before", diff.before.best), ("after", diff.after.best)))
    sections = {**diff.sections, "stages": _joined(diff.sections["stages"])}
    titled = [values(title, sections[name]) for name, title in _TITLES.items() if sections[name]]
    shown: list[Block] = [table.headline(diff.before), table.headline(diff.after), both, *titled]
    shown += _predicted(diff)
    if diff.sections["arguments"]:
        shown.append(
            values("Options of the framework", diff.sections["arguments"], most=len(diff.sections["arguments"]))
        )
    elif diff.before.best.target.backend != diff.after.best.target.backend:
        shown.append("They are for two frameworks, whose options have nothing in common.")
    return shown


def _joined(stages: Sequence[Difference]) -> list[Difference]:
    """Return runs of neighbouring stages with the same values before and after as one, named `stage 1 to 14`."""
    runs = [list(same) for _, same in groupby(stages, lambda each: (each.before, each.after))]
    return [
        run[0] if len(run) == 1 else replace(run[0], field=f"{run[0].field} to {run[-1].field.removeprefix('stage ')}")
        for run in runs
    ]


def _predicted(diff: Diff) -> Iterator[Block]:
    """Yield a table of step time, and one of GPU memory, each only if a part of it differs: the parts that differ, the
    largest change first, and the sum, with both values and the change; of the sum also the relative change.
    """
    for part, title, unit, total, name, shown in (
        ("time", "time of a step", "s", "step", "step_s", seconds),
        ("memory", "peak memory of a GPU", "GiB", "GPU memory in use", "device_bytes", gib),
    ):
        differences = sorted(diff.sections[part], key=lambda each: (-abs(each.delta or 0.0), each.field))
        before, after = (getattr(plan.best.predicted, name) for plan in (diff.before, diff.after))
        rows = [(words(each.field), each.before, each.after, each.delta or 0.0, "") for each in differences]
        rows.append((total, before, after, after - before, signed(after / before - 1) if before else ""))
        cells = (
            (name, shown(one), shown(other), f"{'+' if change >= 0 else ''}{shown(change)}", share)
            for name, one, other, change, share in rows
        )
        if differences:
            yield Grid((title, f"before {unit}", f"after {unit}", f"change {unit}", ""), tuple(cells), left=(0,))


def diff_data(diff: Diff) -> dict[str, Any]:
    """Return the JSON of `symconfig diff --json`: whether the plans are equal, model, cluster, GPUs and target of both,
    and the differences of each section of `Diff`.
    """
    return {
        "schema": "symconfig.diff/1",
        "same": diff.same,
        "before": _plan(diff.before),
        "after": _plan(diff.after),
        **{name: [listed(each) for each in section] for name, section in diff.sections.items()},
    }


def _plan(plan: Plan) -> dict[str, Any]:
    """Return a plan's model, cluster, GPUs, target and symconfig version."""
    return {
        "model": plan.model.name,
        "cluster": plan.cluster.name,
        "gpus": plan.best.configuration.world_size,
        "target": {"backend": plan.best.target.backend, "version": plan.best.target.version},
        "symconfig": plan.symconfig_version,
    }
