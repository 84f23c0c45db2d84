"""A processor without 16-bit floats, a machine without a compiler: what DeepSpeed can train there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import processor

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
