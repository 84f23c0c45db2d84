"""A plan in a script that calls `deepspeed.initialize`.

import deepspeed, symconfig.deepspeed

engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(),
                                  config=symconfig.deepspeed.config("plan/"))
"""

from __future__ import annotations

from typing import Any

from symconfig.api.planning import AnyPlan
from symconfig.render import deepspeed
from symconfig.runs.start import OnMismatch, started


def config(plan: AnyPlan, *, world_size: int | None = None, on_mismatch: OnMismatch = "fail") -> dict[str, Any]:
    """Return the content of ds_config.json, for `deepspeed.initialize(config=…)`, after `started` has compared the
    process. Raises MismatchError, InputError, and InfeasibleError for what DeepSpeed cannot run."""
    return deepspeed.config(started(plan, "deepspeed", world_size, on_mismatch))
