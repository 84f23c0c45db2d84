"""How a plan stands if the cluster or the framework is otherwise than the cost model believes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from symconfig.cost.framework import Framework
from symconfig.descriptor.cluster import ClusterDescriptor, Kernels
from symconfig.frameworks.extras import gradient_bytes
from symconfig.plans.plan import Plan
from symconfig.solve.choice import family
from symconfig.solve.costed import costed, refined_s
from symconfig.solve.predict import restore
from symconfig.solve.prospect import Prospect, Setup
from symconfig.solve.run import usual_of
from symconfig.solve.search import search

SLOWER_NETWORK = 0.8  # of its rate
LATER_S = 0.3e-3  # more for each microbatch of a stage
GEMMS = {"gemm_efficiency": 1.0, "gemm_efficiency_low": 1.0, "gemm_k_half": -1.0}  # faster products: more, or less


@dataclass(frozen=True, slots=True)
class Shaken:
    """A plan where one thing is otherwise. stays: the pick would be of the same family; loss: its step over the step of
    what would be picked, less one."""

    what: str
    stays: bool
    loss: float


def robustness(plan: Plan) -> tuple[Shaken, ...]:
    """Return what the best plan loses against the plan that would be picked if the network were slower, products slower
    or faster by as much as their constants are uncertain, or microbatches took longer to begin."""
    job = plan.job.model_copy(update={"gpus": plan.best.configuration.world_size})
    result = []
    for what, cluster, framework in _otherwise(plan):
        other = search(plan.model, cluster, job, top=1, like=like(framework))
        mine, theirs = (
            _as(restore(replace(plan, cluster=cluster, job=job), each), framework) for each in (plan.best, other.best)
        )
        loss = _step_s(mine) / _step_s(theirs) - 1
        result.append(Shaken(what, family(mine) == family(theirs), max(loss, 0.0)))
    return tuple(result)


def _otherwise(plan: Plan) -> Iterator[tuple[str, ClusterDescriptor, Framework]]:
    job, cluster = plan.job, plan.cluster
    framework = usual_of(cluster, job, plan.best.configuration.precision)
    network = cluster.kernels.network_efficiency or cluster.kernels.link_efficiency
    slower = network.model_copy(update={"value": SLOWER_NETWORK * network.value})
    yield "a network 20 % slower", _with(cluster, {"network_efficiency": slower}), framework
    for side, word in ((-1.0, "slower"), (1.0, "faster")):
        stated = {name: getattr(cluster.kernels, name) for name in GEMMS}
        changed = {
            name: quantity.model_copy(
                update={"value": quantity.value * (1 + side * GEMMS[name] * quantity.uncertainty)}
            )
            for name, quantity in stated.items()
            if quantity is not None
        }
        yield f"products {word} by their uncertainty", _with(cluster, changed), framework
    later = replace(framework, microbatch_overhead_s=framework.microbatch_overhead_s + LATER_S)
    yield "0.3 ms more for each microbatch", cluster, later


def like(framework: Framework) -> Setup:
    """Return a configuration with a framework's behaviour and none of its options."""
    return Setup(micro=1, global_batch=1, seq_length=1, grad_bytes=gradient_bytes(framework), framework=framework)


def _with(cluster: ClusterDescriptor, changed: dict[str, object]) -> ClusterDescriptor:
    kernels: Kernels = cluster.kernels.model_copy(update=changed)
    return cluster.model_copy(update={"kernels": kernels})


def _as(prospect: Prospect, framework: Framework) -> Prospect:
    """Return a candidate whose microbatches begin as a framework has it."""
    own = replace(prospect.request.framework, microbatch_overhead_s=framework.microbatch_overhead_s)
    return replace(prospect, request=replace(prospect.request, framework=own))


def _step_s(prospect: Prospect) -> float:
    return refined_s(prospect, costed(prospect))
