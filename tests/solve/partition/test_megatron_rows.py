"""Megatron's rows on every model of the zoo, held against the graph's own rule of which dims an axis splits."""

from __future__ import annotations

import re
from math import gcd

import numpy as np
import pytest

from symconfig.descriptor.load import load_model
from symconfig.descriptor.mesh import Mesh, MeshLevel
from symconfig.graph import dims as d
from symconfig.graph.model import blocks, mixer_pieces
from symconfig.graph.operator import Operator
from symconfig.graph.program.fold import fold
from symconfig.graph.program.net import Net, net
from symconfig.graph.program.of_model import program
from symconfig.graph.scheme import Scheme
from symconfig.resources import data_dir
from tests.solve.partition.strategies import Way, named_rows, way

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


@pytest.mark.parametrize("model", MODELS)
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
        assert a is not None
        assert b is not None
        assert all(np.array_equal(a[x], b[y]) for x, y in zip(whole.node_of, small.node_of, strict=True))
