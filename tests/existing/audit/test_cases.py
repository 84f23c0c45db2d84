"""Small configurations that people's reports led to, each with what is right of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from symconfig.api import existing
from symconfig.existing.audit.audit import Audit
from symconfig.graph.implementation import LossKernel
from symconfig.graph.model import parameters
from symconfig.units import GIB
from tests.existing.audit.support import CASES


def case(name: str, **more: object) -> Audit:
    return existing.audit(str(CASES / name), **{"cluster": "h100", "plan": False, **more})


@pytest.mark.parametrize(
    ("name", "model", "gpus"),
    [
        ("c27_gptj_fsdp.sh", str(CASES / "gptj.json"), 8),
        ("acc_custom.sh", None, 8),
        ("c33_s1_sft.sh", None, 16),
        ("trainer_fsdp.sh", None, 8),
    ],
)
def test_transformers_in_shards_of_fsdp_are_read_as_that(name: str, model: str | None, gpus: int) -> None:
    done = case(name, model=model)
    assert done.reader.backend == "fsdp"
    assert done.judged.plan.best.configuration.zero_stage == 3
    assert done.judged.plan.best.configuration.world_size == gpus
    unknown = [item.what for item in done.judged.run.assumed if "trains as" in item.value]
    assert unknown == (["that train.py"] if name == "acc_custom.sh" else [])


@pytest.mark.parametrize(
    ("more", "gib"),
    # The fused head keeps its input, of 0.25 GiB, whatever the loss, and Liger's makes as much of a chunk of logits.
    # The rest is the final norm's: its input in 16 bits where Liger's kernel makes it; else an fp32 copy, a quotient.
    [("", 1.0), ("--loss_type nll", 1.0), ("--loss_type dft", 1.0), ("--use_liger_kernel", 0.75)],
)
def test_trl_never_has_whole_logits(more: str, gib: float) -> None:
    done = case("trl_loss.sh", variables={"MORE": more})
    assert done.judged.fits
    assert done.judged.plan.best.predicted.memory["head and loss"] == pytest.approx(gib * GIB, rel=1e-3)


@pytest.mark.parametrize(
    ("said", "stage"),
    [
        ("fsdp_sharding_strategy: 1", 3),
        ("fsdp_sharding_strategy: SHARD_GRAD_OP", 2),
        ("fsdp_sharding_strategy: 5", 2),
        ("fsdp_version: 2\n  fsdp_reshard_after_forward: true", 3),
        ("fsdp_version: 2\n  fsdp_reshard_after_forward: false", 2),
        ("fsdp_sharding_strategy: 2\n  fsdp_offload_params: true", 2),
    ],
)
def test_weights_that_stay_gathered_are_zero_2(tmp_path: Path, said: str, stage: int) -> None:
    (tmp_path / "trl_loss.sh").write_text((CASES / "trl_loss.sh").read_text())
    plain = (CASES / "trl_loss.yaml").read_text().replace("  fsdp_offload_params: false\n", "")
    (tmp_path / "trl_loss.yaml").write_text(plain.replace("fsdp_sharding_strategy: 1", said))
    done = existing.audit(str(tmp_path / "trl_loss.sh"), cluster="h100", plan=False, variables={"MORE": ""})
    best = done.judged.plan.best
    assert best.configuration.zero_stage == stage
    if stage == 2:
        gathered = 2 * parameters(done.judged.run.described.model).total
        assert best.predicted.memory["weights"] == pytest.approx(gathered, rel=0.01)
        # on 8 GPUs: of weights in fp32, gradients and two moments, 16 bytes, 2 are of "gradients"
        state = 0.0 if "true" in said else (16 - 2) / 2 / 8 * gathered
        assert best.predicted.memory.get("optimizer state", 0.0) == pytest.approx(state, rel=0.01)


@pytest.mark.parametrize(
    ("more", "loss", "fits"),
    [
        ("", LossKernel.WIDE, False),
        ("--use_liger_kernel", LossKernel.LINEAR, True),
        ("--use_liger_kernel --liger_kernel_config {'fused_linear_cross_entropy':false}", LossKernel.IN_PLACE, True),
    ],
)
def test_liger_makes_the_loss_of_the_trainer_with_the_head(more: str, loss: LossKernel, fits: bool) -> None:
    done = case("acc_custom.sh", variables={"MORE": more})
    assert done.judged.run.configuration.framework.implementation.loss.kernel is loss
    assert done.judged.fits is fits


def test_adapters_of_experts_are_planned_for_ms_swift() -> None:
    full, fits = (case(name, cluster="rtx4090", plan=True) for name in ("c09_swift_lora_4x4090.sh", "c09b_ep4.sh"))
    assert [full.judged is not None and full.judged.fits, fits.judged is not None and fits.judged.fits] == [False, True]
    for done in (full, fits):
        assert done.infeasible is None
        assert done.better.device_bytes <= done.better.usable_bytes


@pytest.mark.parametrize("strategy", ["optim", "optim_grads", "optim_grads_params"])
def test_sharded_gradients_of_megatron_fsdp_are_whole_at_first(strategy: str) -> None:
    """Two GPUs; 32,346 MiB were measured with "optim". With the others what waits whole comes as activations go."""
    done = case("c38_mfsdp_zero.sh", cluster="a100-40gb", variables={"STRAT": strategy})
    best, total = done.judged.plan.best, parameters(done.judged.run.described.model).total
    memory = best.predicted.memory
    if strategy == "optim":
        assert memory["gradients"] == pytest.approx(4 * total, rel=0.01)
        assert best.predicted.peak_bytes == pytest.approx(32_346 * 2**20, rel=0.01)
        return
    waiting = 2 * (total if strategy == "optim_grads" else 1e9)
    beside = max(waiting - memory["activations"] - memory["head and loss"], 0.0)
    assert memory["gradients"] == pytest.approx(2 * total / 2 + beside, rel=0.01)
