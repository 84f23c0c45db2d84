"""The best plan from a run: the same model, GPUs and batch, under the kernels and number formats that the run has."""

from __future__ import annotations

from dataclasses import replace

from symconfig.cost.framework import Framework
from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.descriptor.job import Job
from symconfig.existing.recover.run import Run
from symconfig.frameworks.behaviour import usual
from symconfig.frameworks.kernels import changed
from symconfig.graph.implementation import Dispatch
from symconfig.plans.plan import Plan
from symconfig.solve.search import search

TOP = 5  # plans that are kept, of which `symconfig adapt` takes what changes least where they are close
_PIECES = (
    "tp_forward",
    "tp_backward",
    "tp_pieces",
)  # of --tp-comm-overlap, which the search weighs as the run has it, too


def best(run: Run, cluster: ClusterDescriptor, job: Job) -> Plan:
    """Search the fastest plan for `job`, which the run answers. Raises InfeasibleError, or InputError."""
    framework = willing(run.configuration.framework, cluster.gpu.architecture)
    return search(run.described.model, cluster, job, top=TOP, framework=framework)


def willing(framework: Framework, architecture: str) -> Framework:
    """Return the framework as it is, but with the overlaps and the groups of microbatches that a plan has by itself."""
    mine = framework.hide
    pieces = {name: getattr(mine, name) for name in _PIECES} if mine.tp_pieces > 1 else {}
    hide = replace(usual(framework.name, architecture).hide, **pieces)
    how = framework.implementation
    if how.experts.dispatch is Dispatch.EVERYWHERE:  # no plan has it
        how = changed(how, dispatcher="alltoall")
    return replace(
        framework,
        implementation=how,
        hide=hide,
        gathers_apart=False,
        demanded_gathers=False,
        microbatch_group=0,
        mask_bytes=0.0,
    )
