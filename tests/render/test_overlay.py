"""Templates of a user's own: over those of a target, beside them, and as targets of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from symconfig.errors import InputError
from symconfig.render import fill, render
from symconfig.render.overlay import digest
from tests.sample_plans import sample_plan

ABOUT = "schema: symconfig.target/1\nbase: megatron\ndoes: our own\n"


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
            "megatron/notes/why.txt.j2": "tp {{ best.parallel.tp }}\n",
        },
    )
    files, before = render(sample_plan(), "megatron", templates=mine), render(sample_plan(), "megatron")
    assert set(files.paths()) == {*before.paths(), "notes/why.txt"}
    assert files["launch.sh"] == "#!/bin/sh\n# llama2-13b\n"
    assert next(item for item in files if item.path == "launch.sh").executable
    assert files["notes/why.txt"].startswith("tp ")
    assert files["sbatch.sh"] == before["sbatch.sh"]


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


def test_a_folder_with_target_yaml_is_a_target_of_its_own(tmp_path: Path) -> None:
    mine = put(
        tmp_path,
        {"ours/target.yaml": ABOUT, "ours/args.txt.j2": "{% for group in groups %}{{ group.name }} {% endfor %}\n"},
    )
    files = render(sample_plan(), "ours", (), mine)
    assert files.paths() == ("plan.json", "args.txt")
    assert files["args.txt"].startswith("MODEL_ARGS ")


def test_all_that_is_wrong_with_the_folders_is_said_at_once(tmp_path: Path) -> None:
    mine = put(
        tmp_path / "mine",
        {
            "megatrom/launch.sh.j2": "",
            "ours/target.yaml": ABOUT.replace("megatron", "megatrn") + "extra: 1\n",
            "theirs/target.yaml": ABOUT.replace("megatron", "megatrn"),
            "UP/target.yaml": ABOUT,
            "UP/a.j2": "",
            "deepspeed/target.yaml": ABOUT,
            "megatron/plan.json.j2": "{}",
            "megatron/a/plan.json.j2": "",
            ".git/x": "",
        },
    )
    (mine / "megatron" / "secret.j2").symlink_to("/etc/passwd")
    with pytest.raises(InputError) as caught:
        render(sample_plan(), "megatron", templates=mine)
    problems = caught.value.problems
    said = [(Path(str(problem.file)).relative_to(mine).as_posix(), problem.what) for problem in problems]
    assert said == [
        ("megatron/secret.j2", "is a symbolic link, and templates are read from this folder only"),
        ("megatron/plan.json.j2", "would stand in the place of a file that symconfig writes itself"),
        ("UP", "is no name of a target"),
        (
            "deepspeed/target.yaml",
            "there is a target 'deepspeed' already; without this file the folder's templates go over its own",
        ),
        ("megatrom", "is neither a target nor a new one"),
        ("ours/target.yaml", "unknown field"),
        ("theirs/target.yaml", "is not a target"),
        ("theirs", "has no template"),
    ]
    text = str(caught.value)
    assert "Try: megatron, or target.yaml in it" in text
    assert "target.yaml:2:7: base: is not a target (got 'megatrn', need" in text
    with pytest.raises(InputError, match="no such folder"):
        render(sample_plan(), "megatron", templates=tmp_path / "none")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("megatron/.j2", "is a template without a name before .j2"),
        ("megatron/trace.json/a.j2", "in the place of a file that symconfig writes itself"),
        ("megatron/launch.sh/x.txt.j2", "needs a folder where megatron writes the file launch"),
        ("megatron/sbatch.sh.j2", "sbatch.sh is written by megatron and by slurm"),
    ],
)
def test_templates_that_have_no_place_of_their_own_are_named(tmp_path: Path, name: str, said: str) -> None:
    mine = put(tmp_path, {name: "x\n"})
    with pytest.raises(InputError) as caught:
        render(sample_plan(), "megatron", templates=mine)
    (problem,) = caught.value.problems
    assert problem.file == str(mine / name)
    assert said in problem.what


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("a\n{{ grous }}", 2, "cannot be filled: 'grous' is undefined. Try: groups."),
        ("{{ best.parallell.tp }}", 1, "has no attribute 'parallell'; there is 'parallel'."),
        ("\n\n{{ model.hiden_size }}", 3, "has no attribute 'hiden_size'; there is 'hidden_size'."),
        ("{{ summary.stage }}", 1, "has no attribute 'stage'; there is 'stages'."),
        ("{% if %}", 1, "is no template: Expected an expression"),
        ("x\n{% for a in b %}", 2, "is no template: Unexpected end of template"),
        ("{{ 1 | nosuch }}", 1, "is no template: No filter named 'nosuch'"),
        ("{{ [1, 2] | random }}", 1, "is no template: No filter named 'random'"),
        ("{{ lipsum() }}", 1, "cannot be filled: 'lipsum' is undefined"),
        ("{{ ''.__class__.__mro__ }}", 1, "access to attribute '__class__' of 'str' object is unsafe"),
        ("{{ plan.to_json() }}", 1, "'dict object' has no attribute 'to_json'"),
        ("{% set _ = training.data_path.append(1) %}", 1, "cannot be filled: access to attribute 'append'"),
        ("{{ model.items | yaml }}", 1, "cannot be filled: "),
        ("{% include '../../../etc/passwd' %}", 1, "asks for a template that is not there: '../../../etc/passwd'"),
        ("{% include '/etc/passwd' %}", 1, "asks for a template that is not there: '/etc/passwd'"),
        ("{% extends 'none.j2' %}", 1, "asks for a template that is not there: 'none.j2'"),
        ("{% include 'bad.txt.j2' %}", 1, "maximum recursion depth"),
        ("{{ 1 + 'a' }}", 1, "unsupported operand"),
        ("\n{{ 1 // 0 }}", 2, "cannot be filled: integer division or modulo by zero"),
        ("{{ {}['a'] }}", 1, "has no attribute 'a'"),
        ("{{ range(10**9) | list }}", 1, "Range too big"),
    ],
)
def test_what_is_wrong_with_a_template_is_said_with_its_place(tmp_path: Path, text: str, line: int, said: str) -> None:
    mine = put(tmp_path, {"megatron/bad.txt.j2": text})
    with pytest.raises(InputError) as caught:
        render(sample_plan(), "megatron", templates=mine)
    (problem,) = caught.value.problems
    assert (problem.file, problem.line) == (str(mine / "megatron/bad.txt.j2"), line)
    assert said in str(problem)


def test_a_template_without_an_end_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fill, "MOST_LETTERS", 10**5)
    text = "{% for a in range(99999) %}{% for b in range(99999) %}{{ a }}{% endfor %}{% endfor %}"
    mine = put(tmp_path, {"megatron/bad.txt.j2": text})
    with pytest.raises(InputError, match="gives a file that is too large"):
        render(sample_plan(), "megatron", templates=mine)


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
