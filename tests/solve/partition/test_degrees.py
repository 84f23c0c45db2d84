"""Megatron's rows on programs of models: what they split, move, compute and keep, against the graph's derivation.

`graph.derive` works on blocks with symbols for degrees; the partition's costs on rows of a network. Neither uses the
other.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from math import gcd, prod

import numpy as np
import pytest

from symconfig.cost.partition.costs import Costs, Keep, Objective
from symconfig.cost.partition.work import Rows
from symconfig.cost.partition.work import parts as parts_of
from symconfig.descriptor.load import load_model
from symconfig.descriptor.mesh import Axis, Mesh, MeshLevel
from symconfig.descriptor.model import ModelDescriptor
from symconfig.graph import dims as d
from symconfig.graph.derive import derive
from symconfig.graph.derived import DerivedBlock, Matmul
from symconfig.graph.derived import Phase as Pass
from symconfig.graph.dims import Monomial
from symconfig.graph.layout import Kind
from symconfig.graph.model import blocks, dim_sizes, mixer_pieces, sequence
from symconfig.graph.operator import Operator, Work
from symconfig.graph.program.fold import fold
from symconfig.graph.program.net import Net, net
from symconfig.graph.program.of_model import program
from symconfig.graph.scheme import Scheme
from symconfig.resources import data_dir
from tests.sampled import sampled
from tests.solve.partition.optima import model, of, weights
from tests.solve.partition.strategies import Way, named_rows, way

MESH = Mesh((MeshLevel("nvlink", 8, 1e11, 1e-6),))
BATCH, SEQ = 8, 4096
STATE_BYTES = 2 + 4 + 12  # bf16 weights, fp32 gradients, fp32 master weights and Adam's two moments
DENSE = [
    way(4, dp=2), way(4, dp=2, sequence_parallel=True), way(2, dp=4, sequence_parallel=True),
    way(2, 2, 2, sequence_parallel=True), way(1, 4, 2, cp_comm="a2a"), way(2, 2, 2, cp_comm="a2a"),
]  # fmt: skip
EXPERTS = [
    way(1, dp=8, ep=8), way(2, dp=4, ep=4, etp=2, sequence_parallel=True),
    way(4, dp=2, ep=2, sequence_parallel=True),
]  # fmt: skip
CASES = [(name, asked) for name in ("llama2-7b", "llama3.1-70b", "gpt3-175b", "qwen2.5-7b") for asked in DENSE]
CASES += [("llama2-7b", way(8)), ("gpt3-175b", way(8, sequence_parallel=True))]
CASES += [(name, asked) for name in ("mixtral-8x7b", "qwen3-30b-a3b") for asked in EXPERTS]


def axes_of(asked: Way) -> tuple[Axis, ...]:
    """An axis for each degree, so that an all-to-all over a group is one, and more where experts are cut elsewhere."""
    ends = [
        1,
        asked.degrees.tp,
        asked.degrees.tp * asked.degrees.cp,
        asked.degrees.etp,
        asked.degrees.etp * asked.degrees.ep,
        MESH.gpus,
    ]
    marks = sorted(set(ends))
    return MESH.axes((tuple(after // before for before, after in pairwise(marks)),))


@dataclass(frozen=True)
class Laid:
    """A model under degrees, as a network with rows, and its blocks derived."""

    axes: tuple[Axis, ...]
    costs: Costs
    rows: Rows
    derived: tuple[DerivedBlock, ...]
    numbers: dict[str, float]


@cache
def laid(name: str, asked: Way, objective: Objective = Objective.SYMTENSOR) -> Laid:
    described, axes = model(name), axes_of(asked)
    costs = weights(of(described, BATCH, SEQ), axes, MESH, objective, keep=Keep.SHARDS)
    rows = named_rows(costs.net, axes, "megatron-tp", asked)
    assert rows is not None
    scheme = Scheme(asked.sequence_parallel, "a2a" if asked.cp_comm == "a2a" else "all_gather")
    every = {kind: derive(block, scheme) for kind, block in blocks(described).items()}
    chosen = tuple(every[kind] for kind in sequence(described))
    return Laid(axes, costs, rows, chosen, _numbers(described, asked, costs))


def _numbers(described: ModelDescriptor, asked: Way, costs: Costs) -> dict[str, float]:
    numbers = {key: float(value) for key, value in dim_sizes(described).items()}
    numbers |= {name: float(getattr(asked.degrees, name)) for name in ("tp", "cp", "dp", "ep", "etp")}
    numbers["edp"] = asked.degrees.world_size / (asked.degrees.ep * asked.degrees.etp)
    numbers |= {"micro_batch": BATCH / asked.degrees.dp, "seq_length": float(SEQ), "expert_imbalance": 1.0}
    return numbers | {d.VOCAB: float(costs.net.program.sizes[d.VOCAB])}


def activations(of: Laid) -> float:
    """Elements of activations and their gradients that leave a rank, by the partition's costs."""
    total = 0.0
    for index, link in enumerate(of.costs.net.links):
        if of.costs.net.nodes[link.producer].parameter is None:
            pair = (of.rows[link.producer][None], of.rows[link.consumer][None])
            total += of.costs.link(index, *pair).cost.item()
    for index, node in enumerate(of.costs.net.nodes):
        if node.operator is not None:
            total += float(of.costs.node(index, of.rows[index][None]).cost[0])
    return total


@pytest.mark.parametrize(("name", "asked"), CASES, ids=str)
def test_megatrons_rows_move_what_the_graph_derives(name: str, asked: Way) -> None:
    here, expected = laid(name, asked), 0.0
    for block in here.derived:
        for one in block.collectives:
            ranks = Monomial.of(*one.axes).value(here.numbers)
            passes = 2.0 if one.kind is Kind.ALL_REDUCE else 1.0
            expected += passes * one.times * (ranks - 1) / ranks * one.elements.value(here.numbers)
    assert activations(here) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(("name", "asked"), CASES, ids=str)
def test_a_rank_computes_what_the_graph_derives(name: str, asked: Way) -> None:
    """Products of the forward, in FLOP."""
    here, found = laid(name, asked), 0.0
    sizes = here.costs.net.program.sizes
    for node, row in zip(here.costs.net.nodes, here.rows, strict=True):
        op = node.operator
        if op is not None and op.work is Work.MATMUL:
            cut = parts_of(node, row[None], here.costs.rates)
            loops = {*op.inputs[0].loops, *op.inputs[1].loops}
            found += node.times * 2.0 * prod(sizes[loop] / float(np.max(cut.get(loop, 1.0))) for loop in loops)
    products = [w for block in here.derived for w in block.work if isinstance(w, Matmul) and w.phase is Pass.FORWARD]
    expected = sum(2.0 * (w.batch * w.m * w.n * w.k).value(here.numbers) for w in products)
    assert found == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(("name", "asked"), CASES, ids=str)
@pytest.mark.parametrize("zero", [0, 1, 3])
def test_states_take_what_the_closed_form_says(name: str, asked: Way, zero: int) -> None:
    """Of each weight: its part of the tensor- and expert-parallel split, and of that, of the stages that are sharded,
    the part of the ranks with data of their own."""
    here = laid(name, asked, Objective.TIME)
    rows = named_rows(here.costs.net, here.axes, "megatron-tp", replace(asked, zero=zero))
    assert rows is not None
    found = expected = 0.0
    for index, node in enumerate(here.costs.net.nodes):
        if node.parameter is None:
            continue
        found += float(here.costs.node(index, rows[index][None]).memory[0])
        dims = set(node.ports[0].tensor.dims)
        split = asked.degrees.tp if dims & set(d.TENSOR_DIMS) and d.EXPERTS not in dims else 1
        if d.EXPERTS in dims:
            split = asked.degrees.ep * (asked.degrees.etp if dims & set(d.EXPERT_TENSOR_DIMS) else 1)
        data = asked.degrees.world_size // (
            asked.degrees.ep * asked.degrees.etp if d.EXPERTS in dims else asked.degrees.tp
        )
        flat = {0: 0, 1: 12, 3: STATE_BYTES}[zero]
        size = node.times * prod(node.ports[0].sizes) / split
        expected += size * (STATE_BYTES - flat + flat / data)
    assert found == pytest.approx(expected, rel=1e-9)


AXES = Mesh((MeshLevel("nvlink", 8, 1e11, 1e-6),)).axes()
MODELS = sorted(path.stem for path in (data_dir("model_zoo") / "models").glob("*.yaml"))
SCHEMES = {
    way(2, 2, 2, 2, 2, sequence_parallel=True): Scheme(True),
    way(2, 2, 2, 2, 2, sequence_parallel=False): Scheme(False),
    way(2, 2, 2, 2, 2, sequence_parallel=True, cp_comm="a2a"): Scheme(True, "a2a"),
    way(1, 2, 4, 4, 1): Scheme(False),
    way(1, 1, 8, 4, 1): Scheme(False),
}


def folded(name: str) -> Net:
    made = program(load_model(name), 16, 4096, vocab_multiple=128)
    found = fold(made)
    return net(made, found.of, [(run.start, run.period, run.times) for run in found.runs])


def split(scheme: Scheme, op: Operator, asked: Way) -> list[set[str]]:
    """The loops that each axis may split, as the graph's rule has them; innermost axis first."""
    loops, degrees = set(op.loops), asked.degrees
    inside = d.SLOTS in loops and d.SEQUENCE not in loops
    rule = scheme.assign(op)
    names = [("tp", degrees.tp), ("cp", degrees.cp)] if not inside else [("etp", degrees.etp), ("ep", degrees.ep)]
    axes = [name for name, size in names for _ in range(size.bit_length() - 1)]
    axes += ["edp" if inside else "dp"] * (len(AXES) - len(axes))
    return [set(rule.get(axis, ())) for axis in axes]


@pytest.mark.parametrize("model", sampled(MODELS, 4))
def test_every_operator_is_split_as_the_graphs_rule_says(model: str) -> None:
    of = folded(model)
    known: dict[str, Operator] = {}
    loaded = load_model(model)
    for kind, block in blocks(loaded).items():
        known |= {op.name: op for op in block.operators}
        known |= {f"{kind}.{op.name}": op for op in block.operators}
    dense = d.EXPERTS not in of.program.sizes
    without = {
        way(o.degrees.tp, o.degrees.cp, o.degrees.dp, sequence_parallel=o.sequence_parallel, cp_comm=o.cp_comm): scheme
        for o, scheme in SCHEMES.items()
    }
    schemes = without if dense else SCHEMES
    for degrees, scheme in schemes.items():
        tp, cp = degrees.degrees.tp, degrees.degrees.cp
        if of.program.sizes.get("n_groups", tp * cp) % (tp * cp):
            continue  # no layout of the solver cuts one group of heads in two
        rows = named_rows(of, AXES, "megatron-tp", degrees)
        if rows is None:  # heads over both, of which there are too few
            assert scheme.cp_comm == "a2a"
            heads = gcd(loaded.num_key_value_heads, mixer_pieces(loaded))
            assert heads % (tp * cp)
            continue
        for node, row in zip(of.nodes, rows, strict=True):
            if node.operator is None:
                continue
            name = re.sub(r"^layers\.(\d+)", lambda found: loaded.layer_kinds[int(found[1])], node.name)
            wanted = split(scheme, known.get(name) or known[re.sub(r"^\w+\.\d+\.", "", name)], degrees)
            for option, loops in zip(row, wanted, strict=True):
                what = node.options[option].split
                mine = set(what.loops) if what else set()
                assert bool(mine) == bool(loops), (node.name, mine, loops)
                assert mine & loops or not loops, (node.name, mine, loops)


def test_whole_and_folded_agree() -> None:
    made = program(load_model("llama2-7b"), 16, 4096, vocab_multiple=128)
    found = fold(made)
    whole, small = net(made), net(made, found.of, [(run.start, run.period, run.times) for run in found.runs])
    for name in ("zero3", "megatron-tp-sp", "ulysses"):
        a, b = named_rows(whole, AXES, name), named_rows(small, AXES, name)
        assert all(np.array_equal(a[x], b[y]) for x, y in zip(whole.node_of, small.node_of, strict=True))
