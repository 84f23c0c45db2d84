"""What a partition's page draws: bars of all that it costs and holds, and parts of which the bytes are counted."""

from __future__ import annotations

from math import prod

import pytest

from symconfig import partition
from symconfig.api.partition import PartitionResult
from symconfig.cost.partition.costs import Objective
from symconfig.format import general
from symconfig.report.page.partitioned import MOST_BARS, of_partition
from symconfig.report.page.pictures import Bars, Held


@pytest.fixture(scope="module", params=Objective)
def found(request: pytest.FixtureRequest) -> PartitionResult:
    return partition(model="mixtral-8x7b", cluster="h100", gpus=16, global_batch_size=16, objective=request.param.value)


def _pictures(found: PartitionResult) -> tuple[Held, Bars, Bars]:
    held, spent, kept = of_partition(found.said())
    assert isinstance(held, Held)
    assert isinstance(spent, Bars)
    assert isinstance(kept, Bars)
    return held, spent, kept


def test_bars_are_all_that_is_spent_and_held(found: PartitionResult) -> None:
    _, spent, kept = _pictures(found)
    timed = found.found.ask.objective is Objective.TIME
    total = sum(part for _, parts in spent.series for part in parts if part)
    assert total / (1e3 if timed else 1.0) == pytest.approx(found.found.cost)
    assert sum(part for _, parts in kept.series for part in parts if part) * 2**30 == pytest.approx(found.found.memory)
    for bars in (spent, kept):
        assert len(bars.names) <= MOST_BARS + 1
        assert {len(parts) for _, parts in bars.series} == {len(bars.names)}


def test_a_part_of_a_weight_is_what_its_bytes_are_counted_of(found: PartitionResult) -> None:
    """Elements over the parts that are drawn: 2 bytes of each weight, 4 of a gradient, 12 of Adam's state."""
    held, _, _ = _pictures(found)
    sizes: dict[str, float] = {}
    for node in found.found.net.nodes:
        if node.parameter is not None:
            sizes[general(node.name)] = sizes.get(general(node.name), 0.0) + node.times * prod(node.ports[0].sizes)
    sums = dict.fromkeys(("weight", "gradient", "optimizer state"), 0.0)
    for one in held.tensors:
        name, _, kinds = one.name.partition(": ")
        for kind in sums:
            if kind in kinds:
                sums[kind] += sizes[name] / prod(size for (size, _), cut in zip(held.axes, one.cut, strict=True) if cut)
    spent = found.spent
    wanted = (spent.weights_bytes, spent.gradients_bytes, spent.optimizer_bytes)
    assert [each * sums[kind] for each, kind in zip((2, 4, 12), sums, strict=True)] == pytest.approx(wanted)


def test_the_parameters_that_are_most_are_drawn_first(found: PartitionResult) -> None:
    held, _, _ = _pictures(found)
    assert "expert_gate_up_proj" in held.tensors[held.first].name
