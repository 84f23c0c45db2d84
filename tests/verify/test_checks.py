"""A folder through every check that applies: what is skipped, what fails, and that one failure stops no other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from symconfig.errors import InputError
from symconfig.plans.plan import Plan, Recompute
from symconfig.render import render as render_for
from symconfig.render.files import write
from symconfig.verify import checks, megatron_source
from symconfig.verify.checks import Check, Options
from tests.sample_plans import sample_plan


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for file in render_for(sample_plan(), "megatron"):
        (tmp_path / file.path).write_text(file.text, encoding="utf-8")
    return tmp_path


@pytest.fixture
def no_megatron(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(megatron_source, "find", lambda named=None: None)


def by_name(found: list[Check]) -> dict[str, Check]:
    return {check.name: check for check in found}


def test_frameworks_are_found_by_being_there() -> None:
    assert {"megatron", "shell"} <= set(checks.frameworks())
    assert "checks" not in checks.frameworks()


@pytest.mark.usefixtures("no_megatron")
def test_without_megatron_its_checks_are_skipped_with_the_command_and_the_rest_is_done(folder: Path) -> None:
    heard: list[str] = []
    found = checks.verify(folder, progress=heard.append)
    skipped = [check for check in found if check.name == "Megatron's own checks"]
    assert [check.status for check in skipped] == ["skipped"]
    assert checks.passed(found)
    assert by_name(found)["launch.sh with DRY_RUN=1"].status == "passed"
    assert heard


@pytest.mark.usefixtures("no_megatron")
def test_an_edited_file_fails_where_it_was_edited(folder: Path) -> None:
    path = folder / "megatron_args.txt"
    text = path.read_text()
    assert "--global-batch-size 64 " in text
    path.write_text(text.replace("--global-batch-size 64 ", "--global-batch-size 100 --nonsense "))
    found = by_name(checks.verify(folder))
    assert "--nonsense: is not an option" in found["options of Megatron-LM core_v0.19.0"].detail
    assert "dp 8 x micro-batch 1 does not divide the batch of 100" in found["what Megatron's parser lets pass"].detail
    assert "passes other arguments" in found["launch.sh with DRY_RUN=1"].detail
    assert not checks.passed(list(found.values()))


def test_without_a_launcher_megatron_is_not_asked_with_another_environment(folder: Path) -> None:
    (folder / "launch.sh").unlink()
    found = by_name(checks.verify(folder))
    assert found["Megatron's own checks"].status == "failed"
    assert "launch.sh ends with status 127" in found["Megatron's own checks"].detail


@pytest.mark.parametrize("missing", ["plan.json", "megatron_args.txt", None])
def test_a_folder_that_is_not_one_is_bad_input(folder: Path, missing: str | None) -> None:
    if missing is not None:
        (folder / missing).unlink()
    with pytest.raises(InputError):
        checks.verify(folder if missing is not None else folder / "nowhere")


def test_a_check_that_breaks_is_a_failed_check_and_the_next_module_still_runs(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(folder: Path, plan: Plan, options: Options) -> Iterator[Check]:
        yield Check("first", "passed", "", 0.0)
        raise RuntimeError("out of luck")

    def fine(folder: Path, plan: Plan, options: Options) -> list[Check]:
        return [Check("last", "passed", "", 0.0)]

    modules: dict[str, Any] = {
        "bad": SimpleNamespace(applies=lambda plan: True, checks=broken),
        "other": SimpleNamespace(applies=lambda plan: False, checks=broken),
        "good": SimpleNamespace(applies=lambda plan: True, checks=fine),
    }
    monkeypatch.setattr(checks, "frameworks", lambda: modules)
    found = checks.verify(folder)
    assert [(check.name, check.status) for check in found] == [
        ("first", "passed"),
        ("bad", "failed"),
        ("last", "passed"),
    ]
    assert "RuntimeError: out of luck" in found[1].detail


@pytest.mark.parametrize("target", ["megatron", "deepspeed"])
def test_files_for_another_target_than_the_plan_s_are_held_against_that_target(tmp_path: Path, target: str) -> None:
    other = "deepspeed" if target == "megatron" else "megatron"
    still: dict[str, Any] = {"tp": 1, "pp": 1, "dp": 8, "sequence_parallel": False, "recompute": Recompute("none")}
    plan = sample_plan("qwen2.5-7b", "h100", backend=other, **still)
    write(render_for(plan, target), tmp_path / "out")
    found = [check.name for check in checks.verify(tmp_path / "out")]
    assert any("ds_config.json" in name for name in found) == (target == "deepspeed")
    assert any("options of Megatron-LM" in name for name in found) == (target == "megatron")
    text = (tmp_path / "out" / "REPORT.md").read_text(encoding="utf-8")
    assert "was made for the other framework" in text
