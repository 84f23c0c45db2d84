"""A candidate over two kinds of GPUs as one of a plan: its prediction, and what lies on which kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from symconfig.descriptor.job import Job
from symconfig.descriptor.mixed import MixedCluster
from symconfig.plans.mixed import Host, MixedCandidate, Span
from symconfig.plans.plan import Predicted
from symconfig.solve.candidate import made, predicted, tidy
from symconfig.solve.mixed.search import Placed
from symconfig.solve.stages import layers


def described(placed: Placed, mixed: MixedCluster, jobs: Sequence[Job]) -> MixedCandidate:
    """Return the candidate of a mixed plan with one host per kind, in pipeline order.

    The prediction is that of the kind whose GPUs are fuller, relative to their usable memory; its step interval spans
    both kinds', its MFU is against their mean peak, its host memory the larger. Degrees, options and backend are the
    first kind's. jobs: the job as resolved for each kind of the cluster.
    """
    across = placed.across
    each = [_predicted(placed, mixed, kind) for kind in (0, 1)]
    hosts = [_host(placed, mixed, jobs, kind, each[kind]) for kind in (0, 1)]
    tightest = max((0, 1), key=lambda kind: each[kind].device_bytes / hosts[kind].usable_bytes)
    spans = [one.interval["step_s"] for one in each]
    interval = {**each[tightest].interval, "step_s": (min(low for low, _ in spans), max(high for _, high in spans))}
    what = replace(
        each[tightest],
        interval=interval,
        mfu=tidy(each[0].model_tflops_per_gpu * 1e12 / _peak_flops(placed, mixed)),
        host_bytes=max(one.host_bytes for one in each),
    )
    allocated = [across.parts[kind].peaks[stage] for stage, kind in enumerate(across.kinds)]
    return MixedCandidate(made(across.candidates[0], jobs[0], allocated, what), (hosts[0], hosts[1]))


def _predicted(placed: Placed, mixed: MixedCluster, kind: int) -> Predicted:
    """Return the prediction of the step of both kinds with the memory of the fullest stage on one.

    kind: 0 for the first in the pipeline, 1 for the second.
    """
    across = placed.across
    mine = [stage for stage, on in enumerate(across.kinds) if on == kind]
    worst = max(mine, key=lambda stage: across.peaks[stage])
    cluster = mixed.shares[placed.order[kind]].cluster
    return predicted(across.candidates[kind], across.parts[kind], cluster, across.time, worst)


def _host(placed: Placed, mixed: MixedCluster, jobs: Sequence[Job], kind: int, what: Predicted) -> Host:
    """Return the stages, nodes and layers of a kind in pipeline order, with its prediction and usable bytes."""
    across, share = placed.across, mixed.shares[placed.order[kind]]
    mine = [stage for stage, on in enumerate(across.kinds) if on == kind]
    before = 0 if kind == 0 else mixed.shares[placed.order[0]].nodes
    memory = share.cluster.gpu.memory_bytes.value
    return Host(
        share=share,
        stages=Span(mine[0], mine[-1]),
        nodes=Span(before, before + share.nodes - 1),
        layers=tuple(sum(map(layers, across.split.stage(stage))) for stage in mine),
        predicted=what,
        usable_bytes=jobs[placed.order[kind]].limits.usable_bytes(memory),
    )


def _peak_flops(placed: Placed, mixed: MixedCluster) -> float:
    """Return the mean peak FLOP/s of all GPUs in the plan's precision."""
    precision = placed.across.candidates[0].request.precision
    whole = sum(share.gpus * getattr(share.cluster.gpu.peak_flops, precision).value for share in mixed.shares)
    return float(whole / mixed.gpus)
