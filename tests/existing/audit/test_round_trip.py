"""Plan -> rendered files -> audit: the same plan again, field by field, with the same prediction."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest

from symconfig.descriptor.job import Job
from symconfig.descriptor.load import load_cluster, load_model, zoo_models
from symconfig.existing.audit.audit import audit
from symconfig.existing.launch.read import read
from symconfig.existing.recover.run import Supplied
from symconfig.plans.plan import Plan
from symconfig.render import own_target, render
from symconfig.render.files import write
from symconfig.runs.best import best_plan
from tests.zoo_limits import NOT_IN_MEGATRON
from tools.verify.real import jobs

FOR_PEOPLE = {"name", "source", "notes", "huggingface_id", "model_type", "torch_dtype", "max_position_embeddings"}


@dataclass(frozen=True)
class Case:
    cluster: str
    gpus: int
    batch: int
    seq: int
    pins: dict[str, str] = field(default_factory=dict)
    backend: Literal["megatron", "deepspeed"] | None = None


CASES: dict[str, tuple[Case, ...]] = {
    "deepseek-v3": (Case("h200", 512, 2048, 4096, {"tp": "2", "pp": "16"}),),
    "glm-4.5": (Case("h100", 512, 1024, 4096, {"tp": "2", "pp": "8", "ep": "16"}),),
    "glm-4.5-air": (Case("h200", 64, 256, 4096, {"tp": "1", "pp": "2", "ep": "8"}),),
    "gpt-oss-120b": (Case("h100", 64, 256, 4096, {"tp": "1", "pp": "1"}),),
    "gpt3-175b": (Case("a100-80gb", 128, 256, 2048, {"tp": "8", "pp": "8", "vpp": "3", "recompute": "full"}),),
    "llama2-13b": (
        Case("a100-80gb", 16, 64, 4096, {"zero": "3"}),
        Case("h100", 8, 64, 4096, {"cp": "2"}),
        Case("h100", 8, 32, 4096, {"tp": "4"}, "deepspeed"),
    ),
    "llama2-70b": (Case("a100-80gb", 64, 128, 4096, {"recompute": "full", "pp": "8"}),),
    "llama2-70b-lora": (Case("a100-80gb", 8, 16, 4096),),
    "llama2-7b": (
        Case("l40s", 8, 32, 2048),
        Case("a100-40gb", 4, 32, 2048, {"optimizer_offload": "0.5"}),
        Case("h100", 8, 16, 2048, {"precision": "fp8"}),
        Case("a100-80gb", 8, 16, 2048, {"cp": "2"}, "deepspeed"),
    ),
    "llama3.1-405b": (Case("h100", 1024, 512, 8192, {"tp": "8", "pp": "16", "vpp": "8"}),),
    "llama3.1-70b": (
        Case("h100", 128, 256, 8192, {"tp": "4", "pp": "8", "vpp": "1"}),
        Case("mi300x", 64, 128, 8192, {"tp": "8", "pp": "1"}),
    ),
    "llama3.1-8b": (
        Case("h100", 64, 512, 8192),
        Case("b200", 8, 64, 8192, {"precision": "mxfp8"}),
        Case("b200", 16, 64, 8192, {"tp": "2", "user_buffers": "on", "cuda_graphs": "all"}),
        Case("h100", 16, 64, 8192, {"precision": "fp8", "fp8_param_gather": "on", "grad_dtype": "bf16"}),
        Case("h100", 8, 32, 8192, {"zero": "3"}, "deepspeed"),
    ),
    "mixtral-8x22b": (Case("h100", 128, 256, 4096, {"pp": "4", "ep": "8"}),),
    "mixtral-8x7b": (Case("h100", 64, 256, 4096, {"ep": "8"}), Case("h100", 16, 32, 4096, {"ep": "4"}, "deepspeed")),
    "qwen-7b": (Case("a100-80gb", 8, 64, 2048),),
    "qwen-7b-lora": (Case("rtx4090", 4, 16, 2048),),
    "qwen1.5-72b": (Case("h100", 64, 128, 4096, {"tp": "8"}),),
    "qwen2.5-72b": (Case("h200", 64, 128, 4096, {"tp": "4", "pp": "1"}),),
    "qwen2.5-7b": (Case("h100", 16, 64, 4096, {"sp": "off", "tp": "2"}),),
    "qwen2.5-7b-lora": (Case("l40s", 8, 64, 4096),),
    "qwen3-235b-a22b": (Case("h100", 256, 512, 4096, {"tp": "2", "pp": "8"}),),
    "qwen3-30b-a3b": (
        Case("h100", 32, 256, 4096, {"activation_offload": "on", "ep": "8", "pp": "1"}),
        Case("h200", 32, 256, 4096, {"ep": "8", "dispatcher": "deepep", "cuda_graphs": "outside_experts"}),
    ),
    "qwen3-32b": (Case("h100", 32, 128, 4096, {"recompute": "selective:mlp", "pp": "2"}),),
    "llama3.2-1b": (Case("l40s", 8, 64, 4096, {}, "deepspeed"),),
    "llama3.2-3b": (Case("h100", 8, 64, 8192, {}, "deepspeed"),),
    "qwen3-4b": (Case("h100", 8, 64, 4096),),
    "qwen3-8b": (Case("h100", 16, 64, 4096),),
    "mistral-7b": (Case("h100", 16, 64, 4096),),
    "mistral-small-24b": (Case("h100", 32, 64, 4096, {"tp": "4"}),),
    "phi-4": (Case("h100", 16, 64, 4096, {"tp": "2"}),),
    "gemma2-9b": (Case("h100", 16, 64, 4096, backend="deepspeed"),),
    "gemma3-27b": (Case("h100", 32, 64, 4096, backend="deepspeed"),),
    "deepseek-v3.2": (Case("h100", 512, 512, 4096, {"pp": "8", "ep": "16"}),),
    "qwen3-next-80b-a3b": (Case("h100", 64, 128, 4096, {"ep": "8", "pp": "2"}),),
    "qwen3.5-27b": (Case("h100", 32, 64, 4096, {"tp": "4", "pp": "2"}),),
    "nemotron-h-56b": (Case("h100", 64, 64, 4096, {"tp": "8"}),),
    "nemotron-3-nano-30b-a3b": (Case("h100", 32, 64, 4096, {"ep": "8", "pp": "1"}),),
    "granite-4.0-h-small": (Case("h200", 32, 64, 4096, backend="deepspeed"),),
    "olmo2-32b": (Case("h200", 32, 64, 4096, backend="deepspeed"),),
    "smollm3-3b": (Case("h100", 8, 64, 4096),),
    "seed-oss-36b": (Case("h100", 64, 64, 4096, {"tp": "8"}),),
}


# A model that names no case has the job at which `python -m tools verify real` builds it.
BUILT = {
    job["model"]: (
        Case(job["cluster"], job["gpus"], job["global_batch_size"], job["seq_length"], backend=job.get("backend")),
    )
    for job in jobs()
    if job["model"] not in NOT_IN_MEGATRON
}


def test_every_model_of_the_zoo_makes_the_round_trip() -> None:
    assert set(BUILT | CASES) >= set(zoo_models()) - set(NOT_IN_MEGATRON)
    assert set(BUILT | CASES) <= set(zoo_models())


@pytest.mark.parametrize(
    ("model", "case"),
    [(model, case) for model, cases in (BUILT | CASES).items() for case in cases],
    ids=lambda value: value if isinstance(value, str) else f"{value.cluster}-{value.gpus}",
)
def test_an_audit_of_rendered_files_gives_the_plan_back(model: str, case: Case, tmp_path: Path) -> None:
    plan = _planned(model, case)
    write(render(plan, own_target(plan)), tmp_path / "out")
    reading = read(str(tmp_path / "out" / "launch.sh"))
    assert reading.complete, reading.unread
    found = audit(reading, Supplied(), plan.cluster, plan.job.limits, plan=False)
    assert not found.unpredicted
    assert found.judged is not None
    assert found.judged.run.described.zoo == model
    _same_model(found.judged.plan, plan)
    mine, theirs = found.judged.plan.best, plan.best
    assert mine.target == theirs.target
    assert mine.configuration == theirs.configuration
    assert mine.stages == theirs.stages
    assert mine.predicted == theirs.predicted
    asked_for = {"no-sequence-parallelism"} if case.pins.get("sp") == "off" else set()
    # What a pin asks for may be unusual.
    said = {finding.rule for finding in found.findings if finding.severity != "note" or not case.pins}
    assert said == asked_for


def _planned(model: str, case: Case) -> Plan:
    """Return the plan, without the comparisons with others that a person is also shown."""
    backend = {} if case.backend is None else {"backend": case.backend}
    job = Job(
        model=model,
        cluster=case.cluster,
        gpus=case.gpus,
        global_batch_size=case.batch,
        seq_length=case.seq,
        pins=case.pins,
        **backend,
    )
    return best_plan(load_model(model), load_cluster(case.cluster), job, top=1)


def _same_model(found: Plan, plan: Plan) -> None:
    fields = set(type(plan.model).model_fields) - FOR_PEOPLE
    assert found.model.model_dump(include=fields) == load_model(plan.job.model).model_dump(include=fields)
