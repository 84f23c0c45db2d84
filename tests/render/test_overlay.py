"""Templates of a user's own: over those of a target, beside them, and as targets of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from symconfig.errors import InputError
from symconfig.render import render
from symconfig.render.overlay import digest
from tests.sample_plans import sample_plan


def put(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def test_a_template_of_the_same_name_replaces_and_another_one_adds(tmp_path: Path) -> None:
    mine = put(tmp_path, {"megatron/launch.sh.j2": "#!/bin/sh\n# {{ model.name }}\n",
                          "megatron/notes/why.txt.j2": "tp {{ best.parallel.tp }}\n"})
    files, before = render(sample_plan(), "megatron", templates=mine), render(sample_plan(), "megatron")
    assert set(files.paths()) == {*before.paths(), "notes/why.txt"}
    assert files["launch.sh"] == "#!/bin/sh\n# llama2-13b\n"
    assert next(item for item in files if item.path == "launch.sh").executable
    assert files["notes/why.txt"].startswith("tp ")
    assert files["sbatch.sh"] == before["sbatch.sh"]


def test_a_template_may_extend_what_is_shared_and_one_that_gives_nothing_makes_no_file(tmp_path: Path) -> None:
    mine = put(tmp_path, {"deepspeed/none.txt.j2": "{% if model.adapter %}adapter{% endif %}\n",
                          "deepspeed/launch.sh.j2": '{% extends "base_launch.sh.j2" %}\n'
                          '{% block program %}\n    mine.py\n{% endblock %}\n'})
    files = render(sample_plan(backend="deepspeed"), "deepspeed", templates=mine)
    assert "none.txt" not in files.paths()
    assert "\nPROGRAM=(\n    mine.py\n" in files["launch.sh"]


def test_a_folder_with_target_yaml_is_a_target_of_its_own(tmp_path: Path) -> None:
    mine = put(tmp_path, {"ours/target.yaml": "base: megatron\ndoes: our own\n",
                          "ours/args.txt.j2": "{% for group in groups %}{{ group.name }} {% endfor %}\n"})
    files = render(sample_plan(), "ours", (), mine)
    assert files.paths() == ("plan.json", "args.txt")
    assert files["args.txt"].startswith("MODEL_ARGS ")


def test_a_folder_that_is_no_target_and_one_without_a_base_are_both_named(tmp_path: Path) -> None:
    mine = put(tmp_path, {"megatrom/launch.sh.j2": "", "ours/target.yaml": "base: bridges\n"})
    with pytest.raises(InputError) as caught:
        render(sample_plan(), "megatron", templates=mine)
    assert [problem.what for problem in caught.value.problems] == ["is neither a target nor a new one",
                                                                   "is not a target"]
    with pytest.raises(InputError, match="no such folder"):
        render(sample_plan(), "megatron", templates=tmp_path / "none")


def test_the_digest_knows_names_and_bytes(tmp_path: Path) -> None:
    mine = put(tmp_path / "a", {"megatron/x.j2": "1"})
    first = digest(mine)
    assert first == digest(put(tmp_path / "b", {"megatron/x.j2": "1"}))
    assert len({first, digest(put(tmp_path / "b", {"megatron/x.j2": "2"})), digest(None),
                digest(put(tmp_path / "c", {"megatron/y.j2": "1"}))}) == 4
