"""The best plan from a run: the same model, GPUs and batch, under the kernels and number formats that the run has."""

from __future__ import annotations

from dataclasses import replace

from symconfig.audit.judge import Judged
from symconfig.cost.framework import Framework
from symconfig.plan import Plan
from symconfig.solve.habits import habits
from symconfig.solve.search import search

_PIECES = ("tp_forward", "tp_backward", "tp_pieces")  # of --tp-comm-overlap, which is the run's to have


def best(judged: Judged) -> Plan:
    """Raises InfeasibleError when nothing fits, InputError for what can never run."""
    plan = judged.plan
    framework = willing(judged.run.configuration.framework, plan.cluster.gpu.architecture)
    return search(plan.model, plan.cluster, plan.job, top=1, framework=framework)


def willing(framework: Framework, architecture: str) -> Framework:
    """The framework as it is, but with the overlaps and the groups of microbatches that a plan has by itself."""
    usual, mine = habits(framework.name, architecture).hide, framework.hide
    pieces = {name: getattr(mine, name) for name in _PIECES} if mine.tp_pieces > 1 else {}
    return replace(framework, hide=replace(usual, **pieces), gathers_apart=False, demanded_gathers=False,
                   microbatch_group=0)
