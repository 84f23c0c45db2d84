"""Templates of a user's own, over those of a target and beside them: all are given plain values."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from symconfig.descriptor.load import load_cluster, load_model
from symconfig.errors import InputError, SymconfigError
from symconfig.plans.plan import Plan
from symconfig.render import every_launcher, fill, render, targets
from symconfig.render.fill import plain
from symconfig.render.manifest import digest
from symconfig.render.target import common
from tests.sample_plans import learning_plan, sample_plan


def put(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def test_a_template_of_the_same_name_replaces_and_another_one_adds(tmp_path: Path) -> None:
    mine = put(
        tmp_path,
        {
            "megatron/launch.sh.j2": "#!/bin/sh\n# {{ model.name }}\n",
            "megatron/notes/why.txt.j2": "tp {{ best.configuration.tp }}\n",
        },
    )
    files, before = render(sample_plan(), "megatron", templates=mine), render(sample_plan(), "megatron")
    assert set(files.paths()) == {*before.paths(), "notes/why.txt"}
    assert files["launch.sh"] == "#!/bin/sh\n# llama2-13b\n"
    assert next(item for item in files if item.path == "launch.sh").executable
    assert files["notes/why.txt"].startswith("tp ")
    assert files["sbatch.sh"] == before["sbatch.sh"]


def test_the_page_s_example_extends_and_its_table_is_of_what_all_templates_are_given(tmp_path: Path) -> None:
    page = Path(__file__).resolve().parents[2].joinpath("docs/reference/templates.md").read_text(encoding="utf-8")
    example = page.partition("```jinja\n")[2].partition("```")[0]
    mine = put(tmp_path, {"megatron/launch.sh.j2": example, "megatron/all.yaml.j2": "{{ best | yaml }}\n"})
    files = render(sample_plan(), "megatron", templates=mine)
    assert "\nmodule load cuda nccl\n" in files["launch.sh"]
    assert yaml.safe_load(files["all.yaml"])["configuration"]["tp"] == sample_plan().best.configuration.tp
    rows = re.findall(r"^\| (`.*?`) \|", page.partition("## What templates are given")[2], re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == set(common(sample_plan()))


def test_a_template_may_extend_what_is_shared_and_one_that_gives_nothing_makes_no_file(tmp_path: Path) -> None:
    mine = put(
        tmp_path,
        {
            "deepspeed/none.txt.j2": "{% if model.adapter %}adapter{% endif %}\n",
            "deepspeed/launch.sh.j2": '{% extends "base_launch.sh.j2" %}\n'
            "{% block program %}\n    mine.py\n{% endblock %}\n",
        },
    )
    files = render(sample_plan(backend="deepspeed"), "deepspeed", templates=mine)
    assert "none.txt" not in files.paths()
    assert "\nPROGRAM=(\n    mine.py\n" in files["launch.sh"]


def test_all_that_is_wrong_with_the_folders_is_said_at_once(tmp_path: Path) -> None:
    mine = put(tmp_path / "mine", {"megatrom/launch.sh.j2": "", "megatron/plan.json.j2": "{}", ".git/x": ""})
    with pytest.raises(InputError) as caught:
        render(sample_plan(), "megatron", templates=mine)
    said = [(Path(str(problem.file)).relative_to(mine).as_posix(), problem.what) for problem in caught.value.problems]
    assert said == [
        ("megatrom", "is no target"),
        ("megatron/plan.json.j2", "would stand in the place of a file that symconfig writes itself"),
    ]
    assert "Try: megatron" in str(caught.value)
    with pytest.raises(InputError, match="no such folder"):
        render(sample_plan(), "megatron", templates=tmp_path / "none")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("launch.sh/x.txt", "needs a folder where megatron writes the file launch.sh"),
        ("sbatch.sh", "is written by megatron and by slurm"),
    ],
)
def test_templates_that_have_no_place_of_their_own_are_named(tmp_path: Path, name: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        render(sample_plan(), "megatron", templates=put(tmp_path, {f"megatron/{name}.j2": "x\n"}))
    (problem,) = caught.value.problems
    assert problem.file == name
    assert said in problem.what


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("a\n{{ grous }}", 2, "cannot be filled: 'grous' is undefined"),
        ("{% if %}", 1, "is no template: Expected an expression"),
        ("{{ ''.__class__.__mro__ }}", 1, "access to attribute '__class__' of 'str' object is unsafe"),
        ("{{ plan.to_json() }}", 1, "'dict object' has no attribute 'to_json'"),
        ("{% set _ = training.data_path.append(1) %}", 1, "cannot be filled: access to attribute 'append'"),
        ("{% include '../../../etc/passwd' %}", 1, "there is no template ../../../etc/passwd"),
        ("\n{{ 1 // 0 }}", 2, "cannot be filled: integer division or modulo by zero"),
    ],
)
def test_what_is_wrong_with_a_template_is_said_with_its_place(tmp_path: Path, text: str, line: int, said: str) -> None:
    mine = put(tmp_path, {"megatron/bad.txt.j2": text})
    with pytest.raises(InputError) as caught:
        render(sample_plan(), "megatron", templates=mine)
    (problem,) = caught.value.problems
    assert (problem.file, problem.line) == (str(mine / "megatron/bad.txt.j2"), line)
    assert said in str(problem)


def test_the_digest_knows_names_and_bytes(tmp_path: Path) -> None:
    mine = put(tmp_path / "a", {"megatron/x.j2": "1"})
    first = digest(mine)
    assert first == digest(put(tmp_path / "b", {"megatron/x.j2": "1"}))
    assert (
        len(
            {
                first,
                digest(put(tmp_path / "b", {"megatron/x.j2": "2"})),
                digest(None),
                digest(put(tmp_path / "c", {"megatron/y.j2": "1"})),
            }
        )
        == 4
    )


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
