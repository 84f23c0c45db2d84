"""Every small pipeline, told in every way, holds the layers that the real Megatron builds; none that it would lose."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from itertools import accumulate, product
from pathlib import Path
from typing import Any

import pytest

from symconfig.plans.pipeline_layout import dealt, written
from symconfig.verify import megatron_runner
from tests.verify.megatron_support import source

Medium = dict[str, Any]
ENDS = ("account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split")
COUNTS = ("num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage")


def pipelines() -> Iterator[tuple[int, int, int]]:
    yield from product(range(1, 17), range(2, 5), range(1, 4))


def cases() -> Iterator[Medium]:
    """Of each pipeline: the ends as layers or not, and all counts of the first and last stage."""
    for layers, pp, vpp in pipelines():
        shape = {
            "num_layers": layers,
            "pipeline_model_parallel_size": pp,
            "virtual_pipeline_model_parallel_size": vpp if vpp > 1 else None,
        }
        for ends in product((False, True), repeat=2):
            yield shape | dict(zip(ENDS, ends, strict=True))
        for counts in product((None, *range(1, 7)), repeat=2):
            if counts != (None, None):
                yield shape | dict(zip(COUNTS, counts, strict=True))


def asked(questions: list[Medium]) -> list[Any]:
    root, folder = source().root, Path(megatron_runner.__file__).parent
    command = [sys.executable, "-E", "-P", str(Path(__file__).with_name("stages_worker.py")), str(root), str(folder)]
    ended = subprocess.run(
        command, input=json.dumps(questions), capture_output=True, text=True, timeout=300, check=False
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    answers: list[Any] = json.loads(ended.stdout)
    return answers


def stages(sizes: tuple[int, ...], pp: int) -> list[list[list[int]]]:
    """As Megatron says it: first layer and number of layers, by stage and virtual stage."""
    firsts = list(accumulate(sizes, initial=0))
    return [[[firsts[chunk], sizes[chunk]] for chunk in range(stage, len(sizes), pp)] for stage in range(pp)]


@pytest.fixture(scope="module")
def real() -> list[tuple[Medium, Any]]:
    questions = list(cases())
    return list(zip(questions, asked(questions), strict=True))


def ours(told: Medium) -> tuple[int, ...] | None:
    return dealt(
        told["num_layers"],
        told["pipeline_model_parallel_size"],
        told["virtual_pipeline_model_parallel_size"] or 1,
        first=told.get(COUNTS[0]),
        last=told.get(COUNTS[1]),
        embedding=told.get(ENDS[0], False),
        loss=told.get(ENDS[1], False),
    )


def test_what_is_dealt_is_what_megatron_builds(real: list[tuple[Medium, Any]]) -> None:
    dealt_cases = [(told, answer, sizes) for told, answer in real if (sizes := ours(told)) is not None]
    assert len(dealt_cases) > 400
    for told, answer, sizes in dealt_cases:
        pp, vpp = told["pipeline_model_parallel_size"], told["virtual_pipeline_model_parallel_size"]
        if pp == 2 and vpp and None not in (told.get(name) for name in COUNTS):
            assert "ZeroDivisionError" in answer  # so that only the first of two stages is told
        else:
            assert answer == stages(sizes, pp), told


def test_what_is_not_dealt_megatron_refuses_or_loses(real: list[tuple[Medium, Any]]) -> None:
    for told, answer in real:
        if ours(told) is None and not isinstance(answer, str):
            held = sorted(layer for stage in answer for first, count in stage for layer in range(first, first + count))
            negative = any(count < 0 for stage in answer for _, count in stage)
            assert negative or held != list(range(told["num_layers"])), told


def test_layout_strings_are_what_megatron_builds() -> None:
    """Chunks of all sizes, also of none, with the embedding or the loss alone or not."""
    questions, expected = [], []
    for pp, vpp, shift in product((2, 3, 4, 8), (1, 2, 3), range(5)):
        sizes = tuple((7 * chunk + 3 * shift) % 5 // 2 for chunk in range(pp * vpp))
        if not sum(sizes):
            continue
        chunks = [("dense",) * size for size in sizes]
        chunks[0], chunks[-1] = ("embedding", *chunks[0]), (*chunks[-1], "head")
        questions.append(
            {
                "num_layers": sum(sizes),
                "pipeline_model_parallel_size": pp,
                "virtual_pipeline_model_parallel_size": vpp if vpp > 1 else None,
                "pipeline_model_parallel_layout": written(chunks),
            }
        )
        expected.append(stages(sizes, pp))
    for told, answer, wanted in zip(questions, asked(questions), expected, strict=True):
        assert answer == wanted, told
