"""Plan -> rendered files -> audit: the same plan again, field by field, with the same prediction and price."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import cycle
from pathlib import Path
from typing import Any, Literal

import pytest

import symconfig
from symconfig.cost.framework import Framework
from symconfig.descriptor.job import Job
from symconfig.descriptor.load import load_cluster, load_model, zoo_models
from symconfig.errors import InfeasibleError
from symconfig.existing.audit.audit import audit
from symconfig.existing.launch.read import read
from symconfig.existing.recover.run import Supplied
from symconfig.frameworks.extras import in_effect, put_on
from symconfig.graph.implementation import LossKernel
from symconfig.plans.configuration import Configuration
from symconfig.plans.plan import Plan
from symconfig.render import own_target, render, targets
from symconfig.render.files import write
from symconfig.runs.best import best_plan
from symconfig.runs.rl.logits import BY_TARGET
from symconfig.solve.predict import predict
from symconfig.solve.run import usual_of
from tests.sample_rl import LEARNING, step
from tests.sampled import sampled
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
    job: dict[str, str] = field(default_factory=dict)


CASES: dict[str, tuple[Case, ...]] = {
    "deepseek-v3": (Case("h200", 512, 2048, 4096, {"tp": "2", "pp": "16"}),),
    "glm-4.5": (Case("h100", 512, 1024, 4096, {"tp": "2", "pp": "8", "ep": "16"}),),
    "glm-4.5-air": (Case("h200", 64, 256, 4096, {"tp": "1", "pp": "2", "ep": "8"}),),
    "gpt-oss-120b": (Case("h100", 64, 256, 4096, {"tp": "1", "pp": "1"}),),
    "gpt3-175b": (Case("a100-80gb", 128, 256, 2048, {"tp": "8", "pp": "8", "vpp": "3", "recompute": "full"}),),
    "llama2-13b": (Case("a100-80gb", 16, 64, 4096, {"zero": "3"}), Case("h100", 8, 64, 4096, {"cp": "2"}),
                   Case("h100", 8, 32, 4096, {"tp": "4"}, "deepspeed")),
    "llama2-70b": (Case("a100-80gb", 64, 128, 4096, {"recompute": "full", "pp": "8"}),),
    "llama2-70b-lora": (Case("a100-80gb", 8, 16, 4096),),
    "llama2-7b": (Case("l40s", 8, 32, 2048), Case("a100-40gb", 4, 32, 2048, {"optimizer_offload": "0.5"}),
                  Case("h100", 8, 16, 2048, {"precision": "fp8"}),
                  Case("a100-80gb", 8, 16, 2048, {"cp": "2"}, "deepspeed")),
    "llama3.1-405b": (Case("h100", 1024, 512, 8192, {"tp": "8", "pp": "16", "vpp": "8"}),),
    "llama3.1-70b": (Case("h100", 128, 256, 8192, {"tp": "4", "pp": "8", "vpp": "1"}),
                     Case("mi300x", 64, 128, 8192, {"tp": "8", "pp": "1"})),
    "llama3.1-8b": (Case("h100", 64, 512, 8192), Case("b200", 8, 64, 8192, {"precision": "mxfp8"}),
                    Case("b200", 16, 64, 8192, {"tp": "2", "user_buffers": "on", "cuda_graphs": "all"}),
                    Case("h100", 16, 64, 8192, {"precision": "fp8", "fp8_param_gather": "on", "grad_dtype": "bf16"}),
                    Case("h100", 8, 32, 8192, {"zero": "3"}, "deepspeed")),
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
}  # fmt: skip


# A model that names no case has the job at which `python -m tools verify real` builds it.
BUILT = {
    job["model"]: (
        Case(job["cluster"], job["gpus"], job["global_batch_size"], job["seq_length"], backend=job.get("backend")),
    )
    for job in jobs()
    if job["model"] not in NOT_IN_MEGATRON
}
# Tasks and precisions, of a dense model and of experts in turn.
KINDS = tuple(
    (model, Case(cluster, gpus, 64, 4096, {}, backend, {"task": task, "precision": precision}))
    for model, (backend, task, cluster, precision, gpus) in zip(
        cycle(("llama3.1-8b", "qwen3-30b-a3b")),
        (
            ("deepspeed", "pretrain", "h100", "bf16", 8), ("deepspeed", "pretrain", "a100-80gb", "fp16", 16),
            ("deepspeed", "sft", "h100", "bf16", 16), ("deepspeed", "lora", "h100", "bf16", 8),
            ("megatron", "pretrain", "a100-80gb", "bf16", 8), ("megatron", "pretrain", "h100", "fp8", 8),
            ("megatron", "pretrain", "b200", "mxfp8", 16), ("megatron", "pretrain", "h200", "fp16", 8),
            ("megatron", "sft", "h100", "bf16", 16),
        ),
        strict=False,
    )
)  # fmt: skip


def test_every_model_of_the_zoo_makes_the_round_trip() -> None:
    assert set(BUILT | CASES) >= set(zoo_models()) - set(NOT_IN_MEGATRON)
    assert set(BUILT | CASES) <= set(zoo_models())


@pytest.mark.parametrize(
    ("model", "case"),
    [
        *sampled(((model, case) for model, cases in (BUILT | CASES).items() for case in cases), 4),
        *sampled(KINDS, 3),
    ],
    ids=lambda one: one if isinstance(one, str) else "-".join((one.cluster, str(one.gpus), *one.job.values())),
)
def test_an_audit_of_rendered_files_gives_the_plan_back(model: str, case: Case, tmp_path: Path) -> None:
    plan = _planned(model, case)
    write(render(plan, own_target(plan)), tmp_path / "out")
    reading = read(str(tmp_path / "out" / "launch.sh"))
    assert reading.complete, reading.unread
    found = audit(reading, Supplied(), plan.cluster, plan.job.limits, plan=False)
    assert not found.unpredicted
    if case.job.get("task") != "lora":  # whose model has adapters of the job
        assert found.judged.run.described.zoo == model.removesuffix("-lora")
        fields = set(type(plan.model).model_fields) - FOR_PEOPLE
        if plan.model.model_type == "qwen":  # trains under the Qwen2 class, whose modules are named otherwise
            fields -= {"adapter"}
        assert found.judged.plan.model.model_dump(include=fields) == load_model(model).model_dump(include=fields)
    mine, theirs = found.judged.plan.best, plan.best
    assert (mine.target, mine.configuration) == (theirs.target, theirs.configuration)
    assert (mine.stages, mine.predicted) == (theirs.stages, theirs.predicted)
    asked_for = {"no-sequence-parallelism"} if case.pins.get("sp") == "off" else set()
    # What a pin asks for may be unusual.
    said = {finding.rule for finding in found.findings if finding.severity != "note" or not case.pins}
    assert said == asked_for


def _planned(model: str, case: Case, **more: Any) -> Plan:
    """Return the plan, without the comparisons with others that a person is also shown."""
    given: dict[str, Any] = {"cluster": case.cluster, "gpus": case.gpus, "pins": case.pins, **case.job, **more}
    given |= {} if case.backend is None else {"backend": case.backend}
    job = Job(model=model, global_batch_size=case.batch, seq_length=case.seq, **given)
    return best_plan(load_model(model), load_cluster(case.cluster), job, top=1)


@pytest.mark.parametrize(
    ("model", "task"), [("llama3.1-8b", "pretrain"), ("qwen3-30b-a3b", "sft"), ("llama3.1-8b", "lora")]
)
def test_an_audit_finds_nothing_in_files_for_bridge(model: str, task: str, tmp_path: Path) -> None:
    """What Megatron-Bridge's YAML cannot say is in train.py, which is not read."""
    plan = _planned(model, Case("h100", 8, 64, 4096), task=task, target="bridge")
    write(render(plan, own_target(plan)), tmp_path / "out")
    found = audit(read(str(tmp_path / "out" / "launch.sh")), Supplied(), plan.cluster, plan.job.limits, plan=False)
    assert ["train.py" in str(problem) for problem in found.unpredicted] == [True]
    assert found.findings == ()


MODELS = ("llama3.1-8b", "qwen3-30b-a3b", "deepseek-v3", "nemotron-3-nano-30b-a3b", "qwen2.5-7b-lora")
# Targets whose scripts symconfig does not read. Bridge's fields are compared in tests/render/test_renamed.py.
UNREAD = {"bridge": "train.py is Python"}
# What a target's files leave to the code around them.
ELSEWHERE = {"transformers": ("model", "seq_length"), "accelerate": ("model", "seq_length")}
STEPS = {"llama3.1-8b", "qwen2.5-7b-lora"}  # a step of reinforcement learning takes longest to read

PLAIN = Configuration(micro=1, global_batch=1, seq_length=1)


@pytest.mark.parametrize(
    ("target", "model"),
    sampled([(t, m) for t in sorted(targets().keys() - UNREAD) for m in MODELS if t not in LEARNING or m in STEPS], 2),
)
def test_files_have_the_price_of_their_plan(target: str, model: str, tmp_path: Path) -> None:
    job: dict[str, Any] = {"rl": step(model)} if target in LEARNING else {"global_batch_size": 512, "seq_length": 4096}
    gpus = 256 if model == "deepseek-v3" else 16
    try:
        plan = symconfig.plan(model, "h200", gpus, target=target, top=1, **job).plan
    except InfeasibleError:
        pytest.skip("the target has no plan of this model")
    write(render(plan, target), tmp_path / "out")
    given = {"model": model, "seq_length": 4096}
    more: dict[str, Any] = {name: given[name] for name in ELSEWHERE.get(target, ())}
    lengths = {"prompt_length": 200.0, "response_length": 900.0} if target in LEARNING else {}
    script = next(tmp_path / "out" / name for name in ("launch.sh", "train.sh") if (tmp_path / "out" / name).is_file())
    found = symconfig.audit(script, plan.cluster, gpus, plan=False, **more, **lengths)
    assert found.judged is not None, found.unpredicted
    read = found.judged.run.configuration
    usual = usual_of(plan.cluster, plan.job, read.precision)
    priced = put_on(usual, plan.cluster.gpu.architecture, in_effect(plan.best.configuration), PLAIN)
    launched, kernel = found.judged.run.described.model, BY_TARGET[target].loss if target in BY_TARGET else None
    mine, theirs = (
        predict(model, plan.cluster, replace(read, framework=_with_loss(one, kernel))).predicted
        for model, one in ((plan.model, priced), (launched, read.framework))
    )
    assert mine.time == pytest.approx(theirs.time, rel=1e-9)
    assert mine.memory == pytest.approx(theirs.memory, rel=1e-9)


def _with_loss(framework: Framework, kernel: LossKernel | None) -> Framework:
    """Return the framework with a trainer's own loss, which plans and audits of its updates put on."""
    how = framework.implementation
    loss = how.loss if kernel is None else replace(how.loss, kernel=kernel)
    return replace(framework, implementation=replace(how, loss=loss))
