"""Plans without the solver, for tests of the rooms behind it. Numbers of models are those of their config.json."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.descriptor.job import Job
from symconfig.descriptor.learning_rate import derived
from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.training import Optimizer
from symconfig.descriptor.tuning import Rl
from symconfig.errors import InputError
from symconfig.frameworks.known import TORCH_RELEASE
from symconfig.plans.configuration import Configuration
from symconfig.plans.plan import (
    Candidate,
    Plan,
    Predicted,
    Search,
    Stage,
    Target,
    digest,
)
from symconfig.plans.plan import signed as parts_of
from symconfig.plans.rl import PlannedPhase, PlannedRl
from symconfig.solve.run import with_training
from tests.sample_models import sample_cluster as sample_cluster
from tests.sample_models import sample_model as sample_model

_DEGREES: dict[str, dict[str, int]] = {
    "llama2-13b": {"tp": 4, "pp": 2, "dp": 8},
    "llama2-13b-lora": {"tp": 4, "pp": 2, "dp": 8},
    "llama3.1-70b": {"tp": 8, "pp": 4, "vpp": 5, "dp": 4, "cp": 2},
    "qwen2.5-7b": {"tp": 2, "dp": 8},
    "qwen3-30b-a3b": {"tp": 2, "pp": 2, "ep": 8, "dp": 8},
    "mixtral-8x7b": {"tp": 2, "pp": 4, "ep": 8, "dp": 8},
    "deepseek-v3": {"tp": 2, "pp": 16, "ep": 64, "dp": 64},
    "gpt-oss-120b": {"tp": 1, "pp": 2, "ep": 8, "dp": 32},
    "gpt3-175b": {"tp": 8, "pp": 8, "vpp": 3, "dp": 8},
}


def _counts(model: ModelDescriptor, stages: int) -> list[int]:
    """Layers of each virtual stage, in chunk order: equal shares, the last ones shorter."""
    share = math.ceil(model.num_hidden_layers / stages)
    return [max(0, min(share, model.num_hidden_layers - share * i)) for i in range(stages)]


def _stages(model: ModelDescriptor, pp: int, vpp: int, recompute: str) -> tuple[Stage, ...]:
    """Layers dealt out as evenly as they go, in chunk order: virtual stage by virtual stage."""
    kinds = list(model.layer_kinds)
    chunks: list[list[str]] = []
    for count in _counts(model, pp * vpp):
        chunks.append(kinds[:count])
        kinds = kinds[count:]
    chunks[0].insert(0, "embedding")
    chunks[-1] += ["mtp"] * model.num_nextn_predict_layers + ["head"]
    return tuple(Stage(tuple(tuple(chunks[rank + pp * v]) for v in range(vpp)), recompute, 50e9) for rank in range(pp))


def with_optimizer(plan: Plan, optimizer: Optimizer) -> Plan:
    """Return a plan whose job asks for another optimizer."""
    return replace(plan, job=plan.job.model_copy(update={"optimizer": optimizer}))


def sample_plan(
    model: str | ModelDescriptor = "llama2-13b",
    cluster: str | ClusterDescriptor = "a100-80gb",
    backend: str = "megatron",
    version: str | None = None,
    **overrides: Any,
) -> Plan:
    """A plan that the named framework would take.

    `overrides`: any field of its configuration, and `training` (a dict of Job.training).
    """
    model = sample_model(model) if isinstance(model, str) else model
    cluster = sample_cluster(cluster) if isinstance(cluster, str) else cluster
    version = version or {"megatron": "core_v0.19.0", "deepspeed": "0.18.0"}.get(backend) or TORCH_RELEASE
    base = _DEGREES.get(model.name, {"tp": 2, "dp": 4}) if backend == "megatron" else {"dp": 16}
    degrees = {name: overrides.pop(name, base.get(name, 1)) for name in ("tp", "pp", "vpp", "cp", "ep", "etp", "dp")}
    micro = overrides.pop("micro", 1)
    seq_length = overrides.pop("seq_length", min(4096, model.max_position_embeddings))
    global_batch = overrides.pop("global_batch", micro * degrees["dp"] * max(2 * degrees["pp"], 8))
    training = overrides.pop("training", {})
    job = Job.model_validate(
        dict(
            schema="symconfig.job/1",
            model=model.name,
            cluster=cluster.name,
            gpus=degrees["tp"] * degrees["pp"] * degrees["cp"] * degrees["dp"],
            global_batch_size=global_batch,
            seq_length=seq_length,
            backend=backend,
            training=training,
            **({"megatron_version": version} if backend == "megatron" else {}),
        )
    )
    job = _whole(model, job)
    overrides.setdefault("zero_stage", 3 if backend == "fsdp" else 1)
    batch = {"micro": micro, "global_batch": global_batch, "seq_length": seq_length}
    c = _configuration(model, cluster, degrees | batch | overrides)
    memory = {"weights": 12e9, "gradients": 12e9, "optimizer": 9e9, "activations": 15e9, "framework": 2e9}
    time = {"compute": 9.0, "tp communication": 1.2, "pipeline bubble": 0.8, "optimizer": 0.1}
    step = sum(time.values())
    tokens = global_batch * seq_length / step / c.world_size
    candidate = Candidate(
        target=Target(backend, version),
        configuration=c,
        stages=_stages(model, c.pp, c.vpp, c.recompute),
        predicted=Predicted(
            step, tokens, 180.0, 0.577, 50e9, 53e9, 55e9, 10e9, memory, time, {"step_s": (step * 0.93, step * 1.07)}
        ),
    )
    other = replace(candidate, predicted=replace(candidate.predicted, step_s=step * 1.05))
    return Plan(
        model=model, cluster=cluster, job=job, best=candidate, alternatives=(other,), search=Search(123456, 789, 0.5),
        binding="memory of stage 0: 55.0 GB of 82.0 GB", symconfig_version="0.1.0",
    )  # fmt: skip


def _whole(model: ModelDescriptor, job: Job) -> Job:
    """Derive what the training leaves open. A model with a field that only a test gives it, of which no graph can be
    built, has the rates of 7 billion parameters."""
    try:
        return with_training(model, job)
    except (InputError, AttributeError):
        return job.model_copy(update={"training": derived(job.training, "pretrain", 7e9)})


def signed(data: dict[str, Any]) -> str:
    """The JSON of a plan that somebody changed, with the digests that it would have had."""
    return json.dumps({**data, "digests": {name: digest(value) for name, (_, value) in parts_of(data).items()}})


def _configuration(model: ModelDescriptor, cluster: ClusterDescriptor, given: dict[str, Any]) -> Configuration:
    """Return the configuration that the named framework would take, with the given fields."""
    tp, pp, vpp = (given[name] for name in ("tp", "pp", "vpp"))
    even = model.num_hidden_layers % (pp * vpp) == 0 and not model.num_nextn_predict_layers
    usual: dict[str, Any] = {
        "sequence_parallel": tp > 1,
        "precision": "bf16" if cluster.gpu.peak_flops.bf16 else "fp16",
        "overlap_grad_reduce": True,
        "overlap_param_gather": True,
        "overlap_pp_p2p": True,
        "pipeline_layout": None if even else _layout(model, pp * vpp),
        "microbatch_group_size": pp if vpp > 1 else None,
        "moe_dispatcher": "alltoall" if model.experts else None,
    }
    return Configuration(**usual | given)


def aimed(plan: Plan, target: str) -> Plan:
    """The plan of a job that names a target."""
    return replace(plan, job=plan.job.model_copy(update={"target": target}))


def _layout(model: ModelDescriptor, chunks: int) -> str:
    """Megatron's layout string: E embedding, t layer, m multi-token prediction, L loss."""
    words = ["t" * count for count in _counts(model, chunks)]
    return "E" + "|".join(words) + "m" * model.num_nextn_predict_layers + "L"


def learning_plan(
    training: dict[str, Any] | None = None, backend: str = "megatron", away: tuple[str, ...] = ()
) -> Plan:
    """A plan whose job learns by reinforcement, with a step around it. away: what goes to the host between phases."""
    degrees = {"tp": 2, "pp": 1, "dp": 4} if backend == "megatron" else {"dp": 8}
    plan = sample_plan(backend=backend, training=training or {}, global_batch=256, **degrees)
    lengths = {"mean": 100.0, "max": 256}
    step = {"prompts": 64, "samples": 4, "prompt_length": lengths, "response_length": lengths, "reference": False}
    rl = Rl.model_validate(step)
    phases = (
        PlannedPhase("generation", 10.0, 50e9, {"engine": 50e9}),
        PlannedPhase("update", 5.0, 60e9, {"all": 60e9}),
    )
    planned = PlannedRl(
        rollout_tp=2, rollout_gpus=8, memory_share=0.6, at_once=64, tokens_per_gpu=1024, away=away, host_bytes=40e9,
        step_s=15.0, interval=(12.0, 20.0), generated_per_s_per_gpu=3000.0, phases=phases,
    )  # fmt: skip
    job = plan.job.model_copy(update={"task": "rl", "rl": rl, "gpus": 8})
    return replace(plan, job=job, rl=(planned,), alternatives=())
