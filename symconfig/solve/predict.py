"""Prediction of a given configuration, or of a plan's candidate again: by the functions of the search, without one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np

from symconfig.cost.blocks import SECONDS
from symconfig.cost.lattice import Array, Lattice
from symconfig.cost.machine import Constants, machine, without_network
from symconfig.cost.step import evaluate
from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.descriptor.document import Document
from symconfig.descriptor.job import Job, Limits
from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.strict import validate
from symconfig.errors import InputError
from symconfig.frameworks.extras import in_effect
from symconfig.frameworks.known import BACKENDS, facts
from symconfig.graph.model import sequence, shares_heads
from symconfig.graph.parts import is_layer
from symconfig.graph.scheme import Scheme
from symconfig.plans.configuration import Configuration
from symconfig.plans.plan import Candidate, Plan, Predicted
from symconfig.solve.candidate import predicted
from symconfig.solve.costed import costed, refined_time, sizes
from symconfig.solve.extras import switched_on
from symconfig.solve.limits import limits
from symconfig.solve.pins import parse
from symconfig.solve.prospect import Prospect, Setup
from symconfig.solve.run import request
from symconfig.solve.space import Request
from symconfig.solve.split import Split, even, laid_out, of_counts


@dataclass(frozen=True, slots=True)
class Prediction:
    """A prediction of one configuration. stage_bytes: allocated at the peak of every stage; stage_parts: by part.

    layer_forward_s, layer_backward_s: of one transformer layer and microbatch, with exposed communication.
    """

    predicted: Predicted
    stage_bytes: tuple[float, ...]
    stage_parts: Mapping[str, tuple[float, ...]]
    layer_forward_s: float
    layer_backward_s: float


def predict(model: ModelDescriptor, cluster: ClusterDescriptor, configuration: Setup) -> Prediction:
    """Return the predicted seconds and bytes of one configuration, whether it fits or not.

    The layer's seconds are of the first transformer layer kind. Raises InputError if the model has too few layers for
    the stages or a job cannot have these values.
    """
    prospect = as_found(model, cluster, configuration)
    parts = costed(prospect)
    layer = next(index for index, kind in enumerate(parts.table.kinds) if is_layer(kind))
    forward, backward, forward_comm, backward_comm = np.asarray(parts.table.passes[SECONDS, 0, layer, 0], dtype=float)
    return Prediction(
        predicted(prospect, parts, cluster),
        parts.peaks,
        {name: tuple(float(value) for value in part[:, 0, 0, 0]) for name, part in parts.cost.memory.items()},
        float(forward + forward_comm),
        float(backward + backward_comm),
    )


class Timer:
    """Steps of one configuration under many sets of a GPU's constants.

    A pipeline is simulated once with the cluster's own constants; with others the formula's step is scaled by the same
    ratio, which depends mainly on the stages. stage: price only the work of this stage's GPUs, without a network.
    """

    def __init__(
        self, model: ModelDescriptor, cluster: ClusterDescriptor, configuration: Setup, stage: int | None = None
    ) -> None:
        self._cluster, self._stage = cluster, stage
        self._found = as_found(model, cluster, configuration)
        self._sizes: Lattice | None = None
        self._simulated = 1.0  # over the formula's step
        if configuration.pp > 1 and stage is None:
            parts = costed(self._found)
            self._simulated = sum(refined_time(self._found, parts).values()) / float(parts.cost.step_s[0, 0, 0])

    def step_seconds(self, constants: Constants, n: int) -> Array:
        """Return the step in seconds under n sets of the kernels' constants, each an array [n], as [n].

        With a stage, it is the work of its own GPUs without a network; else the formula's step times the ratio of
        simulation to formula. The lattice for n is kept for the next call.
        """
        if self._sizes is None or self._sizes.points != n:
            self._sizes = sizes(self._found, n)
        base = self._found.request
        gpu = machine(self._cluster, base.precision, constants, base.gpus)
        prospect = replace(self._found, machine=gpu)
        if self._stage is not None:
            return np.broadcast_to(alone_s(prospect, self._stage, self._sizes), n)
        return np.broadcast_to(costed(prospect, self._sizes).cost.step_s[0, 0] * self._simulated, n)


def as_found(model: ModelDescriptor, cluster: ClusterDescriptor, c: Setup, of: Job | None = None) -> Prospect:
    """Return the candidate of a configuration, with its request, machine and split, but not priced.

    of: the job to keep in it; None: one made from the configuration, with balanced routing unless `natural_routing`. A
    configuration without a version gets the release of the made job. Raises InputError if a job cannot have these
    values or the model has too few layers for the stages.
    """
    fields = {
        "model": model.name,
        "cluster": cluster.name,
        "gpus": c.world_size,
        "global_batch_size": c.global_batch,
        "seq_length": c.seq_length,
        "backend": c.backend,
    }
    job = validate(Document(fields, file=""), Job)
    job = job.model_copy(
        update={"packing": c.packing, "limits": Limits(expert_imbalance=None if c.natural_routing else 1.0)}
    )
    version = c.version or BACKENDS[c.backend].releases.of(job)
    space = limits(job.backend, version, model, facts(job.backend, model, cluster.gpu.architecture))
    request = Request(
        model=model,
        job=of or job,
        framework=c.framework,
        version=version,
        limits=space,
        pins=parse({}),
        configuration=c.plain,
    )
    return at_point(switched_on(request), cluster, c.plain)


def at_point(request: Request, cluster: ClusterDescriptor, c: Configuration) -> Prospect:
    """Return the candidate of a request with this configuration, not priced: step, memory and score are 0.

    Activation offload is of the operators that Megatron offloads. Raises InputError if there are more chunks than
    layers.
    """
    model = request.model
    return Prospect(
        request=request,
        machine=machine(cluster, c.precision, gpus=c.world_size),
        scheme=Scheme(c.sequence_parallel, c.cp_comm, shares_heads(model, c.tp), weight_shards=c.gtp > 1),
        split=_split(model, c),
        configuration=c,
    )


def _split(model: ModelDescriptor, c: Configuration) -> Split:
    """Return the configuration's layers per stage: by its layout string, else those of the first and last, else even.

    What does not divide the model so falls back to the next. With pp = 1, first and last stage are ignored, and
    whether embedding and loss take a layer's place, which the even split counts otherwise. Raises InputError if there
    are too few layers.
    """
    at_start, at_end = (c.account_for_embedding, c.account_for_loss) if c.pp > 1 else (False, False)
    split = laid_out(sequence(model), c.pp, c.pipeline_layout) if c.pipeline_layout else None
    if c.pp > 1 and (c.first_stage_layers or c.last_stage_layers):
        first, last = c.first_stage_layers, c.last_stage_layers
        split = split or of_counts(sequence(model), c.pp, c.vpp, first=first, last=last)
    split = split or even(sequence(model), c.pp, c.vpp, at_start, at_end)
    if split is not None:
        return split
    raise InputError(
        "has too few layers for these stages",
        field="num_hidden_layers",
        got=str(model.num_hidden_layers),
        need=f"at least {c.pp * c.vpp}",
    )


def alone_s(prospect: Prospect, stage: int, known: Lattice | None = None) -> Array:
    """Return the seconds that one stage's GPUs work in a step, without waits and communication, [n].

    That is all microbatches' passes through its chunks, recompute and offload over the host's link included, and the
    optimizer, on a machine without a network. known: lattice of the points as for `costed`.
    """
    parts = costed(replace(prospect, machine=without_network(prospect.machine)), known)
    sums, setting = (
        parts.sums.part(slice(stage, stage + 1)),
        parts.setting.having((parts.setting.pipelines.only.stages[stage],)),
    )
    passes = sums.ahead[0, 0] + sums.back[0, 0]
    if prospect.block_layers:
        # Seconds that full recompute of the first layers of every chunk adds, [n].
        repeated = np.array(
            prospect.split.first_layers_of(stage, parts.table.kinds, prospect.block_layers), dtype=np.float64
        )
        change = parts.table.passes[SECONDS].sum(axis=0)
        passes = passes + repeated @ (change[1] - change[0])
    optimizer = np.broadcast_to(evaluate(sums, parts.points, setting).time["optimizer"], (1, 1, passes.size))[0, 0]
    result: Array = parts.points.num_microbatches * passes + optimizer
    return result


@contextmanager
def retraced(file: str) -> Iterator[None]:
    """Turn errors in the `with` block into an InputError that the plan of this file cannot be computed again.

    Those are LookupError, ValueError, ArithmeticError and AttributeError; others, such as InputError, pass through.
    """
    try:
        yield
    except (LookupError, ValueError, ArithmeticError, AttributeError) as error:
        what = f"holds a plan that this version cannot retrace ({type(error).__name__}: {error})"
        raise InputError(what, file=file, hint="plan again with this version of symconfig") from None


def restore(plan: Plan, candidate: Candidate) -> Prospect:
    """Return the candidate of a plan as the search had it, with its predicted step and bytes, the step also as score.

    The framework is that of the candidate's backend, with the candidate's options. Raises InputError if pins or degrees
    are not possible any more.
    """
    predicted = candidate.predicted
    job = plan.job.model_copy(update={"backend": candidate.target.backend})  # `render --target` may have chosen another
    base = request(plan.model, plan.cluster, job, candidate.configuration.precision)
    base = switched_on(base, in_effect(candidate.configuration), plan.cluster.gpu.architecture)
    point = at_point(base, plan.cluster, candidate.configuration)
    return replace(point, step_s=predicted.step_s, device_bytes=predicted.device_bytes, score=predicted.step_s)
