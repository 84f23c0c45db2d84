"""DeepSpeed's own program recomputes the first layers of a model, as many as it must."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import symconfig
from symconfig.errors import InfeasibleError


def test_deepspeeds_own_program_recomputes_no_more_layers_than_it_must(tmp_path: Path) -> None:
    """Adapters of 70B on 64 GPUs left three quarters of each GPU empty while all layers ran again."""
    job = {"model": "llama2-70b-lora", "cluster": "h100", "gpus": 64, "global_batch_size": 64, "top": 1}
    some, every = (symconfig.plan(**job, pins=pins) for pins in ({"zero": "3"}, {"zero": "3", "recompute": "full"}))
    recompute = some.best.configuration.recompute
    assert (recompute.method, 0 < (recompute.num_layers or 0) < 80) == ("block", True)
    assert some.best.predicted.step_s < 0.9 * every.best.predicted.step_s
    some.write(tmp_path / "out")
    assert f"--recompute-layers={recompute.num_layers}" in (tmp_path / "out" / "launch.sh").read_text()
    judged = symconfig.audit(tmp_path / "out" / "launch.sh", "h100", plan=False).judged
    assert judged is not None
    assert judged.plan.best.predicted == some.best.predicted
    with pytest.raises(InfeasibleError, match="Transformers recomputes all layers or none"):
        some.write(tmp_path / "other", target="transformers")


def test_the_trainer_recomputes_each_nth_layer_in_shards_of_fsdp(tmp_path: Path) -> None:
    """All layers of 8B on 64 GPUs ran again at a third of their memory, since none left 0.3 GiB too little."""
    job = {"model": "llama3.1-8b", "cluster": "a100-80gb", "gpus": 64, "global_batch_size": 64, "seq_length": 8192}
    made = symconfig.plan(**job, backend="fsdp", top=1)
    again = made.best.configuration.recompute
    assert (again.method, again.num_layers) == ("block", 3)
    made.write(tmp_path / "out")
    arguments = json.loads((tmp_path / "out" / "training_args.json").read_text())
    assert arguments["activation_checkpointing_kwargs"] == {"every_n_layers": 11}
    shards = (tmp_path / "out" / "accelerate_config.yaml").read_text()
    assert "fsdp_activation_checkpointing: false" in shards
    launched = symconfig.audit(
        tmp_path / "out" / "launch.sh", "a100-80gb", plan=False, model="llama3.1-8b", seq_length=8192
    ).judged
    assert launched is not None
    assert launched.plan.best.predicted.step_s == pytest.approx(made.best.predicted.step_s, rel=1e-3)
    with pytest.raises(InfeasibleError, match="all layers or none"):
        made.write(tmp_path / "other", target="llamafactory")
