"""What is said of a folder that was read: by what it says of its own run."""

from __future__ import annotations

from pathlib import Path

import pytest

from symconfig.runs.checkpoint import Loadable, Verdict, of_folder, read
from tests.runs.checkpoint.cases import dense, experts, plan
from tests.runs.checkpoint.cases_deepspeed import ZERO
from tests.runs.checkpoint.cases_deepspeed import plan as deepspeed_plan
from tests.runs.checkpoint.folders import deepspeed, torch_dist


def says(said: Loadable) -> str:
    return " ".join(reason.text for reason in said.reasons)


@pytest.mark.parametrize("version", ["0.9.5", "0.10.3", "0.16.2+b344c04d", "0.19.8", "0.20.0", "master"])
def test_any_release_of_deepspeed(tmp_path: Path, version: str) -> None:
    """Also a source build's, and those that this project does not know."""
    folder = read(deepspeed(tmp_path / "it", dp=2, stage=1, ds_version=version))
    assert of_folder(folder, deepspeed_plan(dp=2, **ZERO[1])).verdict is Verdict.AS_IS


SIZES = {
    "num_layers": 4,
    "hidden_size": 64,
    "ffn_hidden_size": 96,
    "num_attention_heads": 4,
    "seq_length": 64,
    "global_batch_size": 8,
    "tensor_model_parallel_size": 1,
    "pipeline_model_parallel_size": 1,
    "data_parallel_size": 2,
}


@pytest.mark.parametrize(("said", "verdict"), [
    (None, Verdict.AS_IS), (0, Verdict.AS_IS), (4, Verdict.NO)])  # fmt: skip
def test_experts_do_not_load_into_a_dense_model(tmp_path: Path, said: int | None, verdict: Verdict) -> None:
    folder = read(torch_dist(tmp_path / "it", inside=True, num_experts=said, **SIZES))
    assert of_folder(folder, plan(dp=2, model=dense())).verdict is verdict


def test_a_dense_checkpoint_is_upcycled(tmp_path: Path) -> None:
    folder = read(torch_dist(tmp_path / "it", inside=True, **SIZES))
    assert "every expert starts as a copy" in says(of_folder(folder, plan(dp=2, model=experts())))
