"""What the stage solver may choose is what can be said to Megatron, cut for cut, for every version's rules."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate, combinations_with_replacement, pairwise

import numpy as np
import pytest

from symconfig.solve.split import plainest
from symconfig.solve.stages import Chunks, StageProblem, family
from tests.sample_models import sample_model
from tests.solve.naive import limits_of
from tests.solve.test_stages import sample

SHAPES = ((3, 2, 1), (5, 2, 2), (4, 4, 1), (7, 3, 1), (6, 3, 2), (4, 2, 3))


def every_cut(problem: StageProblem) -> Iterator[Chunks]:
    sequence = problem.sequence
    for places in combinations_with_replacement(range(len(sequence) + 1), problem.pp * problem.vpp - 1):
        yield tuple(sequence[start:end] for start, end in pairwise((0, *places, len(sequence))))


def chosen(problem: StageProblem, chunks: Chunks) -> bool:
    ends = np.array([*accumulate(map(len, chunks), initial=0)])
    return bool(problem.allowed(np.arange(len(chunks)), ends[:-1], ends[1:]).all())


@pytest.mark.parametrize("version", ["core_v0.12.1", "core_v0.13.0", "core_v0.14.0", "core_v0.19.0", "main"])
@pytest.mark.parametrize("predictions", [0, 1])
@pytest.mark.parametrize(("layers", "pp", "vpp"), SHAPES)
def test_the_solver_chooses_what_can_be_said(version: str, predictions: int, layers: int, pp: int, vpp: int) -> None:
    model = sample_model("deepseek-v3", num_nextn_predict_layers=predictions)
    problem = replace(
        sample(0),
        pp=pp,
        vpp=vpp,
        layouts=limits_of("megatron", version, model).layouts,
        sequence=("embedding", *("dense",) * layers, *("mtp",) * predictions, "head"),
    )
    free = problem.layouts.any_cut and vpp == 1
    families = set() if free else set(family(problem.sequence, pp, vpp, problem.layouts))
    for chunks in every_cut(problem):
        can, sayable = (
            chosen(problem, chunks) if free else chunks in families,
            plainest(pp, chunks, problem.layouts) is not None,
        )
        assert sayable if can else not sayable or vpp > 1 or not all(chunks), chunks
