"""symconfig: choose how a large model is split over a cluster, and write the configuration that does it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from symconfig.install import VERSION

__version__ = VERSION

if TYPE_CHECKING:
    from symconfig.api.existing import EstimateResult as EstimateResult
    from symconfig.api.existing import adapt as adapt
    from symconfig.api.existing import audit as audit
    from symconfig.api.existing import compare as compare
    from symconfig.api.existing import estimate as estimate
    from symconfig.api.frozen import verify_frozen as verify_frozen
    from symconfig.api.mixed import MixedResult as MixedResult
    from symconfig.api.mixed import plan_mixed as plan_mixed
    from symconfig.api.partition import PartitionResult as PartitionResult
    from symconfig.api.partition import PipelineResult as PipelineResult
    from symconfig.api.partition import auto_parallel as auto_parallel
    from symconfig.api.partition import partition as partition
    from symconfig.api.partition import pipeline as pipeline
    from symconfig.api.planning import PlanResult as PlanResult
    from symconfig.api.planning import plan as plan
    from symconfig.api.replan import FallbackResult as FallbackResult
    from symconfig.api.replan import ReplanResult as ReplanResult
    from symconfig.api.replan import diff as diff
    from symconfig.api.replan import replan as replan
    from symconfig.api.replan import replan_lost_nodes as replan_lost_nodes
    from symconfig.api.replan import whatif as whatif
    from symconfig.api.replan import whatif_changes as whatif_changes
    from symconfig.api.sweep import size as size
    from symconfig.api.sweep import sweep as sweep
    from symconfig.api.zoo import clusters as clusters
    from symconfig.api.zoo import models as models
    from symconfig.api.zoo import recipes as recipes
    from symconfig.runs import checkpoint as checkpoint
    from symconfig.runs.start import MismatchError as MismatchError

# Where each public name is, relative to this package. No folder here has the name of a function: importing it would
# put the folder in the function's place.
_HOMES = {
    "api.planning": ("plan", "PlanResult"),
    "api.mixed": ("plan_mixed", "MixedResult"),
    "api.existing": ("adapt", "audit", "compare", "estimate", "EstimateResult"),
    "api.sweep": ("sweep", "size"),
    "api.frozen": ("verify_frozen",),
    "api.partition": ("partition", "auto_parallel", "PartitionResult", "pipeline", "PipelineResult"),
    "api.replan": (
        "replan", "diff", "whatif", "whatif_changes", "ReplanResult", "replan_lost_nodes", "FallbackResult",
    ),
    "api.zoo": ("models", "clusters", "recipes"),
    "runs.start": ("MismatchError",),
}  # fmt: skip
# For scripts of one's own, and what a folder of checkpoints holds.
_MODULES = {name: name for name in ("megatron", "deepspeed", "transformers")} | {"checkpoint": "runs.checkpoint"}
_HOME = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import and return a public function, class or module on first use, so that `import symconfig` stays fast. Raises
    AttributeError for any other name.
    """
    from importlib import import_module

    if name in _MODULES:
        return import_module(f"{__name__}.{_MODULES[name]}")
    if name not in _HOME:
        raise AttributeError(f"module 'symconfig' has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    """List what is imported on first use, too."""
    return sorted({*globals(), *_HOME, *_MODULES})
