"""DeepSpeed's own program recomputes the first layers of a model, as many as it must."""

from __future__ import annotations

from pathlib import Path

import pytest

import symconfig
from symconfig.errors import InfeasibleError


def test_deepspeeds_own_program_recomputes_no_more_layers_than_it_must(tmp_path: Path) -> None:
    """Adapters of 70B on 64 GPUs left three quarters of each GPU empty while all layers ran again."""
    job = {"model": "llama2-70b-lora", "cluster": "h100", "gpus": 64, "global_batch_size": 64, "top": 1}
    some, every = (symconfig.plan(**job, pins=pins) for pins in ({"zero": "3"}, {"zero": "3", "recompute": "full"}))
    recompute = some.best.options.recompute
    assert (recompute.method, 0 < (recompute.num_layers or 0) < 80) == ("block", True)
    assert some.best.predicted.step_s < 0.9 * every.best.predicted.step_s
    some.write(tmp_path / "out")
    assert f"--recompute-layers={recompute.num_layers}" in (tmp_path / "out" / "launch.sh").read_text()
    judged = symconfig.audit(tmp_path / "out" / "launch.sh", "h100", plan=False).judged
    assert judged is not None
    assert judged.plan.best.predicted == some.best.predicted
    with pytest.raises(InfeasibleError, match="Transformers recomputes all layers or none"):
        some.write(tmp_path / "other", target="transformers")
