"""An audit finds nothing in the files of a plan: no error, no warning, no note."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from symconfig.descriptor.job import Job
from symconfig.descriptor.load import load_cluster, load_model
from symconfig.existing.audit.audit import audit
from symconfig.existing.launch.read import read
from symconfig.existing.recover.run import Supplied
from symconfig.render import own_target, render
from symconfig.render.files import write
from symconfig.runs.best import best_plan

JOBS: tuple[dict[str, Any], ...] = tuple(
    {"cluster": cluster, "precision": precision, "backend": backend, "task": task, "gpus": gpus}
    for backend, task, cluster, precision, gpus in (
        ("deepspeed", "pretrain", "h100", "bf16", 8),
        ("deepspeed", "pretrain", "a100-80gb", "fp16", 16),
        ("deepspeed", "sft", "h100", "bf16", 16),
        ("deepspeed", "lora", "h100", "bf16", 8),
        ("megatron", "pretrain", "a100-80gb", "bf16", 8),
        ("megatron", "pretrain", "h100", "fp8", 8),
        ("megatron", "pretrain", "b200", "mxfp8", 16),
        ("megatron", "pretrain", "h200", "fp16", 8),
        ("megatron", "sft", "h100", "bf16", 16),
    )
)


BRIDGE: tuple[dict[str, Any], ...] = tuple(
    {"cluster": "h100", "precision": "bf16", "task": task, "gpus": 8, "target": "bridge"}
    for task in ("pretrain", "sft", "lora")
)


@pytest.mark.parametrize("model", ["llama3.1-8b", "qwen3-30b-a3b"])
@pytest.mark.parametrize("job", JOBS + BRIDGE, ids=lambda job: "-".join(str(value) for value in job.values()))
def test_an_audit_finds_nothing_in_a_plans_files(model: str, job: dict[str, Any], tmp_path: Path) -> None:
    asked = Job(model=model, global_batch_size=64, seq_length=4096, **job)
    plan = best_plan(load_model(model), load_cluster(job["cluster"]), asked, top=1)
    write(render(plan, own_target(plan)), tmp_path / "out")
    found = audit(read(str(tmp_path / "out" / "launch.sh")), Supplied(), plan.cluster, plan.job.limits, plan=False)
    # What Megatron-Bridge's YAML cannot say is in train.py, which is not read.
    assert ["train.py" in str(problem) for problem in found.unpredicted] == [True] * (job in BRIDGE)
    assert found.findings == ()
