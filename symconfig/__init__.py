"""symconfig: choose how a large model is split over a cluster, and write the configuration that does it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from symconfig.api import PlanResult as PlanResult
    from symconfig.api import plan as plan
    from symconfig.api_audit import adapt as adapt
    from symconfig.api_audit import audit as audit
    from symconfig.api_check import check as check
    from symconfig.api_fallback import FallbackResult as FallbackResult
    from symconfig.api_fallback import fallback as fallback
    from symconfig.api_partition import PartitionResult as PartitionResult
    from symconfig.api_partition import partition as partition
    from symconfig.api_replan import ReplanResult as ReplanResult
    from symconfig.api_replan import diff as diff
    from symconfig.api_replan import replan as replan
    from symconfig.api_sweep import size as size
    from symconfig.api_sweep import sweep as sweep

_LAZY = {
    "megatron": "symconfig.megatron",
    "deepspeed": "symconfig.deepspeed",
    "transformers": "symconfig.transformers",
    "plan": "symconfig.plan",
    "audit": "symconfig.audit",
    "adapt": "symconfig.adapt",
    "sweep": "symconfig.sweep",
    "size": "symconfig.api_sweep",
    "check": "symconfig.api_check",
    "PlanResult": "symconfig.api",
    "partition": "symconfig.api_partition",
    "PartitionResult": "symconfig.api_partition",
    "replan": "symconfig.replan",
    "diff": "symconfig.api_replan",
    "ReplanResult": "symconfig.api_replan",
    "fallback": "symconfig.api_fallback",
    "FallbackResult": "symconfig.api_fallback",
}


def __getattr__(name: str) -> Any:
    """Import the planner on first use, so that `import symconfig` stays instant.

    `symconfig.plan` is a module that can be called (`symconfig.callables`): whoever imports it first, both uses work.
    """
    if name not in _LAZY:
        raise AttributeError(f"module 'symconfig' has no attribute {name!r}")
    from importlib import import_module

    module = import_module(_LAZY[name])
    return module if module.__name__ == f"{__name__}.{name}" else getattr(module, name)
