"""One measured row beside its prediction; a rate in FLOP/s is turned back into seconds as its source counts FLOP."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from symconfig.cost.framework import reserved_bytes
from symconfig.cost.work import block_flops
from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.descriptor.measurements import Row
from symconfig.descriptor.model import ModelDescriptor
from symconfig.errors import InputError
from symconfig.graph.block import LAYER
from symconfig.graph.derived import Phase
from symconfig.graph.implementation import Implementation
from symconfig.graph.model import derived, dim_sizes, keys, sequence, visible
from symconfig.graph.scheme import Scheme
from symconfig.measured.assumptions import Counting
from symconfig.measured.cases import Case, case
from symconfig.solve.predict import Prediction, alone_s, as_found, predict
from symconfig.solve.prospect import Setup
from symconfig.units import GIB, MIB

ACTIVE = ("activations", "head and loss", "working set")  # parts of memory beside the model's states


@dataclass(frozen=True, slots=True)
class Judged:
    """A row with its prediction. time: seconds a step predicted and measured, or of a step what one stage's GPU works
    by itself; memory: bytes predicted and measured.

    layers: seconds of one layer's passes, predicted and measured. oom: whether the run is predicted to run out of
    memory, at no margin. time_from: the stated figure that the measured seconds come from.
    """

    row: Row
    case: Case
    prediction: Prediction
    time: tuple[float, float] | None
    memory: tuple[float, float] | None
    oom: bool
    layers: tuple[tuple[float, float], ...] = ()
    time_from: str | None = None

    @property
    def assumed(self) -> bool:
        """Return whether the prediction rests on assumptions about what the row does not state."""
        return bool(self.case.assumed)


def judge(
    source: str, row: Row, model: ModelDescriptor | None = None, cluster: ClusterDescriptor | None = None
) -> Judged:
    """Return one row with its prediction. model, cluster: replace those that the row states. Raises InputError if the
    row cannot be predicted, or states nothing that is.
    """
    return judge_case(row, case(source, row, model, cluster))


def judge_case(row: Row, what: Case) -> Judged:
    """Return one row with the prediction of its case, of whose configurations the fastest that fits counts, else the
    first. Raises InputError if the row states no time, memory, layer time or out-of-memory.
    """
    limit = what.cluster.gpu.memory_bytes.value
    prediction = predict(what.model, what.cluster, what.configuration)
    for other in what.others:
        tried = predict(what.model, what.cluster, other)
        if tried.predicted.device_bytes <= limit and tried.predicted.step_s < prediction.predicted.step_s:
            what, prediction = replace(what, configuration=other), tried
    stated = _seconds(row, what)
    stage = timed_stage(row)
    seconds = prediction.predicted.step_s
    if stage is not None:
        seconds = float(alone_s(as_found(what.model, what.cluster, what.configuration), stage)[0])
    time = None if stated is None else (seconds, stated[1])
    memory, layers = _memory(row, what, prediction), _layers(row, prediction)
    if not (time or memory or layers or row.measured.oom):
        raise InputError("states no time, rate, memory or out-of-memory that is predicted", field="measured")
    oom = prediction.predicted.device_bytes > limit
    return Judged(
        row=row,
        case=what,
        prediction=prediction,
        time=time,
        memory=memory,
        oom=oom,
        layers=layers,
        time_from=stated[0] if stated else None,
    )


def timed_stage(row: Row) -> int | None:
    """Return the pipeline stage whose own time the row states, or None if it states a whole step."""
    return row.measured.stage if row.measured.stage_forward_ms is not None else None


def _seconds(row: Row, what: Case) -> tuple[str, float] | None:
    """Return (figure, seconds that follow from it) of the first figure that the row states; None without one.

    Of a stage's work, if the row times a stage: its microbatches x (forward + backward), plus the optimizer; InputError
    if the plan has fewer stages. Else of a step, in this order: seconds, tokens/s per GPU, tokens/s, samples/s per GPU,
    FLOP/s or MFU (`tokens_per_s_per_gpu`); seconds and tokens/s per GPU also from `derived`.
    """
    measured, computed, c = row.measured, row.derived, what.configuration
    stage = timed_stage(row)
    if stage is not None:
        if stage >= c.pp:
            raise InputError("the plan has fewer stages", field="measured.stage", got=str(stage), need=f"< {c.pp}")
        passes = (measured.stage_forward_ms or 0.0) + (measured.stage_backward_ms or 0.0)
        times = c.global_batch // (c.dp * c.micro)
        return "stage_forward_ms", (times * passes + (measured.stage_optimizer_ms or 0.0)) / 1e3
    if seconds := measured.step_s or computed.step_s:
        return "step_s", seconds
    samples = c.global_batch
    tokens = samples * c.seq_length
    for name, work, rate in (
        (
            "tokens_per_s_per_gpu",
            tokens / c.world_size,
            measured.tokens_per_s_per_gpu or computed.tokens_per_s_per_gpu,
        ),
        ("tokens_per_s", tokens, measured.tokens_per_s),
        ("samples_per_s_per_gpu", samples / c.world_size, measured.samples_per_s_per_gpu),
    ):
        if rate:
            return name, work / rate
    peak = getattr(what.cluster.gpu.peak_flops, what.configuration.precision)
    from_flops = tokens_per_s_per_gpu(row, what.model, c, float(peak.value), what.counting)
    return (from_flops[0], tokens / c.world_size / from_flops[1]) if from_flops else None


def _layers(row: Row, prediction: Prediction) -> tuple[tuple[float, float], ...]:
    """Return (predicted, measured) seconds of one layer's forward and backward pass, each if measured."""
    m, p = row.measured, prediction
    pairs = ((p.layer_forward_s, m.layer_forward_ms), (p.layer_backward_s, m.layer_backward_ms))
    return tuple((seconds, ms / 1e3) for seconds, ms in pairs if ms is not None)


def compared_stage(row: Row, prediction: Prediction) -> int:
    """Return the pipeline stage (from 0) whose memory was measured.

    The stated one (at most the last); else the last or first if rank "last" or 0 printed it; else the one predicted to
    be the fullest.
    """
    peaks = prediction.stage_bytes
    if row.measured.stage is not None:
        return min(row.measured.stage, len(peaks) - 1)
    if row.measured.memory_rank == "last":
        return len(peaks) - 1
    return 0 if row.measured.memory_rank == 0 else peaks.index(max(peaks))


def _memory(row: Row, what: Case, prediction: Prediction) -> tuple[float, float] | None:
    """Return (predicted, measured) bytes of the first memory figure that the row states; None without one.

    In this order: peak allocated and reserved, `memory_gb` (as allocated), each of the compared stage; device total;
    activations alone, without weights and states (the larger of first and last rank). Units are 2^30 or 2^20.
    """
    measured, predicted = row.measured, prediction.predicted
    peak = prediction.stage_bytes[compared_stage(row, prediction)]
    live = (measured.activation_peak_mib_first_rank or 0.0, measured.activation_peak_mib_last_rank or 0.0)
    stated = (
        (peak, measured.peak_allocated_gib, GIB),
        (float(reserved_bytes(peak, what.configuration.framework)), measured.peak_reserved_gib, GIB),
        (peak, measured.memory_gb, GIB),
        (predicted.device_bytes, measured.device_used_gib or measured.device_used_gb, GIB),  # nvidia-smi's GB are GiB
        (sum(predicted.memory[name] for name in ACTIVE), max(live), MIB),  # the worse of both ends
    )
    return next(((bytes_, value * unit) for bytes_, value, unit in stated if value), None)


def flops_per_token(
    model: ModelDescriptor, seq_length: int, counting: Counting, repeated: Collection[str] = ()
) -> float:
    """Return the FLOP of one token, forward and backward, as the source counts attention's mask and vocabulary
    matrices. repeated: modules whose recomputed forward also counts: with LAYER each layer's whole forward, with any
    others that of attention's products alone; empty: none.
    """
    blocks, kinds = derived(model, Implementation(), Scheme(False)), sequence(model)
    plain = dim_sizes(model) | {"seq_length": float(seq_length)}
    attended = keys(model, seq_length) if counting.causal == "half" else visible(model, seq_length)
    numbers = plain | attended
    flops = block_flops(blocks, numbers)
    if repeated:
        once = block_flops(blocks, numbers, (Phase.FORWARD,))
        no_attention = block_flops(blocks, plain | dict.fromkeys(attended, 0.0), (Phase.FORWARD,))
        for kind in set(model.layer_kinds):
            flops[kind] += once[kind] - (0.0 if LAYER in repeated else no_attention[kind])
    matrix = 6 * model.hidden_size * model.vocab_size * seq_length
    total = sum(flops[kind] for kind in kinds) + (counting.vocabulary - 1) * matrix
    return total / seq_length


def tokens_per_s_per_gpu(
    row: Row, model: ModelDescriptor, c: Setup, peak_flops: float, counting: Counting
) -> tuple[str, float] | None:
    """Return (name, tokens/s per GPU) of the first figure that the row states and that is not 0; None if it states
    none.

    Order: TFLOP/s (measured, then derived), MFU (measured, else derived), hardware TFLOP/s, HFU; the last two also
    count recomputed modules. peak_flops: FLOP/s that MFU and HFU are relative to, unless the source's counting has its
    own.
    """
    measured, computed = row.measured, row.derived
    peak = counting.peak_tflops * 1e12 if counting.peak_tflops else peak_flops
    recomputed = {LAYER} if c.recompute == "full" else c.recompute_modules
    stated = (
        ("tflops_per_gpu", measured.tflops_per_gpu, 1e12, ()),
        ("tflops_per_gpu", computed.tflops_per_gpu, 1e12, ()),
        ("mfu", measured.mfu or computed.mfu, peak, ()),
        ("hardware_tflops_per_gpu", measured.hardware_tflops_per_gpu, 1e12, recomputed),
        ("hfu", measured.hfu, peak, recomputed),
    )
    for name, value, unit, repeated in stated:
        if value:
            return name, value * unit / flops_per_token(model, c.seq_length, counting, repeated)
    return None
