"""Which kernels are worth measuring: sizes that the zoo's models run at realistic degrees, each once and thinned."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, inf, log2

from symconfig.descriptor.model import ModelDescriptor
from symconfig.frameworks.megatron.behaviour import MEGATRON
from symconfig.graph.derived import AttentionWork, Matmul, Phase, Traffic
from symconfig.graph.model import blocks, derived, dim_sizes
from symconfig.graph.operator import ELEMENT_BYTES, Element, Operator
from symconfig.graph.scheme import Scheme
from symconfig.measured.gpu.kernel_times import Attention, Dtype, HostCopy, Kernel, Launch, Layout, Product, Stream
from symconfig.units import MIB

_ACTIVATION_BYTES = int(ELEMENT_BYTES[Element.ACTIVATION])
_LAYOUTS: dict[Phase, Layout] = {
    Phase.FORWARD: "forward",
    Phase.INPUT: "input-gradient",
    Phase.WEIGHT: "weight-gradient",
}
_MIB = int(MIB)
LOW_MULTIPLE = 16  # of every dim of an fp8 product (cuBLASLt's requirement)
WORTH = 1e-3  # of the FLOP of a model's largest product: a smaller one, as a router's, is no part of its time


@dataclass(frozen=True, slots=True)
class Point:
    """Degrees and batch of one rank."""

    tp: int
    ep: int
    micro: int
    length: int


@dataclass(frozen=True, slots=True)
class Selection:
    """The points at which the models are looked at, and the number of kernels of each family.

    precisions: of products, with the number of single and of grouped ones. attentions, streams: forward and backward
    each. most_flops: of one kernel. host_bytes: of copies to the host and back; none without a device of its own.
    """

    points: tuple[Point, ...]
    precisions: Mapping[Dtype, tuple[int, int]]
    attentions: int
    streams: int
    most_flops: float
    copies: tuple[int, ...]
    host_bytes: tuple[int, ...]


GPU = Selection(
    (Point(1, 8, 1, 4096), Point(2, 4, 2, 4096), Point(4, 16, 1, 8192), Point(8, 16, 4, 2048)),
    {"bf16": (48, 12), "fp16": (6, 0), "fp8": (18, 0)},
    attentions=12,
    streams=12,
    most_flops=inf,
    copies=(64 * _MIB, 256 * _MIB, 1024 * _MIB),
    host_bytes=(16 * _MIB, 256 * _MIB),
)
# So little that a processor is through in seconds: it says nothing of GPUs, but goes the same way.
CPU = Selection(
    (Point(8, 64, 1, 64), Point(8, 64, 1, 128)),
    {"bf16": (6, 2)},
    attentions=2,
    streams=2,
    most_flops=5e8,
    copies=(_MIB, 8 * _MIB),
    host_bytes=(),
)


@dataclass(frozen=True, slots=True)
class WantedKernel:
    """A kernel, and the model that asked for it."""

    what: Kernel
    model: str | None = None


def wanted_kernels(models: Sequence[ModelDescriptor], selection: Selection) -> tuple[WantedKernel, ...]:
    """Return the kernels to measure for these models: launches, products, attention, norms, activations and copies.

    Deterministic. Products, attention and streaming kernels name the model that they are taken from.
    """
    worth = {model.name: _worth(_kernels(model, selection.points), selection.most_flops) for model in models}
    result: list[WantedKernel] = [WantedKernel(Launch(where="device")), WantedKernel(Launch(where="host"))]
    for dtype, counts in selection.precisions.items():
        for grouped, count in zip((False, True), counts, strict=True):
            result += _thinned({name: _products(kernels, dtype, grouped) for name, kernels in worth.items()}, count)
    for backward in (False, True):
        for kind, count in ((Attention, selection.attentions), (Stream, selection.streams)):
            for family in sorted({k.family for ks in worth.values() for k in ks if _is_kind(k, kind, backward)}):
                mine = {
                    name: {k for k in ks if _is_kind(k, kind, backward) and k.family == family}
                    for name, ks in worth.items()
                }
                result += _thinned(mine, count)
    width = max(model.hidden_size for model in models)
    result += [
        WantedKernel(Stream(what="copy", rows=ceil(size / _ACTIVATION_BYTES / width), columns=width))
        for size in selection.copies
    ]
    result += [
        WantedKernel(HostCopy(to_device=way, bytes=size)) for way in (True, False) for size in selection.host_bytes
    ]
    return tuple(result)


def _worth(kernels: Iterator[Kernel], most_flops: float) -> set[Kernel]:
    every = [k for k in kernels if not isinstance(k, Product | Attention) or k.flops <= most_flops]
    least = WORTH * max((k.flops for k in every if isinstance(k, Product)), default=0.0)
    return {k for k in every if not isinstance(k, Product) or k.flops >= least}


def _is_kind(kernel: Kernel, kind: type, backward: bool) -> bool:
    return isinstance(kernel, Attention | Stream) and isinstance(kernel, kind) and kernel.backward is backward


def _products(kernels: set[Kernel], dtype: Dtype, grouped: bool) -> set[Kernel]:
    """Return the grouped or single products that run in fp8 (for dtype fp8) or in 16 bits, with the dtype set."""
    low = dtype == "fp8"
    return {
        k.model_copy(update={"dtype": dtype})
        for k in kernels
        if isinstance(k, Product) and (k.batch > 1) is grouped and (k.dtype == "fp8") is low
    }


def _kernels(model: ModelDescriptor, points: Sequence[Point]) -> Iterator[Kernel]:
    """Yield the kernels that a model runs at each point; points whose tp does not divide the heads are left out."""
    scheme = Scheme(True)
    operators = {
        (kind, op.name): op for kind, block in blocks(model, MEGATRON.implementation).items() for op in block.operators
    }
    for point in points:
        if model.num_attention_heads % point.tp:
            continue
        numbers = _numbers(model, point)
        for kind, block in derived(model, MEGATRON.implementation, scheme).items():
            for work in block.work:
                if isinstance(work, Matmul):
                    yield from _matmul(work, numbers)
                elif isinstance(work, AttentionWork) and work.keys == "keys_full":
                    yield _attention(work, model, point, numbers)
                elif isinstance(work, Traffic):
                    yield from _stream(work, operators[kind, work.op], model, scheme, numbers)


def _numbers(model: ModelDescriptor, point: Point) -> dict[str, float]:
    """Return the values of all size symbols for a model at a point: cp, dp and etp are 1, ep at most the experts."""
    experts = model.experts.num_experts if model.experts else 1
    return {
        **dim_sizes(model),
        "tp": point.tp,
        "cp": 1,
        "dp": 1,
        "ep": min(point.ep, experts),
        "etp": 1,
        "micro_batch": point.micro,
        "seq_length": point.length,
        "expert_imbalance": 1.0,
        "padded_vocab_size": MEGATRON.padded_vocab(model.vocab_size, point.tp),
    }


def _matmul(work: Matmul, numbers: Mapping[str, float]) -> Iterator[Product]:
    batch, m, n, k = (max(1, round(size.value(numbers))) for size in (work.batch, work.m, work.n, work.k))
    yield Product(dtype="bf16", layout=_LAYOUTS[work.phase], batch=batch, m=m, n=n, k=k)
    # A weight's gradient in fp8 reads copies that the forward and the input's gradient made: torch has no such cast.
    if work.low_precision and work.phase is not Phase.WEIGHT and not any(d % LOW_MULTIPLE for d in (m, n, k)):
        yield Product(dtype="fp8", layout=_LAYOUTS[work.phase], batch=batch, m=m, n=n, k=k)


def _attention(work: AttentionWork, model: ModelDescriptor, point: Point, numbers: Mapping[str, float]) -> Attention:
    """Return the attention kernel of one rank at a point, forward or backward."""
    channels, value_channels = (int(numbers[name]) for name in work.channels)
    return Attention(
        backward=work.phase is not Phase.FORWARD,
        batch=point.micro,
        heads=round(work.queries.value(numbers)) // (point.micro * point.length),
        kv_heads=max(1, model.num_key_value_heads // point.tp),
        length=point.length,
        channels=channels,
        value_channels=value_channels,
    )


def _stream(
    work: Traffic, op: Operator, model: ModelDescriptor, scheme: Scheme, numbers: Mapping[str, float]
) -> Iterator[Stream]:
    """Yield the kernel of a norm or activation function; nothing for other operators or for less than one column."""
    what = model.norm.value if op.name.endswith("norm") else "glu" if model.gated_mlp else "gelu"
    if not op.name.endswith(("norm", "activation")):
        return
    columns = numbers.get(last := op.outputs[0].loops[-1], 0.0)
    for axis in scheme.parts(op).get(last, ()):
        columns /= numbers[axis]
    moved = sum(size.value(numbers) for size, element in work.moved if element is Element.ACTIVATION)
    one = Stream.model_validate({"what": what, "backward": work.phase is not Phase.FORWARD, "rows": 1, "columns": 1})
    if columns >= 1:
        yield one.model_copy(update={"rows": max(1, round(moved / one.moved / columns)), "columns": int(columns)})


def _thinned(by_model: Mapping[str, set[Kernel]], count: int) -> list[WantedKernel]:
    """Return up to `count` kernels far apart in size, chosen greedily, the models taking turns."""
    left = {name: sorted(kernels, key=str) for name, kernels in by_model.items() if kernels}
    taken: dict[Kernel, str] = {}
    while len(taken) < count and left:
        for name in sorted(left):
            options = [kernel for kernel in left[name] if kernel not in taken]
            if not options:
                del left[name]
            elif len(taken) < count:
                taken[max(options, key=lambda kernel: _distance(kernel, taken))] = name
    return [WantedKernel(kernel, name) for kernel, name in taken.items()]


def _distance(kernel: Kernel, taken: Mapping[Kernel, str]) -> float:
    """Return the squared distance in doublings of sizes to the nearest kernel taken; other differences count 1 each.

    Without any taken, the sum of the kernel's sizes, so that the largest is taken first.
    """
    mine = kernel.model_dump()

    def apart(other: Kernel) -> float:
        theirs = other.model_dump()
        return sum(
            log2(value / theirs[name]) ** 2
            if isinstance(value, int) and not isinstance(value, bool)
            else value != theirs[name]
            for name, value in mine.items()
        )

    return min((apart(other) for other in taken), default=sum(v for v in mine.values() if isinstance(v, int)))
