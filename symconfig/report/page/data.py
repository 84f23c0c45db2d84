"""What the page of a plan shows, as plain data."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.descriptor.document import shorten
from symconfig.descriptor.job import Job
from symconfig.descriptor.load import zoo_models
from symconfig.descriptor.model import ModelDescriptor
from symconfig.errors import InputError, SymconfigError
from symconfig.existing.audit.audit import Audit
from symconfig.format import grouped, picked
from symconfig.plans.beside import DEGREES
from symconfig.plans.plan import Candidate, Plan
from symconfig.report.grid import Block, Grid
from symconfig.report.page.drawn import packed, schedule
from symconfig.report.table import blocks, headline, others_text
from symconfig.report.timeline.seen import seen
from symconfig.solve.costed import costed
from symconfig.solve.restore import restore
from symconfig.solve.space import REFUSED_BY
from symconfig.solve.tally import WHOLE, WORDS
from symconfig.solve.traffic import exchanges
from symconfig.solve.weighing import Weighing, weighing

MOST_ROWS = 20_000  # of the lattice that a page holds: the fastest
SCHEMA = "symconfig.page/1"


def plan_data(plan: Plan, files: Mapping[str, str], before: Sequence[Block] = ()) -> dict[str, Any]:
    """Return the data of a plan's page. files: text by name; before: blocks shown first. Evaluates the search's
    lattice again.
    """
    point = restore(plan, plan.best)
    parts = costed(point)
    return {
        "schema": SCHEMA,
        "title": headline(plan).split("\n")[0],
        "sentence": sentence(plan),
        "blocks": [_block(block) for block in (*before, *blocks(plan)[1:])],
        "gpus": plan.best.parallel.world_size,
        "global_batch": plan.best.batch.global_,
        "usable_bytes": plan.usable_bytes,
        "plans": [_candidate(name, one) for name, one in _shown(plan)],
        "lattice": lattice(weighing(plan.model, plan.cluster, plan.job)),
        "limits": _limits(plan.model, plan.job),
        "ranks": _ranks(plan, point.request.framework.dense_grid, point.request.framework.expert_grid),
        "exchanges": [
            {"kind": one.kind, "axes": list(one.axes), **picked(one, "level", "bytes", "seconds", "exposed_s")}
            for one in exchanges(point, parts, plan.cluster)
        ],
        "levels": [level.name for level in plan.cluster.levels],
        "schedule": _schedule(plan),
        "basis": plan.best.predicted.basis("time"),
        "commands": _commands(plan, files),
        "files": [{"name": name, "text": text} for name, text in files.items()],
    }


def _commands(plan: Plan, files: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return (title, command) pairs: the one that makes the plan, if options can express its job, and the one that
    starts it, if its file is there.
    """
    job = plan.job.model_dump(mode="json", by_alias=True, exclude_defaults=True, exclude={"target"})
    pins, training = job.pop("pins", {}), job.pop("training", {})
    given = {"derived", *training.get("derived", ())} >= set(training) and plan.job.model in zoo_models()
    commands = []
    if given and all(isinstance(value, str | int) for value in job.values()):
        options = [("--" + name.replace("_", "-"), str(value)) for name, value in job.items()]
        options += [("--pin", f"{name}={value}") for name, value in pins.items()]
        words = [word for pair in (*options, ("--out", "out")) for word in pair]
        commands.append(("Write the files of this plan", shlex.join(["symconfig", "plan", *words])))
    starts = {"sbatch.sh": "sbatch sbatch.sh", "launch.sh": "bash launch.sh"}
    starting = [("Start the plan, in their folder", line) for name, line in starts.items() if name in files]
    return commands + starting[:1]


def audit_data(audit: Audit, source: str, page: Mapping[str, Any]) -> dict[str, Any]:
    """Return the data of an audit's page: `page` with the audit's title and findings."""
    from symconfig.report import audit as report

    return {
        **page,
        "title": f"{shorten(source, 80)}: {report.headline(audit)}",
        "sentence": report.read(audit).replace("\n", "; "),
        "findings": [
            {"severity": severity, "rule": rule, "text": text} for severity, rule, text in report.finding_lines(audit)
        ],
    }


def refused_data(model: ModelDescriptor, cluster: ClusterDescriptor, job: Job, error: SymconfigError) -> dict[str, Any]:
    """Return the data of an infeasible job's page: reasons, and the lattice unless gpus is "auto" or the job cannot
    run at all.
    """
    gpus = "auto" if job.gpus == "auto" else f"{job.gpus:,}"
    data: dict[str, Any] = {
        "schema": SCHEMA,
        "title": f"{model.name} on {gpus} x {cluster.gpu.product} ({cluster.name}): nothing fits",
        "sentence": error.problems[0].what,
        "blocks": [_block(str(problem)) for problem in error.problems],
        "usable_bytes": job.limits.usable_bytes(cluster.gpu.memory_bytes.value),
    }
    if job.gpus != "auto":
        try:
            weighed = weighing(model, cluster, job)
        except SymconfigError:  # it cannot run at all, as the reasons say
            return data
        data |= {"lattice": lattice(weighed), "limits": _limits(model, job)}
    return data


def report_data(title: str, blocks: Sequence[Block]) -> dict[str, Any]:
    """Return the data of a page of blocks alone."""
    return {"schema": SCHEMA, "title": title, "sentence": "", "blocks": [_block(block) for block in blocks]}


def _block(block: Block) -> dict[str, Any]:
    return (
        picked(block, "title", "headers", "rows", "left", "marked") if isinstance(block, Grid) else {"text": str(block)}
    )


def sentence(plan: Plan) -> str:
    """Return the plan in one sentence: degrees above 1, batch, step, throughput and memory."""
    p, o, batch, predicted = plan.best.parallel, plan.best.options, plan.best.batch, plan.best.predicted
    split = [
        f"{number} {what}"
        for number, what in (
            (p.tp, "tensor-parallel ranks"),
            (p.pp, "pipeline stages" + (f" of {p.vpp} chunks" if p.vpp > 1 else "")),
            (p.cp, "context-parallel ranks"),
            (p.ep, "expert-parallel ranks"),
            (p.dp, "data-parallel replicas"),
        )
        if number > 1
    ]
    recomputed = o.recompute.text
    extra = [
        f"ZeRO stage {o.zero_stage}" if o.zero_stage else "",
        "" if recomputed == "none" else f"recompute {recomputed}",
    ]
    return (
        f"{', '.join(split) or 'One GPU'}; micro-batch {batch.micro}, {batch.num_microbatches} microbatches a step"
        f"{''.join(f', {word}' for word in extra if word)}: {predicted.step_s:.3g} s a step, "
        f"{predicted.tokens_per_s_per_gpu:,.0f} tokens/s/GPU, {100 * predicted.mfu:.1f} % MFU, "
        f"{predicted.device_bytes / 2**30:.1f} of {plan.usable_bytes / 2**30:.1f} GiB."
    )


def lattice(weighed: Weighing) -> dict[str, Any]:
    """Return the evaluated points (the fastest MOST_ROWS) and the refusals as packed columns; step_s is -1 where
    infinite.
    """
    rows = weighed.rows.at(slice(MOST_ROWS))
    spelled, places = zip(*(np.unique(column, return_inverse=True) for column in rows.words.T), strict=True)
    return {
        "whole": list(WHOLE),
        "words": list(WORDS),
        "spelled": [each.tolist() for each in spelled],
        "left_out": weighed.rows.size - rows.size,
        "columns": packed(rows.whole, "i4"),
        "places": packed(np.stack(places, axis=1), "i2"),
        "step_s": packed(np.where(np.isfinite(rows.step_s), rows.step_s, -1.0), "f4"),
        "gib": packed(rows.device_bytes / 2**30, "f4"),
        "fits": packed(rows.fits, "u1"),
        "budget_bytes": weighed.budget_bytes,
        "refused_by": list(REFUSED_BY),
        "refusals": [
            {"name": one.name, "rule": one.rule, "degrees": packed(one.degrees, "i4")} for one in weighed.refusals
        ],
    }


def _limits(model: ModelDescriptor, job: Job) -> dict[str, Any]:
    """Return the bounds on degrees from model and job, for layouts outside of the lattice."""
    return {
        "gpus": int(job.gpus),
        "heads": model.num_attention_heads,
        "layers": model.num_hidden_layers,
        "experts": model.experts.num_experts if model.experts else 1,
        "global_batch": job.global_batch_size,
        "pins": dict(job.pins),
        "risk": job.limits.memory_risk,
    }


def _shown(plan: Plan) -> Iterator[tuple[str, Candidate]]:
    """Yield (names, candidate) of the ranked plans and the fastest one; equal ones once."""
    named = [(str(number), one) for number, one in enumerate((plan.best, *plan.alternatives), 1)]
    if plan.beside.fastest is not None:
        named.append(("fastest", plan.beside.fastest))
    names = grouped(((one.parallel, one.batch, one.options), name) for name, one in named)
    first = {every[0]: ", ".join(every) for every in names.values()}
    yield from ((first[name], one) for name, one in named if name in first)


def _candidate(name: str, one: Candidate) -> dict[str, Any]:
    """Return a candidate as JSON; without an interval it is the step itself."""
    p, o, predicted = one.parallel, one.options, one.predicted
    return {
        "name": name,
        "degrees": picked(p, *DEGREES),
        "micro": one.batch.micro,
        "zero": o.zero_stage,
        "recompute": o.recompute.text,
        "options": others_text(one),
        "step_s": predicted.step_s,
        "interval": list(predicted.interval.get("step_s", (predicted.step_s, predicted.step_s))),
        "device_bytes": predicted.device_bytes,
        "time": {name: value for name, value in predicted.time.items() if value},
        "memory": {name: value for name, value in predicted.memory.items() if value},
        "stages": [stage.peak_bytes for stage in one.stages],
    }


def _ranks(plan: Plan, *grids: Sequence[str]) -> dict[str, Any]:
    """Return the rank axes of size above 1 with their strides (distance of neighbouring ranks), and GPUs per node."""
    p = plan.best.parallel
    sizes = picked(p, *DEGREES, "edp")
    axes: dict[str, dict[str, Any]] = {}
    for grid in grids:
        stride = 1
        for axis in grid:
            if sizes[axis] > 1:
                axes.setdefault(axis, {"name": axis, "ranks": sizes[axis], "stride": stride})
            stride *= sizes[axis]
    if plan.model.experts is None:
        axes = {name: axis for name, axis in axes.items() if name not in ("ep", "etp", "edp")}
    return {"per_node": plan.cluster.gpus_per_node, "axes": list(axes.values())}


def _schedule(plan: Plan) -> dict[str, Any]:
    try:
        return schedule(seen(plan, plan.best))
    except InputError as error:
        return {"why": " ".join(map(str, error.problems))}
