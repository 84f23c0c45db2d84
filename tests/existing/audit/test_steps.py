"""The way from a run to the best plan, change by change; small configurations that people's reports led to."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

from symconfig.api import existing
from symconfig.api.planning import plan as planned
from symconfig.descriptor.job import Limits
from symconfig.descriptor.load import load_cluster
from symconfig.existing.audit.audit import Audit, audit
from symconfig.existing.audit.steps import DECISIONS, WITH_FRAMEWORK, changes
from symconfig.existing.recover.run import Supplied
from symconfig.graph.implementation import LossKernel
from symconfig.graph.model import parameters
from symconfig.solve.prospect import Setup
from symconfig.units import GIB
from tests.existing.audit.support import CASES, OVERLAPS, SEVENTY, audited, reading


@cache
def of_128(line: str) -> Audit:
    return audited(line, 128)


@pytest.mark.parametrize("line", [SEVENTY, f"{SEVENTY} {OVERLAPS}"])
def test_the_gains_multiply_to_the_whole_gain(line: str) -> None:
    found = of_128(line)
    now, best = found.judged.plan.best.predicted.step_s, found.better.best.predicted.step_s
    assert found.gain == pytest.approx(1 - best / now)
    assert math.prod(1 - step.gain for step in found.way) == pytest.approx(best / now, rel=1e-9)
    assert found.way[-1].step_s == pytest.approx(best, rel=1e-9)
    assert found.way[-1].fits
    assert all(step.changes for step in found.way)


def test_the_best_plan_is_the_planners_own_where_the_run_has_its_kernels() -> None:
    found = of_128(f"{SEVENTY} {OVERLAPS}")
    own = planned("llama3.1-70b", "h100", 128, 256, 8192, top=1)
    assert found.better.best == own.best


def test_a_run_that_is_the_best_plan_has_no_way_to_go() -> None:
    own = planned("llama2-13b", "a100-80gb", 16, 64, 4096, top=1)
    found = audited(" ".join(own.megatron_args()), 16, "llama2-13b", "a100-80gb")
    assert found.way == ()
    assert found.gain == pytest.approx(0.0, abs=1e-12)


def test_a_run_that_does_not_fit_is_first_led_to_where_it_does() -> None:
    line = SEVENTY.replace(" --recompute-granularity full --recompute-method uniform --recompute-num-layers 1", "")
    found = audited(line.replace("--micro-batch-size 1", "--micro-batch-size 8"), 128)
    assert not found.judged.fits
    assert not found.runs
    assert "out-of-memory" in {finding.rule for finding in found.findings if finding.severity == "error"}
    assert found.gain is None
    fits = [step.fits for step in found.way]
    assert fits[-1]


def test_every_field_of_a_configuration_is_a_decision_or_given() -> None:
    given = {"dp", "natural_routing", "global_batch", "seq_length", "packing", "backend", "version"}
    decided = {field for fields in DECISIONS.values() for field in fields} | {*WITH_FRAMEWORK}
    named = {*Setup.__dataclass_fields__}
    assert decided | given == named
    assert not decided & given


SMALL = (
    "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 1024 --max-position-embeddings 1024 "
    "--micro-batch-size {micro} --global-batch-size 64 --bf16 --mock-data --vocab-size 50304 "
    "--tokenizer-type NullTokenizer --tensor-model-parallel-size {tp} --pipeline-model-parallel-size {pp} {more}"
)


@pytest.mark.parametrize(
    ("tp", "pp", "micro", "more"),
    [
        (1, 1, 2, ""),
        (8, 1, 1, "--use-distributed-optimizer"),
        (2, 2, 4, "--sequence-parallel --overlap-grad-reduce"),
        (1, 4, 1, "--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather"),
        (4, 2, 1, "--recompute-granularity full --recompute-method block --recompute-num-layers 40"),
    ],
)
def test_every_step_on_the_way_changes_time_or_memory(tp: int, pp: int, micro: int, more: str) -> None:
    found = audit(
        reading(SMALL.format(tp=tp, pp=pp, micro=micro, more=more)), Supplied(gpus=8), load_cluster("h100"), Limits()
    )
    before = found.judged.plan.best.predicted
    points = [(before.step_s, before.device_bytes), *((step.step_s, step.device_bytes) for step in found.way)]
    assert all(one != other for one, other in pairwise(points))
    assert found.way[-1].step_s == pytest.approx(found.better.best.predicted.step_s)


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


@pytest.mark.parametrize(("vpp", "named"), [(1, "full 3/stage"), (2, "full 3/chunk")])
def test_recomputed_layers_are_those_of_a_virtual_stage(vpp: int, named: str) -> None:
    """Megatron-LM, core/transformer/transformer_block.py, _checkpointed_forward: of the layers of each model chunk."""
    now = of_128(SEVENTY).judged.run.configuration
    then = replace(now, vpp=vpp, recompute_method="block", recompute_layers=3)
    assert f"recompute full -> {named}" in changes(now, then)
