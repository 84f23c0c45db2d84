"""Precisions, packing, expert imbalance, attention kernels and near batches: what changes a plan besides degrees."""

from __future__ import annotations

from typing import Any

import pytest

import symconfig
from symconfig.api.planning import PlanResult
from symconfig.descriptor.job import Job, Packing
from symconfig.descriptor.load import load_cluster, load_model
from symconfig.errors import InfeasibleError, InputError
from symconfig.plans.plan import Plan
from symconfig.plans.sentences import batch_nearby
from symconfig.solve.search import search
from tests.sample_models import sample_cluster
from tests.solve.naive import job, tiny


def plan(model: str = "llama3.1-8b", cluster: str = "h100", gpus: int = 16, batch: int = 64, **more: Any) -> Plan:
    job = Job.model_validate(
        {"model": model, "cluster": cluster, "gpus": gpus, "global_batch_size": batch, "seq_length": 4096, **more}
    )
    return search(load_model(model), load_cluster(cluster), job)


def test_low_precision_is_faster_and_is_refused_where_the_gpu_has_none() -> None:
    assert plan(precision="fp8").best.predicted.step_s < plan(precision="bf16").best.predicted.step_s
    with pytest.raises(InputError, match=r"has no fp8 .*need one of bf16, fp16\)"):
        plan(cluster="a100-80gb", precision="fp8")


def test_a_gpu_without_bf16_trains_in_fp16() -> None:
    assert plan(model="qwen2.5-7b", cluster="v100-16gb", gpus=64).best.configuration.precision == "fp16"


def test_packed_documents_attend_to_themselves_only() -> None:
    whole, packed = plan(), plan(packing=Packing(lengths=(512, 1024), weights=(1.0, 1.0)))
    assert packed.best.predicted.step_s < whole.best.predicted.step_s
    one = plan(packing=Packing(lengths=(4096,)))
    assert one.best.predicted.step_s == pytest.approx(whole.best.predicted.step_s)


def test_a_real_run_comes_first_and_a_benchmark_that_forces_balance_second() -> None:
    assert plan().best.predicted.balanced_step_s is None
    shown = plan(model="mixtral-8x7b", gpus=64, pins={"ep": "8"}).best.predicted
    assert shown.balanced_step_s is not None
    assert 1.02 < shown.step_s / shown.balanced_step_s < 1.5


def test_a_stated_imbalance_is_planned_for() -> None:
    balanced = plan(model="mixtral-8x7b", gpus=64)
    skewed = plan(model="mixtral-8x7b", gpus=64, limits={"expert_imbalance": 2.0})
    assert skewed.best.predicted.step_s > balanced.best.predicted.step_s


PINS = {"pp": 1, "cp": 1, "mbs": 1, "recompute": "none", "activation_offload": "false"}


def planned(**fields: Any) -> PlanResult:
    given = {"model": "llama2-13b", "cluster": "a100-80gb", "gpus": 16, "global_batch_size": 64, "seq_length": 2048}
    return symconfig.plan(**{**given, **fields})


@pytest.mark.parametrize(
    ("backend", "tp", "zero", "element_bytes"),
    [
        ("megatron", 4, 1, 2),  # the softmax's result, over which the scores were written
        ("deepspeed", 1, 3, 2 + 4 + 2),  # scores, softmax in fp32, its result in 16 bits
    ],
)
def test_scores_in_memory_cost_time_and_memory(backend: str, tp: int, zero: int, element_bytes: int) -> None:
    """Over 4 % of the time: of so few tokens, flash attention's tiles beyond those attended to are a part, too."""
    pins = {**PINS, "tp": tp, "zero": zero, "optimizer_offload": 0}
    flash, unfused = (
        planned(backend=backend, attention=kernel, gpus=32, pins=pins).best for kernel in ("flash", "unfused")
    )
    assert unfused.configuration == flash.configuration
    assert unfused.predicted.step_s > 1.04 * flash.predicted.step_s
    scores = 40 * 40 / tp * 2048**2 * element_bytes  # of 40 layers and 40 heads over tp
    assert unfused.predicted.peak_bytes - flash.predicted.peak_bytes == pytest.approx(scores, rel=0.35)


@pytest.mark.parametrize("backend", ["megatron", "deepspeed"])
def test_context_parallelism_goes_with_flash_only(backend: str) -> None:
    with pytest.raises(InfeasibleError, match="needs flash attention"):
        planned(backend=backend, attention="unfused", pins={"cp": 2})


def test_what_the_gpu_does_not_have_is_not_promised() -> None:
    with pytest.raises(InputError, match="not there for this GPU"):
        planned(cluster="v100-16gb", attention="flash")


MODEL = tiny()


@pytest.mark.parametrize(
    ("gpus", "batch", "dp", "better"),
    [
        (16, 100, 4, 96),  # 16 replicas, and 104 would have 8
        (16, 98, 2, 96),
        (16, 96, 16, None),  # as many as can be
        (16, 100, 1, None),  # the plan has far fewer than it may
        (16, 12, 4, None),  # 16 is no batch close by
        (8, 63, 1, 64),
    ],
)
def test_a_batch_close_by_that_more_replicas_share_is_named(gpus: int, batch: int, dp: int, better: int | None) -> None:
    plan = search(MODEL, sample_cluster(), job(gpus, batch, pins={"dp": str(dp)}))
    said, replicas = batch_nearby(plan), f"{dp} replica{'s' if dp > 1 else ''}"
    shared = f"at most {replicas} of {gpus} GPUs, {better} by up to {gpus}. Try: --global-batch-size {better}"
    assert said is None if better is None else said is not None and shared in said
