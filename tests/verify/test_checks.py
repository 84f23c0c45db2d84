"""A folder through every check that applies, scripts run dry among them: what is skipped, what fails, and why."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from symconfig.api import files as api
from symconfig.errors import InputError
from symconfig.plans.file import load_plan
from symconfig.plans.plan import Plan
from symconfig.render import manifest, render, targets
from symconfig.render import render as render_for
from symconfig.render.files import Files, write
from symconfig.report.verify import checked as blocks
from symconfig.resources import MARKER
from symconfig.verify import checks, megatron_source, shell
from symconfig.verify.checks import Check, Options
from tests.sample_plans import learning_plan, sample_plan
from tests.sample_rl import LEARNING

pytestmark = pytest.mark.usefixtures("warm_megatron")

STILL: dict[str, Any] = {"tp": 1, "pp": 1, "dp": 8, "sequence_parallel": False, "recompute": "none"}


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
    said = [(check.name, check.status) for check in found]
    assert said == [("first", "passed"), ("bad", "failed"), ("last", "passed")]
    assert "RuntimeError: out of luck" in found[1].detail


@pytest.mark.usefixtures("warm_deepspeed")
@pytest.mark.parametrize("target", ["megatron", "deepspeed"])
def test_files_for_another_target_than_the_plan_s_are_held_against_that_target(tmp_path: Path, target: str) -> None:
    other = "deepspeed" if target == "megatron" else "megatron"
    plan = sample_plan("qwen2.5-7b", "h100", backend=other, **STILL)
    write(render_for(plan, target), tmp_path / "out")
    found = [check.name for check in checks.verify(tmp_path / "out")]
    assert any("ds_config.json" in name for name in found) == (target == "deepspeed")
    assert any("options of Megatron-LM" in name for name in found) == (target == "megatron")
    text = (tmp_path / "out" / "REPORT.md").read_text(encoding="utf-8")
    assert "was made for the other framework" in text


def _plan_folder(tmp_path: Path, target: str = "megatron") -> Path:
    plan = sample_plan("qwen2.5-7b", "h100", backend="megatron" if target == "megatron" else "deepspeed", **STILL)
    files = render_for(plan, target)
    write(Files((*files, manifest.manifest(files, target, ("slurm",), None))), tmp_path / "out")
    return tmp_path / "out"


def _edit(folder: Path, name: str, place: Path) -> None:
    path = folder / name
    line = f"__import__('pathlib').Path({str(place)!r}).touch()" if name.endswith(".py") else f"touch {place}"
    first, _, rest = path.read_text().partition("\n") if path.exists() else ("", "", "")
    path.write_text(f"{first}\n{line}\n{rest}")


@pytest.mark.usefixtures("no_megatron", "warm_deepspeed")
@pytest.mark.parametrize("how", ["edited", "forged", "without a manifest"])
@pytest.mark.parametrize(
    ("target", "name"), [("megatron", "launch.sh"), ("megatron", "sbatch.sh"), ("deepspeed", "train.py")]
)
def test_an_edited_program_is_not_run_unless_it_is_asked_for(tmp_path: Path, target: str, name: str, how: str) -> None:
    folder, place = _plan_folder(tmp_path, target), tmp_path / "ran"
    _edit(folder, name, place)
    record = folder / manifest.NAME
    if how == "forged":
        known = json.loads(record.read_text())
        known["files"][name] = hashlib.sha256((folder / name).read_bytes()).hexdigest()
        record.write_text(json.dumps(known))
    elif how != "edited":
        record.unlink()
    found = checks.verify(folder)
    assert not place.exists()
    said = [check for check in found if "--run-edited" in check.detail]
    assert {check.status for check in said} == {"skipped" if how == "forged" else "failed"}
    assert all(name in check.detail for check in said)
    with pytest.raises(InputError, match="runs programs of the folder"):
        checks.verify(folder, build=True)
    checks.verify(folder, run_edited=True)
    assert place.exists() == name.endswith(".sh")  # a trainer runs under --build alone


@pytest.mark.usefixtures("no_megatron")
def test_what_is_not_symconfig_s_in_the_folder_is_not_run(tmp_path: Path) -> None:
    """Scripts run where no module of another can stand in Python's way."""
    folder, place = _plan_folder(tmp_path), tmp_path / "ran"
    plan = load_plan(folder)
    files = render_for(plan, "megatron", ("ray", "slurm"))
    write(Files((*files, manifest.manifest(files, "megatron", ("ray", "slurm"), None))), folder, force=True)
    for name in ("json.py", "os.py", "sitecustomize.py", "yaml.py"):
        _edit(folder, name, place)
    found = by_name(checks.verify(folder))
    assert found["ray.sh with DRY_RUN=1"].status == "passed"
    assert not place.exists()


@pytest.mark.usefixtures("no_megatron")
def test_a_folder_that_was_cut_off_is_not_verified(tmp_path: Path) -> None:
    folder = _plan_folder(tmp_path)
    (folder / MARKER).touch()
    with pytest.raises(InputError, match="in part only"):
        checks.verify(folder)
    assert subprocess.run(["bash", "launch.sh"], cwd=folder, capture_output=True, check=False).returncode == 2


def test_a_package_that_is_not_here_is_skipped_and_the_last_line_says_how_to_install_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(folder: Path, plan: Plan, options: Options) -> Iterator[Check]:
        yield Check("first", "failed", "ModuleNotFoundError: No module named 'no_such_package'", 0.0)
        yield Check("second", "failed", "ModuleNotFoundError: No module named 'symconfig.nothing'", 0.0)
        raise ModuleNotFoundError("No module named 'no_such_package'")

    modules: dict[str, Any] = {"one": SimpleNamespace(applies=lambda plan: True, checks=absent)}
    monkeypatch.setattr(checks, "frameworks", lambda: modules)
    found = checks.verify(folder)
    assert [check.status for check in found] == ["skipped", "failed", "skipped"]
    last = str(blocks(folder, found)[-1])
    assert last.startswith(
        "1 failed, 2 skipped. Not checked: first, one (no_such_package is not installed: pip install"
    )
    assert "'symconfig[verify]'" in last


@pytest.mark.usefixtures("warm_deepspeed")
def test_without_accelerate_the_trainer_s_part_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = _plan_folder(tmp_path, "deepspeed")
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "accelerate" else real(name))
    found = by_name(checks.verify(folder))
    assert found["ds_config_hf.json: filled in by Trainer"].status == "skipped"
    assert checks.passed(list(found.values()))


@pytest.fixture
def of_bridge(tmp_path: Path) -> Path:
    api.write(sample_plan(version="core_v0.16.1"), tmp_path / "out", api.Wanted("bridge"), force=False)
    return tmp_path / "out"


def test_scripts_are_checked_and_the_frameworks_part_is_skipped(of_bridge: Path) -> None:
    found = {check.name: check for check in checks.verify(of_bridge)}
    skipped = found["megatron's own checks"]
    assert skipped.status == "skipped"
    assert "bridge" in skipped.detail
    assert found["launch.sh with DRY_RUN=1"].status == "passed"
    assert all(check.status != "failed" for check in found.values())


@pytest.mark.parametrize("asked", ["build", "trace"])
def test_ranks_of_such_a_folder_are_not_built(of_bridge: Path, asked: str) -> None:
    with pytest.raises(InputError, match=r"files for bridge.*--target megatron"):
        checks.verify(of_bridge, **{asked: True})  # type: ignore[arg-type]


@pytest.mark.parametrize("asked", ["build", "trace"])
def test_no_command_is_named_that_would_be_refused_again(tmp_path: Path, asked: str) -> None:
    plan = learning_plan({}, "megatron", targets()["verl"].learns.away[0])  # type: ignore[union-attr]
    files = render(plan, "verl")
    write(Files((*files, manifest.manifest(files, "verl", (), None))), tmp_path)
    with pytest.raises(InputError, match="files for verl") as error:
        checks.verify(tmp_path, **{asked: True})  # type: ignore[arg-type]
    assert error.value.problems[0].hint is None


def script(folder: Path, text: str, name: str = "launch.sh") -> Path:
    (folder / name).write_text("#!/usr/bin/env bash\n" + text, encoding="utf-8")
    return folder


def test_what_is_rendered_passes(tmp_path: Path) -> None:
    plan = sample_plan()
    for file in render(plan, "megatron"):
        (tmp_path / file.path).write_text(file.text, encoding="utf-8")
    found = list(shell.checks(tmp_path, plan, Options()))
    assert [check.status for check in found] == ["passed"] * 2, found


@pytest.mark.parametrize("target", LEARNING)
def test_scripts_of_trainers_run_dry_with_a_word_for_each_variable_that_they_need(target: str, tmp_path: Path) -> None:
    learns = targets()[target].learns
    plan = learning_plan({}, targets()[target].assumes["backend"], learns.away[0])
    files = render(plan, target)
    write(Files((*files, manifest.manifest(files, target, (), None))), tmp_path)
    found = list(shell.checks(tmp_path, plan, Options()))
    assert [check.status for check in found] == ["passed"] * len(found), found
    scripts = [path.name for path in tmp_path.glob("*.sh")]
    assert {check.name for check in found} == {f"{name} with DRY_RUN=1" for name in scripts}
    (tmp_path / scripts[0]).unlink()
    failed = [check.name for check in shell.checks(tmp_path, plan, Options()) if check.status == "failed"]
    assert failed == [f"{scripts[0]} is there"]


def test_a_missing_script_fails(tmp_path: Path) -> None:
    script(tmp_path, "echo word\n")
    found = {check.name: check for check in shell.checks(tmp_path, sample_plan(), Options())}
    assert found["sbatch.sh is there"].status == "failed"


def test_a_dry_run_that_hangs_or_fails_is_reported(tmp_path: Path) -> None:
    hung = shell.dry_run(script(tmp_path, "sleep 30\n"), "launch.sh", 0.5)
    assert (hung.status, hung.last_words) == (124, "did not end within 0 s")
    failed = shell.dry_run(script(tmp_path, "echo no such model >&2; exit 3\n"), "launch.sh", 10)
    assert (failed.status, failed.last_words) == (3, "no such model")


def test_a_dry_run_gives_what_the_script_exports_and_nothing_of_this_shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    ran = shell.dry_run(script(tmp_path, "export A='x y'\nB=hidden\nprintf '%q\\n' word\nexit 0\n"), "launch.sh", 10)
    assert dict(ran.exported) == {"A": "x y"}
    assert ran.words == ("word",)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="\0"), min_size=0, max_size=8),
        min_size=1,
        max_size=12,
    )
)
def test_words_come_back_as_bash_quoted_them(words: list[str]) -> None:
    printed = subprocess.run(
        ["bash", "-c", "printf '%q\\n' \"$@\"", "bash", *words],
        capture_output=True,
        env={"PATH": "/usr/bin:/bin", "LC_ALL": "C"},
        check=True,
    ).stdout
    assert shell.words(printed.decode(errors="surrogateescape")) == words
