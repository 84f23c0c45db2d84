"""What a strategy costs that is the same for all likes, on the folded network and on the whole; costs by number."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from symconfig.cost.machine import machine
from symconfig.cost.partition import rates
from symconfig.cost.partition.costs import Costs, Keep, Training
from symconfig.cost.partition.links import FORBIDDEN, codes, digits, every, moved_cost
from symconfig.cost.partition.rates import Prices, Rate, local, moves
from symconfig.descriptor.load import load_cluster, load_model
from symconfig.descriptor.mesh import Mesh, MeshLevel
from symconfig.descriptor.model import ModelDescriptor
from symconfig.frameworks.megatron.behaviour import MEGATRON
from symconfig.graph.implementation import Implementation, Kernel
from symconfig.graph.layout import FLAT, PARTIAL, WHOLE
from symconfig.graph.program.fold import Folding, fold
from symconfig.graph.program.net import Net, net
from symconfig.graph.program.of_model import program

MESH = Mesh((MeshLevel("node", 4, 450e9, 3e-6), MeshLevel("network", 2, 50e9, 8e-6)))
AXES = MESH.axes(((2, 2), (2,)))
CLUSTER = load_cluster("h100")


def costs(of: Net, keep: Keep) -> Costs:
    speeds = rates.seconds(AXES, MESH, CLUSTER)
    return Costs(of, speeds, machine(CLUSTER, "bf16"), MEGATRON, Training(turns=3, keep=keep))


def likes(whole: Net, small: Net, folding: Folding) -> list[int]:
    """For every node of the whole network its node in the folded one. A copy is known by where it comes from and who
    reads it."""
    found: dict[int, int] = {}
    for index, kind in zip(whole.node_of, folding.of, strict=True):
        found[index] = small.node_of[kind]
    found |= dict(zip(whole.parameter_of, small.parameter_of, strict=True))

    def readers(of: Net, copy: int, name: dict[int, int] | None) -> tuple[object, ...]:
        into = next(link for link in of.links if link.consumer == copy)
        ends = {(link.consumer, link.taken) for link in of.links if link.producer == copy}
        if name is None:
            return into.producer, into.given, frozenset(ends)
        return name[into.producer], into.given, frozenset((name[node], port) for node, port in ends)

    copies = {readers(small, n, None): n for n, node in enumerate(small.nodes) if node.copy}
    for index, node in enumerate(whole.nodes):
        if node.copy:
            found[index] = copies[readers(whole, index, found)]
    return [found[index] for index in range(len(whole.nodes))]


def total(of: Costs, rows: np.ndarray) -> tuple[float, float]:
    """Cost and bytes held."""
    nodes = [of.node(index, rows[index : index + 1]) for index in range(len(of.net.nodes))]
    links = [
        of.link(index, rows[link.producer : link.producer + 1], rows[link.consumer : link.consumer + 1])
        for index, link in enumerate(of.net.links)
    ]
    cost = sum(float(n.cost[0]) for n in nodes) + sum(float(link.cost[0, 0]) for link in links)
    return cost, sum(float(n.memory[0]) for n in nodes) + sum(float(link.memory[0, 0]) for link in links)


@pytest.mark.parametrize("name", ["llama2-7b", "mixtral-8x7b", "gpt-oss-120b", "qwen-7b-lora"])
@pytest.mark.parametrize("keep", [Keep.USED, Keep.SHARDS])
def test_a_folded_strategy_costs_what_it_costs_on_the_whole_network(name: str, keep: Keep) -> None:
    fields = load_model(name).model_dump(by_alias=True) | {"num_hidden_layers": 6}
    fields |= {"sliding_window_pattern": fields["sliding_window_pattern"] and fields["sliding_window_pattern"][:6]}
    how = Implementation().attending(Kernel.MASKED) if name == "llama2-7b" else None
    folding = fold(program(ModelDescriptor.model_validate(fields), 8, 512, how))
    whole, small = net(folding.program), net(folding.program, folding.of, folding.runs)
    assert len(small.nodes) < len(whole.nodes) / 2
    like = likes(whole, small, folding)
    rng = np.random.default_rng(7)
    for _ in range(3):
        rows = np.array([[rng.integers(len(node.options)) for _ in AXES] for node in small.nodes])
        for index, node in enumerate(small.nodes):  # flat weights go with few uses only
            if node.parameter is not None:
                rows[index] = 0
        expected = total(costs(whole, keep), rows[like])
        assert total(costs(small, keep), rows) == pytest.approx(expected, rel=1e-9)
        changed = rows.copy()
        changed[small.node_of[folding.runs[0].start + 1]] = 0
        assert total(costs(small, keep), changed) != pytest.approx(expected, rel=1e-9)


AMOUNT = 2.0**20 * 3
PLACES = np.array([FLAT, PARTIAL, WHOLE, 0, 1, 2])


def some_rates(axes: int) -> tuple[Rate, ...]:
    """Rates that all differ, with latencies; the number of a group has a bit for each axis."""
    sizes = (2, 3, 4, 5, 2, 7)[:axes]
    groups = range(2**axes)

    def prices(fixed: float, each: float) -> Prices:
        return Prices(tuple(fixed * n for n in groups), tuple(each * n for n in groups))

    of = prices(1e-5, 1e-11), prices(3e-5, 3e-11), prices(2e-5, 2e-11)
    return tuple(Rate(size, 2**axis, *of, Prices((1e-6,), (1e-11,))) for axis, size in enumerate(sizes))


rows = st.integers(1, 4).flatmap(
    lambda axes: st.lists(st.tuples(*[st.integers(0, len(PLACES) - 1)] * axes), min_size=1, max_size=4)
)


@given(rows)
def test_a_number_has_the_cost_and_the_shares_of_its_layouts(some: list[tuple[int, ...]]) -> None:
    given_rows = np.array(some, dtype=np.int64)
    taken_rows = np.roll(given_rows[::-1], 1, axis=1)
    speeds = some_rates(given_rows.shape[1])
    both = zip((given_rows, taken_rows), ((-1, 1), (1, -1)), strict=True)
    a, b = ([PLACES[column].reshape(shape) for column in r.T] for r, shape in both)
    table, at = every(speeds), codes(digits(PLACES[:, None], PLACES), given_rows, taken_rows)
    cost = np.zeros(at.shape) + rates.total(moves(a, b, AMOUNT, speeds))
    np.testing.assert_allclose(moved_cost(table, AMOUNT)[at], cost, 1e-12)
    for share, places in zip(table.shares, (a, b), strict=True):
        np.testing.assert_allclose(share[at], np.zeros(at.shape) + local(places, speeds))
    same = np.logical_and.reduce([np.zeros(at.shape, bool) | (x == y) for x, y in zip(a, b, strict=True)])
    np.testing.assert_array_equal(table.same[at], same)


def test_what_is_forbidden_costs_without_end_and_nothing_else_does() -> None:
    table = every(some_rates(2))
    forbidden = (table.digits == FORBIDDEN).any(axis=0)
    np.testing.assert_array_equal(np.isinf(moved_cost(table, AMOUNT)), forbidden)
