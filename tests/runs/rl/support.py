"""A step of reinforcement learning that is small enough to count."""

from __future__ import annotations

from functools import cache
from typing import Any

import symconfig
from symconfig.cost.machine import machine
from symconfig.descriptor.load import load_cluster, load_model
from symconfig.descriptor.rl import Rl
from symconfig.plans.plan import Plan
from symconfig.runs.rl.engine import Engine


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
