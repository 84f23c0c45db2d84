"""Families of transformers: whether each is read, and which targets can be told its default model."""

from __future__ import annotations

import json

import pytest

from symconfig.descriptor.architectures.class_defaults import families
from symconfig.errors import InputError
from symconfig.report.families import COLUMNS, cells, described, structure
from symconfig.runs.families import default_model, every, family
from tests.cli.support import Run, run

__all__ = ["run"]


def test_every_family_is_read_or_refused_with_a_reason() -> None:
    found = {one.name: one for one in every()}
    assert set(families()) <= set(found)
    for one in found.values():
        assert (one.model is None) == bool(one.refused)
        assert described(one)
        assert len(cells(one)) == len(COLUMNS)


def test_targets_are_those_that_can_be_told() -> None:
    llama, bloom = family("llama"), family("bloom")
    assert all(llama.can(target) for target in ("megatron", "bridge", "deepspeed", "llamafactory"))
    assert bloom.can("deepspeed")
    assert not bloom.can("megatron")
    assert {problem.field for problem in bloom.cannot["megatron"]} >= {"position", "embedding_norm"}


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("llama", "multi-head attention; rope; gated MLP"),
        ("mamba2", "Mamba-2"),
        ("mixtral", "grouped-query attention; rope; 2 of 8 experts"),
        ("bloom", "multi-head attention; ALiBi; plain MLP; layernorm"),
    ],
)
def test_a_structure_is_said_in_a_few_words(kind: str, words: str) -> None:
    assert structure(default_model(kind)) == words


def test_a_name_that_is_none_has_a_hint() -> None:
    with pytest.raises(InputError, match="Try: qwen3_next"):
        family("qwen3_nxt")


def test_the_command_lists_them_and_shows_one(run: Run) -> None:
    told = run("list", "families").out
    assert "families are imported" in told
    shown = run("list", "families", "bloom").out
    assert "it has no ALiBi" in shown
    assert "deepspeed" in shown
    one = json.loads(run("list", "families", "bloom", "--json").out)
    assert one["schema"] == "symconfig.families/1"
    assert one["families"][0]["class"] == "BloomForCausalLM"
    assert "deepspeed" in one["families"][0]["targets"]
