"""A measured rank as a row of a measurement file, which `validate` and `calibrate` read like any other."""

from __future__ import annotations

from symconfig.descriptor.measurements import Measured, MeasuredOptions, Measurements, Row
from symconfig.errors import InputError
from symconfig.measured.gpu.measure import Measurement
from symconfig.measured.gpu.predict import as_measured, torch_attention
from symconfig.measured.log_records import Memory, TrainingLog
from symconfig.measured.log_row import as_row
from symconfig.measured.row_framework import as_options
from symconfig.units import GIB, significant

DIGITS = 5  # of what is measured
NOTES = (
    "One GPU ran one rank of the plan with a network that only pretends: stage_*_ms are the GPU's own work, forward "
    "and backward of a microbatch through its pipeline stage (counted from 0) and one optimizer step; no collective.",
    "Peaks are of torch's allocator; device_used_gib is what the driver says, without NCCL's buffers.",
)


def document(measurement: Measurement) -> Measurements:
    """Return the file of measurements.

    Raises InputError when nothing was measured that a prediction could be held against.
    """
    software = measurement.taken.software
    names = ("gpu", "megatron", "torch", "cuda", "transformer_engine", "python")
    source = {"title": f"symconfig measure on one {software.get('gpu', 'GPU')}"}
    source |= {name: str(software[name]) for name in names if name in software}
    return Measurements(schema="symconfig.measurements/1", source=source, notes=NOTES, rows=(row(measurement),))


def row(measurement: Measurement) -> Row:
    """Return the rank's row as it ran: the arguments that Megatron resolved, with the layers that were at hand."""
    if measurement.run.device != "cuda" or measurement.taken.memory is None:
        raise InputError("a measured row is of a GPU", field="--out", got=f"--device {measurement.run.device}")
    if measurement.other_gpu is not None:
        raise InputError(
            "this GPU is not of the plan's type, so that its row would be taken for another's",
            field="--out",
            got=measurement.other_gpu,
            need=measurement.plan.cluster.name,
            hint="--cluster with the cluster that this GPU belongs to",
        )
    plan, run = measurement.plan, measurement.run
    name = f"{plan.model.name}-rank{run.rank}-{run.impl}"
    log = TrainingLog(
        path=name,
        framework="megatron",
        steps=(),
        steady=None,
        memory=(Memory(run.rank, max_allocated=float(measurement.taken.memory.allocated_bytes)),),
        arguments=measurement.taken.args,
        config={},
        degrees={},
        vocab_size=None,
        out_of_memory=None,
        remarks=(),
    )
    ours = as_options(as_measured(plan, run.impl, run.attention).request.framework)
    own = {"flash": torch_attention(plan.cluster.gpu.architecture), "unfused": "masked"}[run.attention]
    attention = {"attention_kernel": own} if run.impl == "local" else {}
    options = MeasuredOptions.model_validate(ours | attention)
    made = as_row(log, plan.cluster, plan.model, gpus=plan.best.parallel.world_size, options=options)
    return made.model_copy(update={"measured": measured(measurement)})


def measured(measurement: Measurement) -> Measured:
    """Return times of the GPU's own work and its peaks, or that it ran out of memory."""
    taken, passes, stage = measurement.taken, measurement.passes, measurement.run.stage
    if not measurement.fits:
        return Measured(stage=stage, oom=True)
    if taken.memory is None or passes is None:
        raise InputError("nothing was measured", field="--out")
    return Measured(
        stage=stage,
        stage_forward_ms=significant(1e3 * passes.forward_s, DIGITS),
        stage_backward_ms=significant(1e3 * passes.backward_s, DIGITS),
        stage_optimizer_ms=significant(1e3 * passes.optimizer_s, DIGITS),
        peak_allocated_gib=significant(taken.memory.allocated_bytes / GIB, DIGITS),
        peak_reserved_gib=significant(taken.memory.reserved_bytes / GIB, DIGITS),
        device_used_gib=significant(taken.memory.device_bytes / GIB, DIGITS),
    )
