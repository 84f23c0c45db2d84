"""Every zoo model, planned for a format: on the fewest GPUs of one cluster that hold it as the format can say it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import symconfig
from symconfig.descriptor.load import zoo_models
from symconfig.errors import InfeasibleError, InputError
from symconfig.plans.plan import Plan
from symconfig.render import targets
from tests.sample_rl import LEARNING, step
from tools.verify.zoo import BATCH, Pair, sizes

CLUSTER = "h100"
PAIRS = {"preference": {"pairs": 64}, "seq_length": 2048}
# The field of the first problem where more GPUs may help: nothing fits, or nothing that the target can be told fits.
_TOO_FEW = (None, "target")


@cache  # launchers have no target, and all of them the same plans
def zoo_plans(target: str | None, texts: tuple[str, ...] = ()) -> dict[str, Plan | InfeasibleError]:
    """By model, and by model and task where a target is for pairs, too; target None: for the model's own framework. An
    error is why no number of GPUs has a plan. texts: only of names that hold one of them."""
    jobs = {model: (model, _usual(model, target)) for model in zoo_models()}
    if target is not None and targets()[target].compares is not None:
        jobs |= {f"{model} dpo": (model, lambda gpus: PAIRS) for model in zoo_models()}
    return {name: _plan(model, target, job) for name, (model, job) in jobs.items() if named(name, texts)}


def named(name: str, texts: Sequence[str]) -> bool:
    """Tell whether a name holds one of the texts, or there is none."""
    return not texts or any(text in name for text in texts)


def _usual(model: str, target: str | None) -> Callable[[int], dict[str, Any]]:
    """Return the job on so many GPUs, beside its model and target."""
    return lambda gpus: {"rl": step(model)} if target in LEARNING else {"global_batch_size": max(BATCH, gpus)}


def _plan(model: str, target: str | None, job: Callable[[int], dict[str, Any]]) -> Plan | InfeasibleError:
    found = InfeasibleError(f"more GPUs than {CLUSTER} has")
    for gpus in sizes(Pair(model, CLUSTER, target or "")):
        try:
            return symconfig.plan(model, CLUSTER, gpus, target=target, top=1, **job(gpus)).plan
        except InfeasibleError as error:
            found = error
            if error.problems[0].field not in _TOO_FEW:
                return found
        except InputError as error:  # no such job at all: an adapter under reinforcement learning
            return InfeasibleError(error.problems)
    return found
