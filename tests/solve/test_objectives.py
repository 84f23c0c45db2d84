"""Precisions, packing and expert imbalance: what changes a plan besides its degrees."""

from __future__ import annotations

from typing import Any

import pytest

from symconfig.descriptor.job import Job, Packing
from symconfig.descriptor.load import load_cluster, load_model
from symconfig.errors import InputError
from symconfig.plans.plan import Plan
from symconfig.solve.search import search


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
