"""Scripts run dry: findings, hangs, hostile words."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from symconfig.render import render, targets
from symconfig.render.files import Files, write
from symconfig.render.manifest import manifest
from symconfig.verify import shell
from symconfig.verify.checks import Options
from tests.sample_plans import learning_plan, sample_plan
from tests.sample_rl import LEARNING


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
    write(Files((*files, manifest(files, target, (), None))), tmp_path)
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
