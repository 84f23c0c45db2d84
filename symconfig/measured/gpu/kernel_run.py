"""Kernels as torch runs them: buffers of the right sizes and layouts, and a call that takes the next set of them.

torch is imported by whoever makes a `Bench`. Operands are random: products of zeros draw less power and run faster.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache, partial
from math import ceil
from typing import Any

from symconfig.measured.gpu.kernel_clock import Call
from symconfig.measured.gpu.kernel_times import Attention, HostCopy, Kernel, Launch, Product, Stream, Streaming

MOST_SETS = 32
_MEMORY_SHARE = 0.25  # of the free memory, for one kernel's buffers
_LEAST_CAPABILITY = {"bf16": (8, 0), "fp16": (5, 3), "fp8": (8, 9)}  # of NVIDIA's GPUs


@dataclass(frozen=True, slots=True)
class Way:
    """One implementation of a kernel."""

    call: Call
    how: str | None = None


Make = Callable[[], Way]


@dataclass(frozen=True, slots=True)
class Bench:
    """torch, a device and its cache."""

    torch: Any
    device: str
    cache_bytes: int
    has_bf16: bool = True

    @property
    def cuda(self) -> bool:
        return self.device == "cuda"

    @property
    def half(self) -> Any:
        """Return torch's 16-bit type for this device: bfloat16, else float16."""
        return self.torch.bfloat16 if self.has_bf16 else self.torch.float16

    def sets(self, bytes_each: float) -> int:
        """Return the number of buffer sets to cycle through, so that no run finds its operands in the cache.

        Enough for twice the cache, at most MOST_SETS and a quarter of the free memory, at least 1.
        """
        wanted = ceil(2 * self.cache_bytes / bytes_each) if bytes_each else 1
        free = self.torch.cuda.mem_get_info()[0] if self.cuda else 2**30
        return max(1, min(MOST_SETS, wanted, int(_MEMORY_SHARE * free / max(bytes_each, 1))))

    def normal(self, *shape: int, dtype: Any = None) -> Any:
        return self.torch.randn(shape, dtype=dtype or self.half, device=self.device)


def bench(torch: Any, device: str) -> Bench:
    """Return the torch device with its cache size (128 MiB if unknown; 0 on a CPU) and whether it has bf16."""
    if device == "cpu":
        return Bench(torch, device, 0)  # one set each: numbers of a CPU are looked at by nobody
    facts = torch.cuda.get_device_properties(torch.cuda.current_device())
    # A property since torch 2.5; the largest cache of a GPU so far is that of Blackwell, 126 MB.
    cache = getattr(facts, "L2_cache_size", 0) or 128 * 2**20
    return Bench(torch, device, cache, _amd(torch) or torch.cuda.get_device_capability() >= _LEAST_CAPABILITY["bf16"])


def _amd(torch: Any) -> bool:
    return torch.version.hip is not None


def unsupported(bench: Bench, kernel: Kernel) -> str | None:
    """Return why this device or torch cannot run the kernel's precision, or None if it can."""
    if not isinstance(kernel, Product):
        return None
    torch = bench.torch
    if kernel.dtype == "fp8" and (not bench.cuda or _amd(torch) or not hasattr(torch, "_scaled_mm")):
        return "fp8 products need an NVIDIA GPU and a torch with _scaled_mm"
    if bench.cuda and not _amd(torch):
        has, least = torch.cuda.get_device_capability(), _LEAST_CAPABILITY[kernel.dtype]
        if tuple(has) < least:
            return f"{kernel.dtype} needs compute capability {least[0]}.{least[1]}, this GPU has {has[0]}.{has[1]}"
    return None


def ways(bench: Bench, kernel: Kernel) -> list[Make]:
    """Return a function for each implementation that torch has; each allocates its buffers and returns a Way.

    Calling one may fail like running the kernel.
    """
    if isinstance(kernel, Product):
        return [partial(_low_product if kernel.dtype == "fp8" else _product, bench, kernel)]
    if isinstance(kernel, Attention):
        return _attentions(bench, kernel)
    if isinstance(kernel, Stream):
        known: dict[Streaming, Callable[[Bench, Stream], Way]] = {
            "copy": _copy,
            "glu": _glu,
            "gelu": _gelu,
            "rmsnorm": _norm,
            "layernorm": _norm,
        }
        makes: list[Make] = [partial(known[kernel.what], bench, kernel)]
        return [*makes, partial(_compiled_swiglu, bench, kernel)] if kernel.what == "glu" and bench.cuda else makes
    if isinstance(kernel, HostCopy):
        return [partial(_host_copy, bench, kernel)]
    return [partial(_launch, bench, kernel)]


def _product(bench: Bench, kernel: Product) -> Way:
    """Return a matmul, batched if batch > 1, with operands in the layout of the kernel's pass."""
    torch, batch, m, n, k = bench.torch, kernel.batch, kernel.m, kernel.n, kernel.k
    dtype = torch.bfloat16 if kernel.dtype == "bf16" else torch.float16

    def operands() -> tuple[Any, Any, Any]:
        # Weights lie as [out, in]: forward x W', input's gradient dY W, weight's gradient dY' X.
        first = bench.normal(batch, *((k, m) if kernel.layout == "weight-gradient" else (m, k)), dtype=dtype)
        second = bench.normal(batch, *((n, k) if kernel.layout == "forward" else (k, n)), dtype=dtype)
        first = first.mT if kernel.layout == "weight-gradient" else first
        second = second.mT if kernel.layout == "forward" else second
        out = torch.empty((batch, m, n), dtype=dtype, device=bench.device)
        return (first, second, out) if batch > 1 else (first[0], second[0], out[0])

    sets = [operands() for _ in range(bench.sets(2.0 * batch * (m * k + k * n + m * n)))]
    run = torch.bmm if batch > 1 else torch.mm

    def call(index: int) -> object:
        first, second, out = sets[index % len(sets)]
        return run(first, second, out=out)

    return Way(call)


def _low_product(bench: Bench, kernel: Product) -> Way:
    """Return an fp8 matmul with the cast of its first operand; the second, a weight, is cast beforehand."""
    torch, m, n, k = bench.torch, kernel.m, kernel.n, kernel.k
    low, one = torch.float8_e4m3fn, torch.ones((), dtype=torch.float32, device=bench.device)
    sets = [(bench.normal(m, k), bench.normal(n, k).to(low).t()) for _ in range(bench.sets(3.0 * m * k + k * n))]
    kept = _Ring(bench.sets(2.0 * m * n))

    def call(index: int) -> object:
        first, second = sets[index % len(sets)]
        return kept.put(
            torch._scaled_mm(
                first.to(low),
                second,
                scale_a=one,
                scale_b=one,
                out_dtype=bench.half,
                use_fast_accum=kernel.layout == "forward",
            )
        )

    return Way(call)


class _Ring:
    """A ring of the last results, so that the next one is written to other memory."""

    def __init__(self, size: int) -> None:
        self._held: list[object] = [None] * size
        self._next = 0

    def put(self, result: object) -> object:
        self._held[self._next] = result
        self._next = (self._next + 1) % len(self._held)
        return result


def _attentions(bench: Bench, kernel: Attention) -> list[Make]:
    """Return cuDNN's and FlashAttention-2's implementations; on a CPU the default one.

    If values are narrower than keys, each also with padded values, for kernels that require equal widths.
    """
    if not bench.cuda:
        return [partial(_attention, bench, kernel, None, None, kernel.value_channels)]
    from torch.nn.attention import SDPBackend

    backends = (("cuDNN", SDPBackend.CUDNN_ATTENTION), ("flash", SDPBackend.FLASH_ATTENTION))
    widths = ((kernel.value_channels, ""), (kernel.channels, ", values padded"))
    return [
        partial(_attention, bench, kernel, backend, name + padded, width)
        for width, padded in widths[: 1 + (kernel.channels > kernel.value_channels)]
        for name, backend in backends
    ]


def _attention(bench: Bench, kernel: Attention, backend: Any, how: str | None, value_channels: int) -> Way:
    """Return causal attention with this backend (None: torch's choice).

    value_channels: the width of values, padded or not.
    """
    torch = bench.torch
    of = torch.nn.functional.scaled_dot_product_attention

    def tensor(heads: int, channels: int) -> Any:
        """Return a tensor [batch, heads, length, channels], in memory as a projection leaves it."""
        made = bench.normal(kernel.batch, kernel.length, heads, channels).transpose(1, 2)
        return made.requires_grad_(kernel.backward)

    def attention(inputs: Sequence[Any]) -> Any:
        from torch.nn.attention import sdpa_kernel

        with sdpa_kernel(backend) if backend is not None else nullcontext():
            return of(*inputs, is_causal=True, enable_gqa=kernel.heads != kernel.kv_heads)

    keys = kernel.kv_heads * kernel.batch * kernel.length
    count = bench.sets(2.0 * (2 * kernel.queries + keys) * (kernel.channels + value_channels))
    sets = [
        (
            tensor(kernel.heads, kernel.channels),
            tensor(kernel.kv_heads, kernel.channels),
            tensor(kernel.kv_heads, value_channels),
        )
        for _ in range(count)
    ]
    return _way(bench, attention, sets, kernel.backward, how)


def _way(
    bench: Bench,
    function: Callable[[Sequence[Any]], Any],
    sets: Sequence[tuple[Any, ...]],
    backward: bool,
    how: str | None,
) -> Way:
    """Return a call of `function`'s forward, or of its backward alone on graphs built beforehand."""
    kept = _Ring(len(sets))
    if not backward:
        return Way(lambda index: kept.put(function(sets[index % len(sets)])), how)
    graphs = []
    for inputs in sets:
        out = function(inputs)
        graphs.append((out, [each for each in inputs if each.requires_grad], bench.torch.randn_like(out)))

    def call(index: int) -> object:
        out, inputs, gradient = graphs[index % len(graphs)]
        return kept.put(bench.torch.autograd.grad(out, inputs, gradient, retain_graph=True))

    return Way(call, how)


def swiglu(x: Any) -> Any:
    """Return SwiGLU of x: [rows, 2 columns] to [rows, columns]."""
    gate, up = x.chunk(2, dim=-1)
    return gate * gate.sigmoid() * up


def swiglu_back(x: Any, gradient: Any) -> Any:
    """Return the gradient of SwiGLU's input x, [rows, 2 columns], from that of its output, [rows, columns]."""
    gate, up = x.chunk(2, dim=-1)
    share = gate.sigmoid()
    result = x.new_empty(x.shape)
    result[..., : gate.shape[-1]] = gradient * up * share * (1 + gate * (1 - share))
    result[..., gate.shape[-1] :] = gradient * gate * share
    return result


@cache
def _compiled(function: Callable[..., Any]) -> Any:
    """Return the function compiled for all sizes; cached."""
    import torch

    return torch.compile(function, dynamic=True)


def _inputs(bench: Bench, kernel: Stream, backward: bool) -> list[tuple[Any, ...]]:
    wide = 2 * kernel.columns if kernel.what == "glu" else kernel.columns
    return [(bench.normal(kernel.rows, wide).requires_grad_(backward),) for _ in range(bench.sets(2.0 * kernel.moved))]


def _copy(bench: Bench, kernel: Stream) -> Way:
    """Return a copy of [rows, columns] within the device's memory."""
    pairs = [(bench.torch.empty_like(x), x) for (x,) in _inputs(bench, kernel, False)]

    def call(index: int) -> object:
        to, source = pairs[index % len(pairs)]
        return to.copy_(source)

    return Way(call)


def _glu(bench: Bench, kernel: Stream) -> Way:
    """Return torch's GLU, which is one kernel with the memory traffic of SwiGLU."""
    function = bench.torch.nn.functional.glu
    return _way(
        bench,
        lambda inputs: function(inputs[0], dim=-1),
        _inputs(bench, kernel, kernel.backward),
        kernel.backward,
        "glu",
    )


def _gelu(bench: Bench, kernel: Stream) -> Way:
    """Return GELU's tanh form, forward or backward."""
    function = bench.torch.nn.functional.gelu
    return _way(
        bench,
        lambda inputs: function(inputs[0], approximate="tanh"),
        _inputs(bench, kernel, kernel.backward),
        kernel.backward,
        None,
    )


def _compiled_swiglu(bench: Bench, kernel: Stream) -> Way:
    """Return SwiGLU's forward or backward as one compiled kernel. Raise ImportError without Triton."""
    import triton  # type: ignore[import-not-found]  # noqa: F401  # says at once that it is missing

    inputs = [x for (x,) in _inputs(bench, kernel, False)]
    count = len(inputs)
    kept = _Ring(count)
    if not kernel.backward:
        forward = _compiled(swiglu)
        return Way(lambda index: kept.put(forward(inputs[index % count])), "compiled")
    gradients = [bench.normal(kernel.rows, kernel.columns) for _ in inputs]
    backward = _compiled(swiglu_back)
    return Way(lambda index: kept.put(backward(inputs[index % count], gradients[index % count])), "compiled")


def _norm(bench: Bench, kernel: Stream) -> Way:
    """Return a norm's forward, or its backward to the input alone, without the weight's gradient.

    On a GPU without a fused RMSNorm it is a LayerNorm, and `how` says so.
    """
    torch, functions = bench.torch, bench.torch.nn.functional
    weight = torch.ones(kernel.columns, dtype=bench.half, device=bench.device)
    shape, sets = (kernel.columns,), _inputs(bench, kernel, kernel.backward)
    # Without a fused kernel torch makes an RMSNorm of half a dozen element-wise ones, as no framework does.
    if kernel.what == "layernorm" or (bench.cuda and not hasattr(torch.ops.aten, "_fused_rms_norm")):
        how = None if kernel.what == "layernorm" else "layernorm, for want of a fused rmsnorm"
        bias = torch.zeros_like(weight)
        return _way(
            bench, lambda inputs: functions.layer_norm(inputs[0], shape, weight, bias), sets, kernel.backward, how
        )
    return _way(bench, lambda inputs: functions.rms_norm(inputs[0], shape, weight, 1e-5), sets, kernel.backward, None)


def _launch(bench: Bench, kernel: Launch) -> Way:
    """Return an addition to 1024 elements (device), or a small linear layer with autograd (host)."""
    torch = bench.torch
    if kernel.where == "device":
        x = torch.zeros(1024, device=bench.device)
        return Way(lambda index: x.add_(1.0))
    x = bench.normal(16, 64)
    weight = bench.normal(64, 64).requires_grad_()
    return Way(lambda index: torch.nn.functional.linear(x, weight))


def _host_copy(bench: Bench, kernel: HostCopy) -> Way:
    torch = bench.torch
    host = torch.zeros(kernel.bytes_, dtype=torch.uint8, pin_memory=True)
    device = torch.zeros(kernel.bytes_, dtype=torch.uint8, device=bench.device)
    to, source = (device, host) if kernel.to_device else (host, device)
    return Way(lambda index: to.copy_(source, non_blocking=True))
