"""A processor without 16-bit floats, a machine without a compiler: what DeepSpeed would refuse is left out, with the
reason."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import processor
from tests.render.deepspeed_support import Launcher, train
from tests.runs.checkpoint.cases_deepspeed import CASES
from tools.verify import training as verify_training
from tools.verify.checkpoints import deepspeed as real_deepspeed
from tools.verify.training.cases import CASES as STARTS

# Imported before anything else: an answer of oneDNN, which is what DeepSpeed's accelerator passes on.
SAYS = "import torch\ntorch.ops.mkldnn._is_mkldnn_fp16_supported = lambda: {answer}\n"


@pytest.fixture
def asked_anew() -> Iterator[None]:
    """Forget what was asked before, and what is asked here."""
    processor.precisions.cache_clear()
    yield
    processor.precisions.cache_clear()


@pytest.mark.parametrize(("answer", "fp16"), [(True, ""), (False, "DeepSpeed does not train in fp16 on this")])
def test_deepspeed_s_own_accelerator_is_asked(
    answer: bool, fp16: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked_anew: None
) -> None:
    pytest.importorskip("deepspeed")
    (tmp_path / "sitecustomize.py").write_text(SAYS.format(answer=answer), encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(processor, "unbuilt", lambda: "")
    assert processor.lacking("fp16").startswith(fp16)
    assert bool(processor.lacking("fp16")) is bool(fp16)
    assert not processor.lacking("fp32")


def test_without_a_compiler_deepspeed_trains_in_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-c++")
    assert processor.lacking("fp32").endswith("no-such-c++ is not here")


@pytest.fixture
def only_fp32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor, "precisions", lambda python="": frozenset({"fp32"}))
    monkeypatch.setattr(processor, "unbuilt", lambda: "")


def test_a_test_that_trains_is_skipped(only_fp32: None, tmp_path: Path) -> None:
    """Before anything is started: there is no launcher at all."""
    for precision in ("fp16", "bf16"):
        with pytest.raises(pytest.skip.Exception, match=f"does not train in {precision} on this machine"):
            train(tmp_path, {}, precision=precision)


def test_a_checkpoint_s_case_is_left_out(only_fp32: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = "ZeRO 1, bf16 to fp16"
    assert list(real_deepspeed.do({name: CASES[name]}, Launcher({}, tmp_path), tmp_path)) == []
    assert f"{name}: left out: DeepSpeed does not train in bf16" in capsys.readouterr().out


def test_a_format_s_start_is_left_out(
    only_fp32: None, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify_training.material, "prepare", lambda plan, folder: None)
    monkeypatch.setattr(verify_training.verify_formats, "python_of", lambda form, torch: "python")
    assert verify_training.outcomes(STARTS[0], ("deepspeed", "accelerate"), tmp_path, "") == []
    said = capsys.readouterr().out
    assert said.count("left out: DeepSpeed does not train in bf16") == 2
