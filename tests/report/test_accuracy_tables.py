"""The tables of accuracy say in words what each source is."""

from __future__ import annotations

from pathlib import Path

import pytest

from symconfig.measured.read import read
from symconfig.measured.score import source
from symconfig.report.validation import to_dict
from tests.measured.support import file_of, run_text
from tools.accuracy_record import about
from tools.accuracy_tables import markdown

NOTHING = {"left_out": [], "unseen": [], "ratios": [], "covered": {}}


def tables(path: Path) -> str:
    """The tables of the runs in the file."""
    files = read([str(path)])
    scores = [source(name, content) for name, content in files]
    sources = [
        {**figures, "about": about(content, each)}
        for figures, (_, content), each in zip(to_dict(scores)["sources"], files, scores, strict=True)
    ]
    return markdown({"sources": sources, **NOTHING})


def test_a_source_is_named_by_what_was_run_on_what(tmp_path: Path) -> None:
    rows = (run_text("a", "{step_s: 8.8}"), run_text("b", "{step_s: 9.9}", tp=4, dp=4))
    path = file_of(tmp_path, *rows)
    where = "{title: A paper, paper: 'arXiv:2205.05198', repository: else/where}"
    text = path.read_text(encoding="utf-8")
    assert "source: " in text
    path.write_text("\n".join(f"source: {where}" if line.startswith("source:") else line for line in text.splitlines()))
    (model,) = {row.model.name for row in read([str(path)])[0][1].rows}
    line = next(line for line in tables(path).splitlines() if line.startswith("| korthikanti2022 | "))
    for said in (
        f"pretraining of {model} (",
        " parameters)",
        "x a100-sxm4-80gb",
        "A paper, [arXiv:2205.05198](https://arxiv.org/abs/2205.05198)",
    ):
        assert said in line, said
    assert "else/where" not in line


ABOUT = {
    "title": "T",
    "paper": None,
    "repository": None,
    "tasks": ["pretrain"],
    "models": ["M"],
    "parameters": [8e9, 8e9],
    "software": [],
    "gpu_types": ["h100"],
    "gpus": [8, 8],
}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "pretraining of M (8 B parameters) | 8 x h100 | T |"),
        ({"tasks": ["sft", "lora"]}, "fine-tuning and LoRA of M "),
        ({"models": list("abcde"), "parameters": [5e8, 1.2e12]}, "of 5 models (500 M to 1.2 T parameters)"),
        ({"models": list("abc")}, "of a, b and c ("),
        ({"software": ["megatron", "other"]}, " with Megatron-LM and other | "),
        ({"gpu_types": [], "gpus": [8, 2048]}, "| 8 to 2,048 GPUs that it does not name |"),
        ({"gpu_types": ["h100", "b200"], "gpus": None}, "| h100 and b200 |"),
        ({"repository": "a/b; c/d (dev)"}, "T, [a/b](https://github.com/a/b), [c/d](https://github.com/c/d) (dev) |"),
        ({"paper": "a book"}, "T, a book |"),
    ],
)
def test_what_is_not_stated_is_left_out(changes: dict[str, object], said: str) -> None:
    empty = {"rows": 1, "time": None, "layer": None, "memory": None, "oom": None, "sweeps": [], "growths": []}
    part = {"rows": 0, "time": None, "layer": None, "memory": None, "oom": None}
    record = {
        "sources": [{"name": "s", **empty, "stated": part, "assumed": part, "about": ABOUT | changes}],
        **NOTHING,
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
    text = markdown({"sources": [], **NOTHING, "ratios": ratios, "covered": {"dense": 0.9}})
    assert (
        "| step time, dense models | 3 | 5 % in the median, 12 % at worst | 12.5 % | 100.0 % (two) | 90.0 % |" in text
    )
    assert (
        "| step time, mixtures of experts | 1 | 12 % in the median, 20 % at worst | 50.0 % | 50.0 % (one) |  |" in text
    )
