"""Whether a pinned layout of the pipeline is one: of this model, for these stages, in this target's words."""

from __future__ import annotations

from symconfig import pipeline_layout
from symconfig.descriptor.job import Job
from symconfig.descriptor.model import ModelDescriptor
from symconfig.errors import Problem
from symconfig.graph.model import sequence
from symconfig.solve.limits import Limits
from symconfig.solve.pins import Pins
from symconfig.solve.space import divisors
from symconfig.solve.split import laid_out, said

_FIELD = "pins.layout"


def problems(model: ModelDescriptor, job: Job, pins: Pins, limits: Limits) -> list[Problem]:
    """What is wrong with the job's pinned layout; nothing where none is pinned."""
    layout = pins.layout
    if layout is None:
        return []
    if not limits.pipeline:
        return [Problem("needs a pipeline, which this target has not", field=_FIELD, got=job.backend,
                        hint="--backend megatron")]
    found = list(pipeline_layout.problems(layout, model.num_hidden_layers, model.num_nextn_predict_layers, _FIELD))
    if found:
        return found
    chunks = len(pipeline_layout.expanded(layout))
    ways = [(pp, chunks // pp) for pp in divisors(chunks)
            if pins.allows("pp", pp) and pins.allows("vpp", chunks // pp) and (pp > 1 or chunks == 1)]
    if not ways:
        asked = ", ".join(f"{name}={job.pins[name]}" for name in ("pp", "vpp") if name in job.pins)
        return [Problem("has another number of chunks than the pinned stages", field=_FIELD, got=f"{chunks} chunks",
                        need=f"pp x vpp chunks with {asked}")]
    splits = [split for pp, _ in ways if (split := laid_out(sequence(model), pp, layout)) is not None]
    if not any(said(split.pp, split.chunks, limits.layouts) for split in splits):
        return [Problem(f"cannot be said to {job.backend} {job.megatron_version}", field=_FIELD, got=repr(layout),
                        need=_sayable(limits))]
    return []


def _sayable(limits: Limits) -> str:
    """What can be said, in words."""
    if limits.layouts.any_cut:
        where = "" if limits.layouts.mtp_with_head else " or in the last chunk of a later stage"
        return f"multi-token prediction in the loss's chunk{where}"
    return "equal stages, the embedding or loss in a layer's place, or other counts on the first and last stage only"
