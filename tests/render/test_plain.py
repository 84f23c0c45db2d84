"""Templates, which may be a user's, are given plain values, and reach nothing but them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from symconfig.errors import InputError, SymconfigError
from symconfig.render import every_launcher, fill, render, targets
from symconfig.render.fill import plain
from tests.render.test_templates_page import plans
from tests.sample_plans import sample_plan

PLAIN = (dict, list, str, int, float, bool, type(None))


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
