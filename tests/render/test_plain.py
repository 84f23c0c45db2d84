"""Templates, which may be a user's, are given plain values, and reach nothing but them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from symconfig.descriptor.load import load_cluster, load_model
from symconfig.errors import InputError, SymconfigError
from symconfig.plans.plan import Plan
from symconfig.render import every_launcher, fill, render, targets
from symconfig.render.fill import plain
from tests.sample_plans import learning_plan, sample_plan

PLAIN = (dict, list, str, int, float, bool, type(None))


def plans() -> list[Plan]:
    """Of these, every target can carry one."""
    alone = {"tp": 1, "pp": 1, "dp": 8, "sequence_parallel": False, "overlap_pp_p2p": False}
    return [
        sample_plan(),
        sample_plan(backend="deepspeed"),
        sample_plan(load_model("qwen2.5-7b-lora"), backend="deepspeed"),
        sample_plan(**alone),
        sample_plan(cluster=load_cluster("ascend-910b"), version="core_v0.12.1"),
        sample_plan(load_model("llama3.1-8b"), **alone, zero_stage=3),
        *(learning_plan(backend=backend) for backend in ("megatron", "deepspeed", "fsdp")),
        *(learning_plan(backend=backend, away=("weights", "optimizer state")) for backend in ("megatron", "fsdp")),
    ]


def within(value: Any, place: str) -> Iterator[tuple[str, Any]]:
    """Yield a value and all that it holds, keys too, with where it is."""
    yield place, value
    items = value.items() if type(value) is dict else enumerate(value) if type(value) is list else ()
    for key, item in items:
        yield f"{place}: a key", key
        yield from within(item, f"{place}.{key}")


def test_all_that_templates_are_given_is_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of every target and launcher, as Jinja itself gets it."""
    seen = set()

    def text_of(templates: object, folders: object, name: str, values: dict[str, Any]) -> str:
        other = [(place, type(each)) for place, each in within(values, "") if type(each) not in PLAIN]
        assert other == []
        seen.add(name)
        return ""

    monkeypatch.setattr(fill, "_text_of", text_of)
    for name, source in targets().items():
        for plan in plans():
            try:
                source.files(plan)
            except SymconfigError:
                continue
            break
        else:
            raise AssertionError(name)
    monkeypatch.undo()
    files = render(sample_plan(), "megatron", ())
    monkeypatch.setattr(fill, "_text_of", text_of)
    for source in every_launcher().values():
        source.with_settings({}).files(sample_plan(), files)
    assert {"launch.sh.j2", "train.sh.j2", "REPORT.md.j2", "sbatch.sh.j2", "pytorchjob.yaml.j2"} <= seen


class _Number(int):
    pass


class _Text(str):
    __slots__ = ()


@dataclass(frozen=True, slots=True)
class _Pair:
    one: object
    _own: object = None

    @property
    def two(self) -> object:
        return (self.one, 2)


@pytest.mark.parametrize("value", [len, "".join, object(), b"bytes", _Pair, {1, 2}, (each for each in ())])
def test_what_is_not_plain_is_refused_with_its_place(value: object) -> None:
    with pytest.raises(InputError, match=r"notes\.first: templates are not given such a value"):
        plain({"first": value}, "notes")
