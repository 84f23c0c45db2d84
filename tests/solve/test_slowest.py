"""The bound on the slowest stage: no layout's slowest stage takes less, and one takes little more."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest

from symconfig.cost.machine import machine
from symconfig.cost.shapes import Pipeline, Pipelines, StageShape
from symconfig.cost.stages import Offload, Setting
from symconfig.frameworks.megatron.behaviour import MEGATRON
from symconfig.solve.kinds import Kinds
from symconfig.solve.slowest import least_slowest_s
from symconfig.solve.stages.problem import Layouts
from tests.sample_models import sample_cluster

NAMES = ("embedding", "dense", "mtp", "head")


def bound(seconds: list[float], layers: int, pp: int, together: bool, message_s: float = 0.0) -> float:
    """Of blocks that take so long, mtp once."""
    each = np.array(seconds)[:, None, None]
    nothing: Any = np.zeros_like(each)
    counts = np.array([1.0, layers, 1.0, 1.0])
    kinds = Kinds(NAMES, counts, each, *[nothing] * 7)
    setting = Setting(
        Pipelines.of([Pipeline(pp, 1, (StageShape(0, (1,) * 4, pp),))]),
        0,
        (Offload(),),
        machine(sample_cluster(), "bf16"),
        MEGATRON,
        MEGATRON.bytes,
        False,
    )
    layouts = Layouts(any_cut=True, mtp_with_head=together)
    return float(least_slowest_s(kinds, setting, np.array([message_s]), layouts)[0, 0])


def brute(seconds: list[float], layers: int, pp: int, together: bool, message_s: float) -> float:
    """The least slowest stage of every cut, messages of both directions included."""
    look_up, layer, mtp, head = seconds
    blocks = [look_up, *[layer] * layers, *([mtp + head] if together else [mtp, head])]
    result = float("inf")
    for cuts in combinations(range(1, len(blocks)), pp - 1):
        edges = [0, *cuts, len(blocks)]
        ends = [2 - (stage in (0, pp - 1)) for stage in range(pp)]
        stages = [sum(blocks[a:b]) + n * message_s for a, b, n in zip(edges, edges[1:], ends, strict=False)]
        result = min(result, max(stages))
    return result


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("message_s", [0.0, 0.3])
@pytest.mark.parametrize(
    ("seconds", "layers", "pp"),
    [([0.1, 1.0, 1.5, 0.5], 8, 4), ([1.7, 1.0, 3.0, 2.5], 7, 3), ([0.2, 1.0, 0.4, 5.0], 6, 2)],
)
def test_no_layout_is_faster(seconds: list[float], layers: int, pp: int, together: bool, message_s: float) -> None:
    least, found = bound(seconds, layers, pp, together, message_s), brute(seconds, layers, pp, together, message_s)
    assert least <= found * (1 + 1e-9)
    if together:
        assert least == pytest.approx(found)


def test_a_prediction_layer_may_lie_before_the_loss() -> None:
    seconds = [0.0, 1.0, 3.0, 3.0]
    assert bound(seconds, 6, 4, together=True) == 6.0
    assert bound(seconds, 6, 4, together=False) < 6.0
