"""What the strategies with names move, against what their papers say; Alpa's space as a filter."""

from __future__ import annotations

from itertools import product
from math import prod

import numpy as np
import pytest

from benchmarks.alpa import alpa_space, alpa_spaces
from symconfig.cost.machine import machine
from symconfig.cost.partition.costs import Costs, Keep, Objective, Training
from symconfig.cost.partition.rates import elements
from symconfig.cost.partition.work import Rows
from symconfig.descriptor.load import load_cluster
from symconfig.descriptor.mesh import Mesh, MeshLevel
from symconfig.frameworks.megatron.behaviour import MEGATRON
from symconfig.graph import dims as d
from symconfig.graph.program.net import Net, net
from tests.solve.partition.programs import SIZES, convolutions, transformer
from tests.solve.partition.strategies import NAMES, Way, named_rows, random_rows, way

RANKS = 4
AXES = Mesh((MeshLevel("nvlink", RANKS, 1e11, 1e-6),)).axes(((RANKS,),))
SHARE = (RANKS - 1) / RANKS
STREAM = SIZES[d.BATCH] * SIZES[d.SEQUENCE] * SIZES[d.HIDDEN]
MACHINE = machine(load_cluster("h100"), "bf16")


def moved(of: Net, rows: Rows, weights: bool, keep: Keep = Keep.SHARDS) -> float:
    """Elements that leave a rank in one step for activations and their gradients, or for weights and theirs."""
    costs = Costs(of, elements(AXES), MACHINE, MEGATRON, Training(keep=keep), Objective.SYMTENSOR)
    return sum(
        costs.link(index, rows[link.producer][None], rows[link.consumer][None]).cost.item()
        for index, link in enumerate(of.links)
        if (of.nodes[link.producer].parameter is not None) == weights
    )


def rows_of(of: Net, name: str, degrees: Way | None = None) -> Rows:
    rows = named_rows(of, AXES, name, degrees)
    assert rows is not None
    return rows


def a_layer(name: str, keep: Keep = Keep.SHARDS) -> float:
    """What one more layer moves for activations."""
    one, two = (net(transformer(layers)) for layers in (1, 2))
    return moved(two, rows_of(two, name), False, keep) - moved(one, rows_of(one, name), False, keep)


def test_a_tensor_parallel_layer_has_four_all_reduces() -> None:
    """Shoeybi et al., Megatron-LM (2019), figure 4: two forward and two backward."""
    assert a_layer("megatron-tp") == pytest.approx(4 * 2 * SHARE * STREAM)


def test_with_sequence_parallelism_it_gathers_the_kept_shards_once_more() -> None:
    """Korthikanti et al. (2022), section 4.2.2: the same bandwidth, and all-gathers that the backward repeats."""
    assert a_layer("megatron-tp-sp") == pytest.approx((4 * 2 + 2) * SHARE * STREAM)
    assert a_layer("megatron-tp-sp", Keep.USED) == pytest.approx(a_layer("megatron-tp"))


def test_ulysses_exchanges_four_tensors_forward_and_four_backward() -> None:
    """Jacobs et al., DeepSpeed Ulysses (2023), section 3.2: all-to-alls of queries, keys, values and the result."""
    once = SHARE * STREAM / RANKS
    assert a_layer("ulysses") == pytest.approx(8 * once, rel=0.02)


def test_context_parallel_gathers_keys_and_values() -> None:
    """Forward, and as gradients back; the shard is kept and gathered again for the backward."""
    assert a_layer("context") == pytest.approx((2 + 2 + 2) * SHARE * STREAM)


@pytest.mark.parametrize(("name", "times"), [("data", 2), ("zero1", 2), ("zero2", 2), ("zero3", 3)])
def test_zero_moves_twice_or_three_times_the_parameters(name: str, times: int) -> None:
    """Rajbhandari et al., ZeRO (2020), section 7; but a table that ids look up is not needed again backward."""
    of = net(transformer(2))
    parameters = sum(prod(node.ports[0].sizes) for node in of.nodes if node.parameter is not None)
    table = next(prod(node.ports[0].sizes) for node in of.nodes if "embedding" in node.name and node.parameter)
    expected = times * parameters - (table if name == "zero3" else 0)
    assert moved(of, rows_of(of, name), True) == pytest.approx(SHARE * expected)
    assert moved(of, rows_of(of, name), False) == 0.0


def test_gshard_moves_every_slot_there_and_back_and_their_gradients() -> None:
    """Lepikhin et al., GShard (2020), section 3.2: two all-to-alls forward and two backward."""
    of = net(transformer(1, experts=True))
    slots = prod(of.program.sizes[dim] for dim in (d.EXPERTS, d.SLOTS, d.HIDDEN))
    assert moved(of, rows_of(of, "gshard"), False) == pytest.approx(4 * SHARE * slots / RANKS)


@pytest.mark.parametrize("program", ["dense", "experts", "convolutions"])
@pytest.mark.parametrize("name", NAMES)
def test_every_strategy_has_a_price(program: str, name: str) -> None:
    of = net(
        {"dense": transformer(1), "experts": transformer(1, experts=True), "convolutions": convolutions()}[program]
    )
    rows = named_rows(of, AXES, name)
    if rows is not None:
        assert np.isfinite(moved(of, rows, True) + moved(of, rows, False))


def test_random_rows_have_a_price_also_where_nothing_lies_flat() -> None:
    of = net(transformer(1))
    costs = Costs(of, elements(AXES), MACHINE, MEGATRON, Training(), Objective.SYMTENSOR, flat=False)
    rows = random_rows(of, AXES, 5, flat=False)
    pairs = ((index, rows[link.producer][None], rows[link.consumer][None]) for index, link in enumerate(of.links))
    assert all(np.isfinite(costs.link(*pair).cost).all() for pair in pairs)


AXES_OF_ALPA = Mesh((MeshLevel("nvlink", 4, 1e11, 1e-6), MeshLevel("rail", 4, 1e10, 1e-5))).axes()
NET = net(transformer(1))


def test_each_mesh_dim_splits_one_dim_or_none() -> None:
    space = alpa_space(AXES_OF_ALPA)
    assert space.mesh == (0, 0, 1, 1)
    for node in NET.nodes:
        every = np.array(list(product(range(len(node.options)), repeat=4)))
        able = [
            option
            for option, what in enumerate(node.options)
            if what.zero == 0 and (what.name != "partial" and (node.copy or what.name != "pending"))
        ]
        assert space.allows(node, every).sum() == len(able) ** 2


def test_tensor_and_data_parallel_are_in_it_and_three_kinds_at_once_are_not() -> None:
    space = alpa_space(AXES_OF_ALPA)

    def all_allowed(degrees: Way) -> bool:
        rows = named_rows(NET, AXES_OF_ALPA, "megatron-tp", degrees)
        assert rows is not None
        return all(space.allows(node, row[None])[0] for node, row in zip(NET.nodes, rows, strict=True))

    assert all_allowed(way(tp=4, dp=4, sequence_parallel=True))
    assert not all_allowed(way(tp=4, cp=2, dp=2, sequence_parallel=True))
    assert not all_allowed(way(tp=4, dp=4, zero=1))


def test_every_mesh_of_two_dims_is_tried() -> None:
    assert [sum(part == 0 for part in space.mesh) for space in alpa_spaces(AXES_OF_ALPA)] == [1, 2, 3, 4]
    assert alpa_space(AXES_OF_ALPA, 8).mesh == (0, 0, 0, 1)
    with pytest.raises(ValueError, match="no axis of the mesh ends after 3 ranks"):
        alpa_space(AXES_OF_ALPA, 3)
