"""What tensor parallelism splits, told from structure: on the zoo's models as by the names that descriptors give."""

from __future__ import annotations

import pytest

from symconfig.descriptor.load import load_model
from symconfig.descriptor.mesh import Mesh, MeshLevel
from symconfig.graph import dims as d
from symconfig.graph.parts import parts
from symconfig.graph.program.fold import fold
from symconfig.graph.program.net import net
from symconfig.graph.program.of_model import program
from symconfig.graph.program.read import load_program
from symconfig.resources import data_dir
from symconfig.solve.partition.baselines import baseline
from symconfig.solve.partition.degrees import Way, way
from symconfig.solve.partition.roles import widths
from tests.solve.partition.programs import convolutions

MODELS = sorted(path.stem for path in (data_dir("model_zoo") / "models").glob("*.yaml"))
AXES = Mesh((MeshLevel("nvlink", 8, 1e11, 1e-6),)).axes()


@pytest.mark.parametrize("model", MODELS)
def test_structure_tells_what_names_tell(model: str) -> None:
    made = program(load_model(model), 16, 4096, vocab_multiple=128)
    dims = frozenset(made.sizes)
    found = widths(made, dims & {d.EXPERTS}, made.batch | {d.SEQUENCE})
    # The rank of adapters is made and summed away like any width. Columns of the multi-token prediction are not summed
    # away: what is made of them is gathered. Channels of a scan's convolution go with heads: nothing splits them alone.
    named = {loop for op in made.operators for split in op.splits for loop in split.loops}
    assert found.outside - {d.RANK} == dims & named & (frozenset(parts().tensor_dims) - {d.MTP_COLUMNS})
    assert found.inside == dims & frozenset(d.EXPERT_TENSOR_DIMS)


def test_a_convolution_has_no_stream_to_sum_into() -> None:
    made = convolutions()
    assert not widths(made, frozenset(), made.batch).outside


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        ("gpt3-1.3b", way(4, 1, 2, sequence_parallel=True, zero=1)),
        ("mixtral-8x7b", way(2, 1, 4, 4, 2, sequence_parallel=True, zero=1)),
    ],
)
def test_programs_with_names_of_their_own_take_megatrons_degrees(name: str, asked: Way) -> None:
    folding = fold(load_program(data_dir("model_zoo") / "programs" / f"{name}.yaml"))
    of = net(folding.program, folding.of, folding.runs)
    found = baseline(of, AXES, "megatron-tp", asked)
    assert found.rows is not None, found.why
    by_name = {node.name: [node.options[o].name for o in row] for node, row in zip(of.nodes, found.rows, strict=True)}
    split = {option for options in by_name.values() for option in options}
    assert {"a", "s", "b", "v", "f", "zero1"} <= split
    assert ("e" in split) == (asked.degrees.ep > 1)
