"""Measures an engine's steps on the GPU at hand: decoding by sequences and contexts, prompts, and sampling."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from symconfig.descriptor.model import ModelDescriptor
from symconfig.errors import InputError
from symconfig.measured.gpu.decoder import Decoder, Fuse, decoder, shapes, unsupported
from symconfig.measured.gpu.kernel_clock import Clock, DeviceClock, HostClock
from symconfig.measured.gpu.kernel_run import Bench, Make, Way
from symconfig.measured.gpu.kernel_times import Generate, KernelTimes, Row, Skipped
from symconfig.measured.gpu.kernels import Progress, alone, fastest, rig_of, warm_up, zoo_name
from symconfig.units import GIB

SEQUENCES = (1, 8, 32, 64, 128, 256, 512)
CONTEXTS = (512, 2048, 8192)
PROMPTS = ((1, 2048), (1, 8192), (4, 2048), (16, 512))  # sequences, and tokens of each
SMALL = ((1, 2), (8, 16), ((1, 16), (2, 8)))  # of a CPU, which shows how it goes
_BYTES = 2  # of a number
_WORKING_BYTES = 6 * GIB  # of logits, activations and the libraries


def points(layers: int, small: bool = False) -> tuple[Generate, ...]:
    """Return what is measured: first sampling and decoding, the fewest sequences first, then prompts."""
    sequences, contexts, prompts = SMALL if small else (SEQUENCES, CONTEXTS, PROMPTS)
    decoded = [Generate(part="decode", sequences=s, context=c, layers=layers) for s in sequences for c in contexts]
    prefilled = [Generate(part="prefill", sequences=s, context=c, layers=layers) for s, c in prompts]
    return (*decoded, *prefilled, *(Generate(part="sample", sequences=s, layers=layers) for s in sequences))


def measure_generation(
    torch: Any,
    device: str,
    models: Sequence[ModelDescriptor],
    budget_s: float,
    progress: Progress,
    layers: int | None = None,
) -> KernelTimes:
    """Measure every point that the memory has room for, of each model in turn. layers: the first ones, not all."""
    for model in models:
        if (reason := unsupported(model)) is not None:
            raise InputError(reason, field="--generation", got=model.name)
    rows: list[Row] = []
    skipped: list[Skipped] = []
    with alone(torch, device) as on, torch.no_grad():
        fuse, note = _fuse(on)
        if on.cuda:
            warm_up(on)
        for index, model in enumerate(models):
            progress(f"building {model.name}", index / len(models))
            until = time.perf_counter() + budget_s / len(models)
            for item in _model(on, model, layers or model.num_hidden_layers, fuse, until):
                if isinstance(item, Row):
                    rows.append(item)
                else:
                    skipped.append(item)
                progress(f"measuring {model.name}: {item.what.family}", (index + 0.5) / len(models))
        rig = rig_of(on)
    notes = (note,) if note else ()
    return KernelTimes(rig=rig, cluster=zoo_name(rig.product), rows=tuple(rows), skipped=tuple(skipped), notes=notes)


def _fuse(on: Bench) -> tuple[Fuse, str | None]:
    """Return what makes one kernel of a function, and a note where nothing does."""
    if not on.cuda:
        return lambda function: function, None
    compiled: dict[Callable[..., Any], Callable[..., Any]] = {}

    def fuse(function: Callable[..., Any]) -> Callable[..., Any]:
        if function not in compiled:
            compiled[function] = on.torch.compile(function)
        return compiled[function]

    try:
        on.torch.compile(lambda x: 2 * x + 1)(on.normal(16))
    except Exception as error:  # of any kind: a compiler of C that is missing, Triton, a version that does not fit
        message = " ".join(str(error).split())[:200]
        return lambda function: function, f"PyTorch's compiler does not work here, so nothing is fused: {message}"
    return fuse, None


def _model(on: Bench, model: ModelDescriptor, layers: int, fuse: Fuse, until: float) -> Iterator[Row | Skipped]:
    """Measure one model's points, and give its memory back."""
    every = points(layers, small=not on.cuda)
    room = _room(on, model, layers)
    fitting = [what for what in every if what.tokens <= room]
    for what in every:
        if what.tokens > room:
            need = f"{_held_bytes(model, layers) * what.tokens / GIB:.1f} GiB of keys and values"
            yield Skipped(what=what, reason=f"{need} are more than is free beside the weights", model=model.name)
    if not fitting:
        return
    if on.cuda:
        on.torch._dynamo.reset()  # what was compiled for another model's sizes counts against a limit
    whole = decoder(on, model, layers, max(what.tokens for what in fitting), fuse)
    clock: Clock = DeviceClock(on.torch) if on.cuda else HostClock()
    for index, what in enumerate(fitting):
        left = until - time.perf_counter()
        if left <= 0:
            yield Skipped(what=what, reason="the budget of time was spent", model=model.name)
            continue
        yield fastest(on, clock, what, _ways(whole, what), left / (len(fitting) - index), model.name)


def _held_bytes(model: ModelDescriptor, layers: int) -> int:
    """Return the bytes of a token's keys and values."""
    return layers * 2 * model.num_key_value_heads * model.head_dim * _BYTES


def _room(on: Bench, model: ModelDescriptor, layers: int) -> int:
    """Return the tokens that there is memory for beside the weights."""
    if not on.cuda:
        return 10**6
    on.torch.cuda.empty_cache()
    weights = _BYTES * sum(_size(shape.size) for shape in shapes(model, layers))
    return int((on.torch.cuda.mem_get_info()[0] - weights - _WORKING_BYTES) / _held_bytes(model, layers))


def _size(size: tuple[int, ...]) -> int:
    product = 1
    for each in size:
        product *= each
    return product


def _ways(whole: Decoder, what: Generate) -> list[Make]:
    """Return the point by each backend of attention that there may be; sampling has none."""
    if not whole.bench.cuda or what.part == "sample":
        return [lambda: _way(whole, what, None)]
    from torch.nn.attention import SDPBackend

    named = (("flash", SDPBackend.FLASH_ATTENTION), ("cuDNN", SDPBackend.CUDNN_ATTENTION))
    return [partial(_way_by, whole, what, name, backend) for name, backend in named]


def _way_by(whole: Decoder, what: Generate, name: str, backend: Any) -> Way:
    return _way(whole.by(backend), what, name)


def _way(whole: Decoder, what: Generate, how: str | None) -> Way:
    """Return a call of the point. Decoding is a captured graph, as engines have it; prompts are launched."""
    torch, on = whole.bench.torch, whole.bench
    count = what.tokens if what.part == "prefill" else what.sequences
    words = torch.randint(0, whole.model.vocab_size, (count,), device=on.device)
    if what.part == "prefill":
        return Way(lambda index: whole.prefilled(words, what.context), how)
    if what.part == "sample":
        logits = on.normal(what.sequences, whole.model.vocab_size)
        return _captured(on, lambda: whole.sampled(logits), how)
    return _captured(on, lambda: whole.sampled(whole.decoded(words, what.context)), how)


def _captured(on: Bench, step: Callable[[], Any], how: str | None) -> Way:
    """Return a call that replays the step, captured; on a CPU the step itself."""
    if not on.cuda:
        return Way(lambda index: step(), how)
    torch = on.torch
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):  # compiles, loads libraries
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = step()
    return Way(lambda index: (graph.replay(), kept), how)
