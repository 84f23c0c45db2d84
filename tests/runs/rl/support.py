"""A step of reinforcement learning that is small enough to count."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import symconfig
from symconfig.cost.machine import machine
from symconfig.descriptor.load import load_cluster, load_model
from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.tuning import Rl
from symconfig.plans.plan import Plan
from symconfig.runs.rl.engine import Engine
from symconfig.runs.rl.logits import PAIRS, LogitBytes
from symconfig.runs.rl.trained import Trained
from tests.sample_plans import sample_plan

TOKENS, LAYERS = 96, 2  # of one sequence; of a model that is small enough to count each byte of
TINY: dict[str, Any] = {
    "schema": "symconfig.model/1", "name": "tiny", "source": "this test", "model_type": "llama", "hidden_size": 64,
    "intermediate_size": 96, "num_hidden_layers": LAYERS, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 16, "max_position_embeddings": 128, "rope_theta": 10000.0,
}  # fmt: skip


def section(**changed: Any) -> dict[str, Any]:
    return {
        "prompts": 64,
        "samples": 4,
        "updates": 2,
        "prompt_length": {"mean": 100.0, "max": 256},
        "response_length": {"mean": 300.0, "p95": 800.0, "max": 1024},
    } | changed


def step(**changed: Any) -> Rl:
    return Rl.model_validate(section(**changed))


def engine(model: str = "llama3.1-8b", tp: int = 1, cluster: str = "h100", dp: int = 1) -> Engine:
    return Engine(load_model(model), machine(load_cluster(cluster), "bf16"), tp, dp)


def planned(
    model: str = "llama3.1-8b",
    gpus: int = 8,
    pins: dict[str, str] | None = None,
    lora: dict[str, Any] | None = None,
    target: str | None = None,
    **changed: Any,
) -> Plan:
    return symconfig.plan(model, "h100", gpus, pins=pins, lora=lora, target=target, rl=section(**changed)).plan


@cache
def usual() -> Plan:
    return planned()


def phase(plan: Plan, name: str) -> Any:
    return next(each for each in plan.rl[0].phases if each.name == name)


def head_and_loss(vocabulary: int, logits: LogitBytes = PAIRS) -> float:
    """Return the bytes of head and loss that the planner counts of the tiny model with DeepSpeed, on one sequence."""
    model = ModelDescriptor.model_validate_json(json.dumps({**TINY, "vocab_size": vocabulary}))
    plan = sample_plan(model, backend="deepspeed", tp=1, pp=1, dp=1, seq_length=TOKENS, global_batch=1)
    return float(Trained(plan, plan.best, 1.0, logits).parts.cost.memory["head and loss"].max())
