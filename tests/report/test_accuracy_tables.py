"""The tables of accuracy: where a source was published, and what is reached of what is wanted."""

from __future__ import annotations

import pytest

from tools.accuracy_tables import markdown

EMPTY = {"sources": [], "left_out": [], "unseen": [], "ratios": [], "covered": {}}


@pytest.mark.parametrize(
    ("about", "said"),
    [
        ({}, "| s | T | 9 | 5.0 % | 7.0 % | +25.0 % |"),
        ({"repository": "a/b; c/d (dev)"}, "T, [a/b](https://github.com/a/b), [c/d](https://github.com/c/d) (dev) |"),
        ({"paper": "a book"}, "T, a book |"),
        (
            {"paper": "arXiv:2205.05198", "repository": "a/b"},
            "T, [arXiv:2205.05198](https://arxiv.org/abs/2205.05198) |",
        ),
    ],
)
def test_a_source_names_where_it_was_published_and_its_errors(about: dict[str, str], said: str) -> None:
    part = {"rows": 1, "time": None, "layer": None, "memory": None, "oom": None}
    source = {"name": "s", **part, "sweeps": [], "growths": [], "stated": part, "assumed": part}
    record = EMPTY | {
        "sources": [{**source, "about": {"title": "T", "paper": None, "repository": None} | about}],
        "unseen": [{"name": "s", "n": 9, "fitted": 0.05, "unseen": 0.07}],
        "ratios": [{"quantity": "time", "gpu": "hopper", "kind": "dense", "source": "s", "measured": [0.8]}],
    }
    assert said in markdown(record)


def test_targets_are_judged_by_the_median_and_the_worst_source_and_by_kind() -> None:
    ratios = [
        {"quantity": "time", "gpu": "hopper", "kind": kind, "source": source, "measured": measured}
        for kind, source, measured in (
            ("dense", "one", [1.0, 0.8]),
            ("dense", "two", [0.5]),
            ("dense", "three", [1.0]),
            ("experts", "one", [2.0]),
        )
    ]
    text = markdown(EMPTY | {"ratios": ratios, "covered": {"dense": 0.9}})
    assert (
        "| step time, dense models | 3 | 5 % in the median, 12 % at worst | 12.5 % | 100.0 % (two) | 90.0 % |" in text
    )
    assert (
        "| step time, mixtures of experts | 1 | 12 % in the median, 20 % at worst | 50.0 % | 50.0 % (one) |  |" in text
    )
