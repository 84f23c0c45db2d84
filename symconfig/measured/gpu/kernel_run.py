"""Kernels as torch runs them: buffers of the right sizes and layouts, and a call that takes the next set of them.

torch is imported by whoever makes a `Bench`. Operands are random: products of zeros draw less power and run faster.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from math import ceil
from typing import Any

from symconfig.measured.gpu.kernel_fit import Attention, HostCopy, Kernel, Product, Stream

MOST_SETS = 32
_MEMORY_SHARE = 0.25  # of the free memory, for one kernel's buffers
_LEAST_CAPABILITY = {"bf16": (8, 0), "fp16": (5, 3), "fp8": (8, 9)}  # of NVIDIA's GPUs

Call = Callable[[int], object]  # the i-th run of a kernel; it takes the next set of buffers
Make = Callable[[], Call]  # allocates the buffers


@dataclass(frozen=True, slots=True)
class Bench:
    """torch, a device, the bytes of its last cache, and whether it has bfloat16 units."""

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
        """Return the number of buffer sets to cycle through, so that no run finds its operands in the cache: twice the
        cache over bytes_each, at most MOST_SETS and _MEMORY_SHARE of the free memory (of 1 GiB on a CPU), at least 1.
        """
        wanted = ceil(2 * self.cache_bytes / bytes_each) if bytes_each else 1
        free = self.torch.cuda.mem_get_info()[0] if self.cuda else 2**30
        return max(1, min(MOST_SETS, wanted, int(_MEMORY_SHARE * free / max(bytes_each, 1))))

    def normal(self, *shape: int, dtype: Any = None) -> Any:
        return self.torch.randn(shape, dtype=dtype or self.half, device=self.device)


def bench(torch: Any, device: str) -> Bench:
    """Return the torch device with its cache bytes (128 MiB if unknown; 0 on a CPU) and whether it has bf16."""
    if device == "cpu":
        return Bench(torch, device, 0)  # one set of buffers each: rates of a CPU are only an example
    facts = torch.cuda.get_device_properties(torch.cuda.current_device())
    # A property since torch 2.5; the largest cache of a GPU so far is that of Blackwell, 126 MB.
    cache = getattr(facts, "L2_cache_size", 0) or 128 * 2**20
    return Bench(torch, device, cache, _amd(torch) or torch.cuda.get_device_capability() >= _LEAST_CAPABILITY["bf16"])


def _amd(torch: Any) -> bool:
    return torch.version.hip is not None


def unsupported(on: Bench, kernel: Kernel) -> str | None:
    """Return why this device or torch cannot run a product in the kernel's precision; None if it can, and for other
    kernels. On CPUs and AMD GPUs 16 bits are taken to run.
    """
    if not isinstance(kernel, Product):
        return None
    torch = on.torch
    if kernel.dtype not in _LEAST_CAPABILITY:
        return f"products in {kernel.dtype} are not timed"
    if kernel.dtype == "fp8" and (not on.cuda or _amd(torch) or not hasattr(torch, "_scaled_mm")):
        return "fp8 products need an NVIDIA GPU and a torch with _scaled_mm"
    if not on.cuda or _amd(torch):
        return None
    has, least = torch.cuda.get_device_capability(), _LEAST_CAPABILITY[kernel.dtype]
    if tuple(has) >= least:
        return None
    return f"{kernel.dtype} needs compute capability {least[0]}.{least[1]}, this GPU has {has[0]}.{has[1]}"


def implementations(on: Bench, kernel: Kernel) -> dict[str | None, Make]:
    """Return {name: function that allocates the buffers and returns the call} of each implementation that torch has.
    The name is None if there is only one; attention on a GPU has cuDNN's and FlashAttention-2's. The functions and the
    calls may raise what torch raises for a kernel that it cannot run.
    """
    if isinstance(kernel, Product):
        return {None: partial(_low_product if kernel.dtype == "fp8" else _product, on, kernel)}
    if isinstance(kernel, Attention):
        if not on.cuda:
            return {None: partial(_attention, on, kernel, None)}
        from torch.nn.attention import SDPBackend

        backends = {"cuDNN": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}
        return {name: partial(_attention, on, kernel, backend) for name, backend in backends.items()}
    if isinstance(kernel, Stream):
        return {None: partial(_stream, on, kernel)}
    return {None: partial(_host_copy, on, kernel) if isinstance(kernel, HostCopy) else partial(_launch, on)}


def _product(on: Bench, kernel: Product) -> Call:
    """Return a matmul into a given output, batched if batch > 1, with operands in the layout of the kernel's pass; bf16
    if so named, else fp16.
    """
    torch, batch, m, n, k = on.torch, kernel.batch, kernel.m, kernel.n, kernel.k
    dtype = torch.bfloat16 if kernel.dtype == "bf16" else torch.float16

    def operands() -> tuple[Any, Any, Any]:
        """Return (first, second, output), 3-dimensional if batched, with the strides of the kernel's layout."""
        # Weights lie as [out, in]: forward x W', input's gradient dY W, weight's gradient dY' X.
        first = on.normal(batch, *((k, m) if kernel.layout == "weight-gradient" else (m, k)), dtype=dtype)
        second = on.normal(batch, *((n, k) if kernel.layout == "forward" else (k, n)), dtype=dtype)
        first = first.mT if kernel.layout == "weight-gradient" else first
        second = second.mT if kernel.layout == "forward" else second
        out = torch.empty((batch, m, n), dtype=dtype, device=on.device)
        return (first, second, out) if batch > 1 else (first[0], second[0], out[0])

    sets = [operands() for _ in range(on.sets(2.0 * batch * (m * k + k * n + m * n)))]
    run = torch.bmm if batch > 1 else torch.mm

    def call(index: int) -> object:
        first, second, out = sets[index % len(sets)]
        return run(first, second, out=out)

    return call


def _low_product(on: Bench, kernel: Product) -> Call:
    """Return an fp8 matmul with the cast of its first operand; the second, a weight, is cast beforehand. Scales are 1;
    accumulation is fast for the layout "forward" only. The batch is ignored.
    """
    torch, m, n, k = on.torch, kernel.m, kernel.n, kernel.k
    low, one = torch.float8_e4m3fn, torch.ones((), dtype=torch.float32, device=on.device)
    sets = [(on.normal(m, k), on.normal(n, k).to(low).t()) for _ in range(on.sets(3.0 * m * k + k * n))]
    fast = kernel.layout == "forward"

    def run(inputs: Sequence[Any]) -> object:
        first, second = inputs
        return torch._scaled_mm(first.to(low), second, scale_a=one, scale_b=one, out_dtype=on.half, use_fast_accum=fast)

    return _rotating(run, sets, on.sets(2.0 * m * n))


def _rotating(function: Callable[[Sequence[Any]], object], sets: Sequence[Sequence[Any]], kept: int) -> Call:
    """Return a call of the function on the next set of operands, which keeps its last `kept` results alive.

    The next result is thereby written to other memory.
    """
    results: list[object] = [None] * kept

    def call(index: int) -> object:
        results[index % kept] = result = function(sets[index % len(sets)])
        return result

    return call


def _differentiable(on: Bench, function: Callable[[Sequence[Any]], Any], sets: Sequence[Any], backward: bool) -> Call:
    """Return a call of `function`'s forward on the next inputs, or with `backward` of its backward alone, towards the
    inputs that require gradients, on graphs that are built here once and kept. As many results as sets are kept alive.
    """
    if not backward:
        return _rotating(function, sets, len(sets))
    graphs = []
    for inputs in sets:
        out = function(inputs)
        graphs.append((out, [each for each in inputs if each.requires_grad], on.torch.randn_like(out)))
    gradients = on.torch.autograd.grad
    return _rotating(lambda graph: gradients(*graph, retain_graph=True), graphs, len(sets))


def _attention(on: Bench, kernel: Attention, backend: Any) -> Call:
    """Return causal attention, its forward or its backward, with this backend (None: torch's choice). Grouped queries
    if the numbers of heads differ. The call raises what torch raises if the backend cannot run it.
    """
    attend = on.torch.nn.functional.scaled_dot_product_attention
    widths = (
        (kernel.heads, kernel.channels),
        (kernel.kv_heads, kernel.channels),
        (kernel.kv_heads, kernel.value_channels),
    )

    def attention(inputs: Sequence[Any]) -> Any:
        from torch.nn.attention import sdpa_kernel

        with sdpa_kernel(backend) if backend is not None else nullcontext():
            return attend(*inputs, is_causal=True, enable_gqa=kernel.heads != kernel.kv_heads)

    keys = kernel.kv_heads * kernel.batch * kernel.length
    count = on.sets(2.0 * (2 * kernel.queries + keys) * (kernel.channels + kernel.value_channels))
    sets = [  # [batch, heads, length, channels], in memory as a projection leaves it
        [
            on.normal(kernel.batch, kernel.length, *width).transpose(1, 2).requires_grad_(kernel.backward)
            for width in widths
        ]
        for _ in range(count)
    ]
    return _differentiable(on, attention, sets, kernel.backward)


def _stream(on: Bench, kernel: Stream) -> Call:
    """Return a call of a copy within the device's memory, or of a norm's or activation function's forward or backward.

    Each call runs over the next of several sets of inputs. A norm's backward leaves out the weight's gradient. "glu" is
    torch's own, x * sigmoid(gate), with the memory traffic of SwiGLU.
    """
    torch, functions, shape = on.torch, on.torch.nn.functional, (kernel.columns,)
    wide = 2 * kernel.columns if kernel.what == "glu" else kernel.columns
    inputs = [on.normal(kernel.rows, wide).requires_grad_(kernel.backward) for _ in range(on.sets(2.0 * kernel.moved))]
    if kernel.what == "copy":
        return _rotating(lambda pair: pair[0].copy_(pair[1]), [(torch.empty_like(x), x) for x in inputs], 1)
    weight, bias = (make(kernel.columns, dtype=on.half, device=on.device) for make in (torch.ones, torch.zeros))
    function: Callable[[Any], Any] = {
        "glu": functions.glu,
        "gelu": lambda x: functions.gelu(x, approximate="tanh"),
        "rmsnorm": lambda x: functions.rms_norm(x, shape, weight, 1e-5),
        "layernorm": lambda x: functions.layer_norm(x, shape, weight, bias),
    }[kernel.what]
    return _differentiable(on, lambda given: function(given[0]), [(x,) for x in inputs], kernel.backward)


def _launch(on: Bench) -> Call:
    x = on.torch.zeros(1024, device=on.device)
    return lambda index: x.add_(1.0)


def _host_copy(on: Bench, kernel: HostCopy) -> Call:
    torch = on.torch
    host = torch.zeros(kernel.bytes_, dtype=torch.uint8, pin_memory=True)
    device = torch.zeros(kernel.bytes_, dtype=torch.uint8, device=on.device)
    to, source = (device, host) if kernel.to_device else (host, device)
    return lambda index: to.copy_(source, non_blocking=True)
