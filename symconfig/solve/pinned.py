"""Whether pinned stages, and a pinned layout of them, are possible: for this model, in this target's words."""

from __future__ import annotations

from collections.abc import Iterator

from symconfig.descriptor.job import Job
from symconfig.descriptor.model import ModelDescriptor
from symconfig.errors import Problem
from symconfig.graph.model import sequence
from symconfig.plans import pipeline_layout
from symconfig.solve.limits import Limits
from symconfig.solve.pins import Pins
from symconfig.solve.space import divisors
from symconfig.solve.split import laid_out, most_chunks, plainest

_FIELD = "pins.layout"


def problems(model: ModelDescriptor, job: Job, pins: Pins, limits: Limits) -> list[Problem]:
    """Return the problems of a job's pinned stages, chunks and layout; empty if there are none."""
    if not limits.pipeline:
        pinned = ["layout"] * (pins.layout is not None)
        pinned += [name for name in ("pp", "vpp") if name in job.pins and not pins.allows(name, 1)]
        what = "needs a pipeline, which this target has not"
        return [Problem(what, field=f"pins.{name}", got=job.backend, hint="--backend megatron") for name in pinned]
    return [*_counts(model, pins, limits), *_layout(model, job, pins, limits)]


def _counts(model: ModelDescriptor, pins: Pins, limits: Limits) -> Iterator[Problem]:
    """Yield a problem if stages or chunks are more than the layers allow, or chunks are pinned for a single stage."""
    layers, any_number = model.num_hidden_layers, (1, 2**31)
    (pp, most_pp), (vpp, _) = pins.ranges.get("pp", any_number), pins.ranges.get("vpp", any_number)
    if pp > layers:
        yield Problem("is more stages than the model has layers", field="pins.pp", got=str(pp), need=f"up to {layers}")
    elif vpp > 1 and most_pp < 2:
        yield Problem("is several chunks of one stage", field="pins.vpp", got=str(vpp), need="1, or pp from 2 on")
    elif vpp > 1 and vpp > (most := most_chunks(layers, max(pp, 2), limits.layouts)):
        yield Problem(
            f"is more chunks of a stage than {layers} layers are for",
            field="pins.vpp",
            got=str(vpp),
            need=f"up to {most} with pp {max(pp, 2)}",
        )


def _layout(model: ModelDescriptor, job: Job, pins: Pins, limits: Limits) -> list[Problem]:
    """Return the problems of a pinned layout string; empty without one or if some pp allows it.

    Checked in turn: its syntax and layers, its number of chunks against pp, vpp and GPUs, what the target can express.
    """
    layout = pins.layout
    if layout is None:
        return []
    faults = list(pipeline_layout.problems(layout, model.num_hidden_layers, model.num_nextn_predict_layers, _FIELD))
    if faults:
        return faults
    chunks = len(pipeline_layout.expanded(layout))
    degrees = [
        pp
        for pp in divisors(chunks)
        if pins.allows("pp", pp)
        and pins.allows("vpp", chunks // pp)
        and (pp > 1 or chunks == 1)
        and (job.gpus == "auto" or job.gpus % pp == 0)
    ]
    if not degrees:
        pinned = [f"{name}={job.pins[name]}" for name in ("pp", "vpp") if name in job.pins]
        return [
            Problem(
                "has a number of chunks that no such stages have",
                field=_FIELD,
                got=f"{chunks} chunks",
                need=" and ".join(("pp x vpp of them", f"a pp that divides {job.gpus} GPUs", *pinned)),
            )
        ]
    splits = [split for pp in degrees if (split := laid_out(sequence(model), pp, layout)) is not None]
    if not any(plainest(split.pp, split.chunks, limits.layouts) for split in splits):
        return [
            Problem(
                f"cannot be said to {job.backend} {job.megatron_version}",
                field=_FIELD,
                got=repr(layout),
                need=_expressible(limits),
            )
        ]
    return []


def _expressible(limits: Limits) -> str:
    """Return in words which layouts of stages the target can express."""
    if limits.layouts.any_cut:
        where = "" if limits.layouts.mtp_with_head else " or in the last chunk of a later stage"
        return f"multi-token prediction in the loss's chunk{where}"
    return "equal stages, the embedding or loss in a layer's place, or other counts on the first and last stage only"
