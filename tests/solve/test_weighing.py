"""The whole weighed lattice against plans of pinned layouts, and its refusals against the constraints themselves."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest

from symconfig import plan
from symconfig.cost.framework import device_bytes
from symconfig.descriptor.job import Job
from symconfig.descriptor.load import load_cluster, load_model
from symconfig.errors import InfeasibleError
from symconfig.frameworks.constraint import failing
from symconfig.plans.columns import Columns
from symconfig.solve.costed import costed
from symconfig.solve.pins import parse
from symconfig.solve.restore import restore
from symconfig.solve.run import precisions, request
from symconfig.solve.search import resolved
from symconfig.solve.space import REFUSED_BY
from symconfig.solve.tally import WHOLE
from symconfig.solve.weighing import Weighing, weighing

MODEL, CLUSTER = load_model("mixtral-8x7b"), load_cluster("h100")
JOB = Job(model="mixtral-8x7b", cluster="h100", gpus=32, global_batch_size=128, seq_length=4096)


@pytest.fixture(scope="module")
def weighed() -> Weighing:
    return weighing(MODEL, CLUSTER, JOB)


def _row(weighed: Weighing, **wanted: int) -> int:
    rows = weighed.rows
    same = np.all([rows.whole[:, WHOLE.index(name)] == value for name, value in wanted.items()], axis=0)
    found = np.flatnonzero(same & rows.fits)
    return int(found[0])


def test_rows_are_the_fastest_first_and_each_once(weighed: Weighing) -> None:
    rows = weighed.rows
    fitting = int(rows.fits.sum())
    assert 0 < fitting < rows.size
    assert rows.fits[:fitting].all()
    assert (np.diff(rows.step_s[:fitting]) >= 0).all()
    assert len(np.unique(rows.whole, axis=0)) == rows.size


@pytest.mark.parametrize(
    "pins",
    [
        {"tp": 1, "pp": 1, "ep": 8, "micro": 1},
        {"tp": 2, "pp": 1, "ep": 4, "micro": 2},
        {"tp": 4, "pp": 1, "ep": 8, "micro": 1},
    ],
)
def test_a_row_costs_what_the_pinned_plan_costs(weighed: Weighing, pins: dict[str, int]) -> None:
    """Without a pipeline nothing is simulated, so that both are one formula."""
    said = {"mbs" if name == "micro" else name: str(value) for name, value in pins.items()}
    try:
        made = plan(
            model="mixtral-8x7b", cluster="h100", gpus=32, global_batch_size=128, seq_length=4096,
            pins={**said, "etp": "1", "cp": "1"},
        )  # fmt: skip
    except InfeasibleError:
        made = None
    rows = weighed.rows
    if made is None or made.search.opened:
        same = np.all(
            [rows.whole[:, WHOLE.index(name)] == v for name, v in {**pins, "etp": 1, "cp": 1}.items()], axis=0
        )
        assert not (same & rows.fits).any()
        return
    fastest = made.plan.fastest
    row = _row(weighed, **pins, etp=1, cp=1)
    assert rows.step_s[row] == pytest.approx(fastest.predicted.step_s, rel=1e-9)
    found = restore(made.plan, fastest)
    busiest = replace(found, request=replace(found.request, uneven=True))  # while the router is untrained
    held = device_bytes(max(costed(busiest).peaks), found.machine, found.request.framework)
    assert rows.device_bytes[row] == pytest.approx(held, rel=1e-9)
    assert held > fastest.predicted.device_bytes


def test_what_is_refused_fails_its_constraint(weighed: Weighing) -> None:
    job = resolved(MODEL, CLUSTER, JOB)
    (precision,) = precisions(CLUSTER, job, parse({}))
    asked = request(MODEL, CLUSTER, job, precision, parse({}))
    table = {one.name: one for one in asked.limits.table}
    given = {*REFUSED_BY, "gpus", "global_batch", *(each.name for each in fields(asked.limits.fixed))}
    checked = 0
    for refusal in weighed.refusals:
        constraint = table.get(refusal.name)
        if constraint is None or not constraint.asks <= given:
            continue
        for degrees in refusal.degrees[:20]:
            named = dict(zip(REFUSED_BY, degrees.tolist(), strict=True))
            if named["pp"] == 0:
                del named["pp"]
            point = Columns(gpus=asked.gpus, global_batch=asked.global_batch, **{**asked.limits.chosen, **named})
            assert constraint in failing((constraint,), asked.limits.fixed, point), (refusal.name, named)
            checked += 1
    assert checked > 20


def test_nothing_is_both_weighed_and_refused_for_all_microbatches(weighed: Weighing) -> None:
    """`experts with tp` asks degrees alone: what it refuses has no row."""
    rows, places = weighed.rows, [WHOLE.index(name) for name in ("tp", "cp", "ep", "etp")]
    kept = {tuple(row) for row in rows.whole[:, places].tolist()}
    refused = next(one for one in weighed.refusals if one.name == "expert_tensor")
    assert not kept & {tuple(row[:4]) for row in refused.degrees.tolist()}
