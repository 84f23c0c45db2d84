"""A plan with a published run's options as pins has validate's step and bytes, or what no pin says is named."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from symconfig.descriptor.job import Job
from symconfig.frameworks.behaviour import options
from symconfig.frameworks.extras import in_effect, put_on
from symconfig.measured.judge import Judged, judge
from symconfig.plans.configuration import Configuration
from symconfig.solve.predict import predict
from symconfig.solve.run import usual_of
from symconfig.solve.search import search
from tests.measured.support import published

# What rows state of kernels and no pin says, and what of a framework sources have of their own.
NO_PIN = {"fp8_activation_store", "fp8_attention", "adapters", "loss", "attention", "dispatcher", "routing"}
OWN = {"implementation", "bytes", "hide", "attention_rate", "gathers"}
ROWS = {
    "mlperf_v41_llama2_70b_lora": (
        "mlperf41-lora70b-nvidia-h200-ngc24.09-nemo",
        "mlperf41-lora70b-dell-xe9680x8h200-sxm-141gb",
    ),
    "mlperf_v51_llama31_8b": None,
    "moe_modelzoo_recipes": None,
}

PLAIN = Configuration(micro=1, global_batch=1, seq_length=1)


def _rows() -> list[Judged]:
    found = []
    for source, wanted in ROWS.items():
        for name, file in published(source):
            rows = [row for row in file.rows if wanted is None or row.id in wanted]
            found += [judge(name, row) for row in rows[:3]]
    return found


def test_a_published_run_pinned_option_by_option_is_validates() -> None:
    compared = 0
    for judged in _rows():
        case = judged.case
        c, gpu = case.configuration, case.cluster.gpu
        # Some only fit with what no pin says: the figures are compared on a GPU with more memory.
        roomy = gpu.memory_bytes.model_copy(update={"value": 4 * gpu.memory_bytes.value})
        cluster = case.cluster.model_copy(update={"gpu": gpu.model_copy(update={"memory_bytes": roomy})})
        d = extras = c
        if c.backend != "megatron" or c.stage_layout:
            continue
        modules = f"selective:{','.join(c.recompute_modules)}" if c.recompute == "selective" else c.recompute
        pins = {name: str(getattr(d, name)) for name in ("tp", "pp", "vpp", "cp", "ep", "etp")}
        pins |= {"mbs": str(c.micro), "zero": str(c.zero_stage), "precision": c.precision, "recompute": modules}
        pins |= {"optimizer_offload": "0", "activation_offload": "0", "layout": "equal"}
        pins |= {
            "user_buffers": "on" if extras.overlap_tp_comm else "off",
            "cuda_graphs": extras.cuda_graphs.replace(" ", "_"),
        }
        pins |= {
            "dispatcher": extras.moe_flex_backend or "alltoall",
            "moe_overlap": "on" if extras.overlap_moe_a2a else "off",
        }
        pins |= {"grad_dtype": {2: "bf16", 4: "fp32"}[extras.grad_bytes]}
        pins |= {"fp8_param_gather": "on" if extras.fp8_param_gather and c.zero_stage else "off"}
        pins |= {"fused_loss": "on" if extras.fused_loss else "off"}
        pins |= {"sp": str(int(c.sequence_parallel))} if d.tp > 1 else {}
        pins |= {"cp_comm": c.cp_comm} if d.cp > 1 else {}
        limits = {"memory_margin": 0.0, "memory_risk": 1.0, "expert_imbalance": 1.0}
        job = Job.model_validate(
            {"model": case.model.name, "cluster": cluster.name, "gpus": d.world_size, "pins": pins, "limits": limits,
             "global_batch_size": c.global_batch, "seq_length": c.seq_length, "backend": "megatron",
             "megatron_version": "core_v0.17.1"}
        )  # fmt: skip
        plan = search(case.model, cluster, job, top=1)
        framework = put_on(
            usual_of(cluster, job, c.precision), cluster.gpu.architecture, in_effect(plan.best.configuration), PLAIN
        )
        mine, theirs = options(framework.implementation), options(c.framework.implementation)
        assert {name for name in mine if mine[name] != theirs[name]} <= NO_PIN, judged.row.id
        unlike = {
            one.name for one in fields(framework) if getattr(framework, one.name) != getattr(c.framework, one.name)
        }
        assert unlike <= OWN, judged.row.id
        again = predict(case.model, cluster, replace(c, framework=framework)).predicted
        assert plan.best.predicted.step_s == pytest.approx(again.step_s, rel=1e-3), judged.row.id
        assert plan.best.predicted.device_bytes == pytest.approx(again.device_bytes, rel=1e-3), judged.row.id
        compared += 1
    assert compared >= 3
