"""A descriptor that `model_copy(update=…)` makes is the one that the same values make, whatever was asked before."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import pytest

from symconfig.descriptor.load import load_cluster, load_model
from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.strict import Strict
from symconfig.graph.model import parameters
from symconfig.runs.sweep.job import Ids

DERIVED = [name for name, value in vars(ModelDescriptor).items() if isinstance(value, cached_property)]
CHANGES: list[tuple[str, dict[str, Any]]] = [
    ("llama3.1-8b", {"num_hidden_layers": 16}),
    ("mixtral-8x7b", {"experts": None}),
    ("gemma3-27b", {"sliding_window": None, "sliding_window_pattern": None}),
]


def asked(model: ModelDescriptor) -> list[object]:
    return [getattr(model, name) for name in DERIVED]


@pytest.mark.parametrize(("name", "change"), CHANGES)
@pytest.mark.parametrize("deep", [False, True])
def test_nothing_that_was_worked_out_before_is_kept(name: str, change: dict[str, Any], deep: bool) -> None:
    model = load_model(name)
    asked(model)
    copied = model.model_copy(update=change, deep=deep)
    fresh = ModelDescriptor.model_construct(**{field: getattr(copied, field) for field in ModelDescriptor.model_fields})
    assert asked(copied) == asked(fresh) != asked(model)
    assert parameters(copied) == parameters(fresh) != parameters(model)


def test_a_section_inside_a_descriptor_forgets_as_well() -> None:
    class Section(Strict):
        size: int

        @cached_property
        def double(self) -> int:
            return 2 * self.size

    first = Section(size=2)
    assert first.double == 4
    assert first.model_copy(update={"size": 3}).double == 6
    assert first.double == 4


def test_ids_of_sweeps_are_those_of_the_descriptor_and_not_of_its_place_in_memory() -> None:
    """Of descriptors that are made and dropped in turn, most lie where one lay before."""
    ids, cluster, model = Ids(), load_cluster("h100"), load_model("llama3.1-8b")
    found = set()
    for layers in range(1, 21):
        found.add(ids.of({}, model.model_copy(update={"num_hidden_layers": layers}), cluster))
    assert len(found) == 20
