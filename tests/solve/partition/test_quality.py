"""The adaptive solver held against the exact one on models of the zoo, folded, on the eight GPUs of a node."""

from __future__ import annotations

import statistics

import numpy as np
import pytest

from symconfig.cost.partition.costs import Keep, Objective, floor_bytes
from symconfig.resources import data_dir
from symconfig.solve.partition import exact
from symconfig.solve.partition.adaptive import adaptive
from symconfig.solve.partition.problem import assemble
from symconfig.solve.partition.rows import spaces
from tests.solve.partition.optima import NODE, model, of, weights

# A sample: all of them are in docs/evidence/partitions.md.
MODELS = sorted(path.stem for path in (data_dir("model_zoo") / "models").glob("*.yaml"))[::5]
AXES = NODE.axes()
MEDIAN, WORST = 1.05, 1.15
# Of the exact solver, seconds of the processor. Where it does not end, its bound counts, which is the lower the less it
# has; where nothing was found it must prove that there is nothing.
LIMIT_S, PROOF_S = 1.0, 2.0


def ratio(name: str, objective: Objective, room: float) -> float:
    """Cost of the adaptive solver's answer over a lower bound of every answer's. 1 where neither finds any.

    room: memory limit over what no strategy can go below.
    """
    costs = weights(of(model(name), 1, 4096), AXES, objective=objective, keep=Keep.SHARDS)
    limit = floor_bytes(costs, NODE.gpus) * room
    found = adaptive(costs, AXES, limit).best
    gamma = found.gamma if found is not None else np.inf
    rows = spaces(costs, AXES, found.cost if found is not None else np.inf, gamma)
    assert rows is not None
    answer = exact.solve(assemble(costs, rows, limit, gamma), limit_s=LIMIT_S if found is not None else PROOF_S)
    if found is None:
        assert (answer.choice, answer.optimal) == (None, True), name
        return 1.0
    assert found.memory <= limit
    return found.cost / min(answer.bound, found.cost)


@pytest.mark.parametrize(
    ("objective", "room"), [(Objective.TIME, 1.15), (Objective.SYMTENSOR, np.inf)], ids=["time", "symtensor"]
)
def test_adaptive_is_close_to_the_optimum_on_every_model(objective: Objective, room: float) -> None:
    """One sequence for the node, so that no split of the batch is at hand; seconds within a tight memory limit, and the
    source paper's relative cost without one."""
    ratios = {name: ratio(name, objective, room) for name in MODELS}
    assert statistics.median(ratios.values()) <= MEDIAN, ratios
    assert max(ratios.values()) <= WORST, ratios
    assert max(ratios.values()) > 1.0  # else it says nothing
