"""What is said of a folder that was read: by what it says of its own run."""

from __future__ import annotations

from pathlib import Path

import pytest

from symconfig.checkpoint import Loadable, Verdict, of_folder, read
from tests.checkpoint.cases_deepspeed import ZERO
from tests.checkpoint.cases_deepspeed import plan as deepspeed_plan
from tests.checkpoint.folders import deepspeed


def says(said: Loadable) -> str:
    return " ".join(reason.text for reason in said.reasons)


@pytest.mark.parametrize("version", ["0.9.5", "0.10.3", "0.16.2+b344c04d", "0.19.8", "0.20.0", "master"])
def test_any_release_of_deepspeed(tmp_path: Path, version: str) -> None:
    """Also a source build's, and those that this project does not know."""
    folder = read(deepspeed(tmp_path / "it", dp=2, stage=1, ds_version=version))
    assert of_folder(folder, deepspeed_plan(dp=2, **ZERO[1])).verdict is Verdict.AS_IS
