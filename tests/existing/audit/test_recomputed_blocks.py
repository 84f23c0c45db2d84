"""More layers recomputed than a stage has: all of them are, as Megatron-LM does (transformer_block.py)."""

from __future__ import annotations

import pytest

from symconfig.api.existing import audit
from tests.existing.audit.corpus_cases import CORPUS

LINE = (CORPUS / "megatron" / "arguments.txt").read_text().replace("--recompute-activations", "").strip()


def step_and_peak(how: str) -> tuple[float, float]:
    judged = audit(f"{LINE} --recompute-granularity full {how}", "h100", 16, plan=False).judged
    return judged.plan.best.predicted.step_s, judged.plan.best.predicted.peak_bytes


@pytest.mark.parametrize("layers", [20, 22, 1000])
def test_a_block_of_all_layers_is_full_recompute(layers: int) -> None:
    whole = step_and_peak("--recompute-method uniform --recompute-num-layers 1")
    assert step_and_peak(f"--recompute-method block --recompute-num-layers {layers}") == pytest.approx(whole, rel=1e-3)
    part = step_and_peak("--recompute-method block --recompute-num-layers 10")
    assert part[0] < whole[0]
    assert part[1] > whole[1]
