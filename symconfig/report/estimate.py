"""An estimate: memory by stage and part, the step by part, by how much it does not fit, and on which GPUs it would."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from symconfig.errors import Problem
from symconfig.format import gib, percent, picked, seconds
from symconfig.plans.plan import Plan
from symconfig.report import table
from symconfig.report.grid import Block, Grid, present, titled
from symconfig.solve.estimate import Estimate

SPENT = "Where time and memory go"
SCHEMA = "symconfig.estimate/1"
FitsOn = Mapping[str, "Estimate | Problem"]  # by cluster


def blocks(estimate: Estimate, fits_on: FitsOn) -> list[Block]:
    """Return all blocks of an estimate: headline, layout, stages, parts, intervals, other clusters (`fits_on`:
    {cluster: the estimate or problem there}), refusals and verdict (free memory, or missing GiB with
    the overfull of several stages and the largest part); empty parts are left out.
    """
    plan, usable, missing = estimate.plan, gib(estimate.plan.usable_bytes), estimate.missing_bytes
    (name, largest), over = estimate.largest, ", ".join(map(str, estimate.overfull))
    where = f" on stage{'s' * (',' in over)} {over}" if len(estimate.stage_bytes) > 1 else ""
    verdict = (
        f"It does not fit{where}: {gib(missing)} GiB more than {usable} GiB usable; the largest part: {name}, "
        f"{gib(largest)} GiB."
        if missing > 0
        else f"It fits: {gib(-missing)} of {usable} GiB usable are free."
    )
    return present(
        table.headline(plan),
        table.compared((("", plan.best),)),
        stages(estimate),
        table.parts(plan, SPENT),
        certainty(plan),
        others(fits_on),
        titled("The framework refuses it:", estimate.refused),
        verdict,
    )


def stages(estimate: Estimate) -> Grid:
    """Return the table of memory by stage in GiB: stage, layers, each part, bytes in use, usable bytes, share, and
    whether it does not fit. Parts that are 0 on all stages are left out; neighbouring stages with equal cells share a
    row (`1-3`).
    """
    plan, most = estimate.plan, estimate.plan.usable_bytes
    rows: list[dict[str, str]] = []
    for number, (stage, used) in enumerate(zip(plan.best.stages, estimate.stage_bytes, strict=True)):
        kinds = [kind for chunk in stage.chunks for kind in chunk]
        ends = [kind for kind in kinds if kind in ("embedding", "head")]
        row = {
            "stage": str(number),
            "holds": " + ".join([f"{len(kinds) - len(ends)} layers", *ends]),
            **{name: gib(part[number]) for name, part in estimate.memory.items() if any(part)},
            "in use": gib(used),
            "usable": gib(most),
            "share": percent(used / most),
            "": "does not fit" if used > most else "",
        }
        if rows and {**rows[-1], "stage": ""} == {**row, "stage": ""}:
            rows[-1]["stage"] = f"{rows[-1]['stage'].partition('-')[0]}-{number}"
        else:
            rows.append(row)
    return Grid.of(rows, "Memory of each stage's GPUs by part, GiB", words=("holds", ""), fixed=("in use", "usable"))


def certainty(plan: Plan) -> str:
    """Return sentences on step and memory with their 90 % intervals and the runs that these rest on."""
    return "\n".join([table.step_sentence(plan, basis=True), *table.memory_sentences(plan, basis=True)])


def others(fits_on: FitsOn) -> Grid:
    """Return the table of clusters with the GPU's memory, free memory (negative if missing), and the step if the layout
    fits, else that it does not; only the Problem's text if it cannot run there.
    """
    rows = []
    for name, one in fits_on.items():
        row = {"cluster": name, "GPU GiB": "", "free GiB": "", "step s": "", "": ""}
        if isinstance(one, Problem):
            row[""] = one.what
        else:
            cluster, missing = one.plan.cluster, one.missing_bytes
            row |= {"GPU GiB": gib(cluster.gpu.memory_bytes.value), "free GiB": gib(-missing)}
            row |= {"step s": seconds(one.plan.best.predicted.step_s)} if missing <= 0 else {"": "does not fit"}
        rows.append(row)
    return Grid.of(rows, "Where the same layout fits", words=("cluster", ""))


def to_dict(estimate: Estimate, fits_on: FitsOn) -> dict[str, Any]:
    """Return the JSON of `symconfig estimate --json`: cluster, candidate, whether it fits, usable and missing bytes
    (negative if some are free), the largest part, refusals, and bytes by part of each stage. `fits_on` has for each
    other cluster that was asked for whether it fits, missing bytes and step, or `why` none.
    """
    plan, (name, most) = estimate.plan, estimate.largest
    return {
        "schema": SCHEMA,
        "cluster": plan.cluster.name,
        "candidate": plan.best.to_dict(),
        "fits": estimate.fits,
        "usable_bytes": plan.usable_bytes,
        "missing_bytes": estimate.missing_bytes,
        "largest": {"part": name, "bytes": most},
        "refused": list(estimate.refused),
        "stages": [
            {"device_bytes": used, "memory": {part: values[number] for part, values in estimate.memory.items()}}
            for number, used in enumerate(estimate.stage_bytes)
        ],
        "fits_on": {
            cluster: {"fits": None, "missing_bytes": None, "step_s": None, "why": str(one)}
            if isinstance(one, Problem)
            else {**picked(one, "fits", "missing_bytes"), "step_s": one.plan.best.predicted.step_s, "why": None}
            for cluster, one in fits_on.items()
        },
    }
