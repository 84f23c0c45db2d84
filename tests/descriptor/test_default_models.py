"""Families of transformers: whether each is read, and which targets can be told its default model."""

from __future__ import annotations

from symconfig.descriptor.architectures.class_defaults import families
from tools.families import COLUMNS, cells, every


def test_every_family_is_read_or_refused_with_a_reason() -> None:
    found = {one.name: one for one in every()}
    assert set(families()) <= set(found)
    for one in found.values():
        assert (one.model is None) == bool(one.refused)
        assert len(cells(one)) == len(COLUMNS)


def test_targets_are_those_that_can_be_told() -> None:
    found = {one.name: one for one in every()}
    llama, bloom = found["llama"], found["bloom"]
    assert all(llama.can(target) for target in ("megatron", "bridge", "deepspeed", "llamafactory"))
    assert bloom.can("deepspeed")
    assert not bloom.can("megatron")
    assert {problem.field for problem in bloom.cannot["megatron"]} >= {"position", "embedding_norm"}
