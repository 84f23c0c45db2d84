"""The page that sets uniform stages beside solved ones: on the zoo's quickest job, by the script that writes it."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import pytest

from tools import pipelines


@cache
def rows() -> list[Any]:
    """With several chunks on each stage and with one."""
    job = {"model": "llama2-7b", "cluster": "a100-80gb", "gpus": 16, "global_batch_size": 64, "seq_length": 4096}
    return [pipelines.row({**job, "pins": {"pp": "4", **pins}}) for pins in pipelines.TITLES.values()]


def test_uniform_stages_are_never_faster_than_solved_ones() -> None:
    for row in rows():
        assert row.uniform is not None
        assert row.gain >= -1e-12
        assert row.solved.found.degrees == row.uniform.found.degrees


def test_no_layout_of_the_stage_solver_beats_the_plan() -> None:
    for row in rows():
        assert row.solved.step_s == pytest.approx(row.planned_s, rel=1e-9)


def test_a_row_shows_both_layouts_as_megatron_spells_them() -> None:
    table = pipelines.markdown(rows()).splitlines()
    assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table}) == 1
    assert all("`E" in line and "L`" in line for line in table[2:])


def test_layers_that_do_not_divide_are_laid_out_uniformly_in_megatron_s_words() -> None:
    kinds = ("embedding", *("dense",) * 30, "head")
    split = pipelines.evenly(kinds, 4, 1)
    assert split is not None
    assert [len(chunk) for chunk in split.chunks] == [8, 8, 8, 8]
    split = pipelines.evenly(("embedding", *("dense",) * 61, "head"), 16, 1)
    assert split is not None
    assert (split.first_layers, split.last_layers) == (3, 2)
    assert pipelines.evenly(("embedding", *("dense",) * 32, "head"), 4, 3) is None
