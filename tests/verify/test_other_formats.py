"""Folders of formats that neither framework reads itself: scripts are checked, and nothing is claimed of the rest."""

from __future__ import annotations

from pathlib import Path

import pytest

from symconfig.api.planning import Wanted, write
from symconfig.errors import InputError
from symconfig.verify.checks import verify
from tests.sample_plans import sample_plan


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(sample_plan(version="core_v0.16.1"), tmp_path / "out", Wanted("bridge"), force=False)
    return tmp_path / "out"


def test_scripts_are_checked_and_the_frameworks_part_is_skipped(folder: Path) -> None:
    found = {check.name: check for check in verify(folder)}
    skipped = found["megatron's own checks"]
    assert skipped.status == "skipped"
    assert "bridge" in skipped.detail
    assert found["launch.sh with DRY_RUN=1"].status == "passed"
    assert all(check.status != "failed" for check in found.values())


@pytest.mark.parametrize("asked", ["build", "trace"])
def test_ranks_of_such_a_folder_are_not_built(folder: Path, asked: str) -> None:
    with pytest.raises(InputError, match=r"files for bridge.*--target megatron"):
        verify(folder, **{asked: True})  # type: ignore[arg-type]
