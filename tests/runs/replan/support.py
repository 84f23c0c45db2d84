"""Plans that are solved once for all tests of this room."""

from __future__ import annotations

from functools import cache
from typing import Any

from symconfig.api.planning import plan as solved
from symconfig.plans.plan import Plan


@cache
def plan(model: str = "llama2-7b", cluster: str = "a100-80gb", gpus: int = 8, batch: int = 32, **more: Any) -> Plan:
    """A real plan; pins as `tp=2`."""
    pinned = [name for name in ("tp", "pp", "vpp", "recompute", "mbs", "zero", "ep") if name in more]
    pins: dict[str, Any] = {name: more.pop(name) for name in pinned}
    return solved(model, cluster, gpus, batch, pins=pins, top=2, **more).plan
