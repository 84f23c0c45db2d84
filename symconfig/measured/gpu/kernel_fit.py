"""The schema symconfig.kernel_times/1, and the few constants of a GPU that explain its kernels' times best.

The times are predicted by the very formulas that plans are weighed with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import numpy as np
import yaml
from pydantic import Field

from symconfig.cost.formulas import traffic_s
from symconfig.cost.lattice import Array, Lattice
from symconfig.cost.machine import Constants, constants, machine
from symconfig.cost.work import work_seconds
from symconfig.descriptor.cluster import ClusterDescriptor, Kernels
from symconfig.descriptor.document import load_yaml_strict
from symconfig.descriptor.strict import PositiveInt, Strict, validate
from symconfig.errors import InputError
from symconfig.format import grouped
from symconfig.frameworks.megatron.behaviour import MEGATRON
from symconfig.graph.derived import AttentionWork, DerivedBlock, Matmul, Phase, Task, Traffic
from symconfig.graph.dims import ONE, Monomial
from symconfig.graph.operator import Element
from symconfig.measured.calibrate import ANY_GPU, BOUNDS, with_fitted
from symconfig.measured.fit import Fit, Parameter, fit

Positive = Annotated[float, Field(gt=0)]
Dtype = Literal["bf16", "fp16", "fp8", "mxfp8", "nvfp4"]
Layout = Literal["forward", "input-gradient", "weight-gradient"]
Streaming = Literal["rmsnorm", "layernorm", "glu", "gelu", "copy"]
_WIDTH = 10_000  # no kernel is broken over lines


class Product(Strict):
    """batch x [m, k] x [k, n]. layout: which operands lie transposed. In fp8 and fp4 with the first operand's cast."""

    kernel: Literal["product"] = "product"
    dtype: Dtype
    layout: Layout
    batch: PositiveInt = 1
    m: PositiveInt
    n: PositiveInt
    k: PositiveInt

    @property
    def low(self) -> bool:
        return self.dtype not in ("bf16", "fp16")

    @property
    def family(self) -> str:
        return f"{'grouped ' if self.batch > 1 else ''}product, {self.dtype}"

    @property
    def flops(self) -> float:
        return 2.0 * self.batch * self.m * self.n * self.k


class CastProduct(Product):
    """A product in fp8 or fp4 whose operands were cast before: published rates mostly are of such."""


class Attention(Strict):
    """Causal attention of one sequence length; `channels` of queries and keys, `value_channels` of values."""

    kernel: Literal["attention"] = "attention"
    backward: bool
    batch: PositiveInt
    heads: PositiveInt
    kv_heads: PositiveInt
    length: PositiveInt
    channels: PositiveInt
    value_channels: PositiveInt

    @property
    def family(self) -> str:
        return f"attention, {'backward' if self.backward else 'forward'}"

    @property
    def queries(self) -> int:
        return self.batch * self.heads * self.length

    @property
    def flops(self) -> float:
        """Return the FLOP under the causal mask: two products forward, five backward."""
        products = 5 if self.backward else 2
        return products * self.queries * (self.length / 2) * (self.channels + self.value_channels)


class Stream(Strict):
    """A kernel bound by memory over [rows, columns]; a gated one (glu) reads twice the columns."""

    kernel: Literal["stream"] = "stream"
    what: Streaming
    backward: bool = False
    rows: PositiveInt
    columns: PositiveInt

    @property
    def family(self) -> str:
        if self.what == "copy":
            return "copy"
        group = "norm" if self.what.endswith("norm") else "activation"
        return f"{group}, {'backward' if self.backward else 'forward'}"

    @property
    def moved(self) -> int:
        """Return the number of 16-bit elements read and written."""
        # Forward: input and output. Backward: the output's gradient, what was kept, the input's gradient.
        passes = {"copy": (2, 2), "rmsnorm": (2, 3), "layernorm": (2, 3), "gelu": (2, 3), "glu": (3, 5)}
        return passes[self.what][self.backward] * self.rows * self.columns


class Launch(Strict):
    """A kernel with next to nothing to do."""

    kernel: Literal["launch"] = "launch"
    family: ClassVar[str] = "launch"


class HostCopy(Strict):
    """A copy between the device and pinned memory of the host."""

    kernel: Literal["host copy"] = "host copy"
    to_device: bool
    bytes_: PositiveInt = Field(alias="bytes")

    @property
    def family(self) -> str:
        return "host to device" if self.to_device else "device to host"


Kernel = Annotated[Product | Attention | Stream | Launch | HostCopy, Field(discriminator="kernel")]


class Row(Strict):
    """One kernel's seconds: the median of several samples. spread: half their interquartile range over the median.

    how: the fastest of several implementations.
    """

    what: Kernel
    seconds: Positive
    spread: Annotated[float, Field(ge=0)]
    samples: PositiveInt
    how: str | None = None


class Skipped(Strict):
    """A kernel that could not be measured, and why."""

    what: Kernel
    reason: str


class Rig(Strict):
    """The device that was measured, and its software. product: as the driver names it."""

    product: str
    driver: str | None = None
    cuda: str | None = None
    torch: str
    date: str

    def __str__(self) -> str:
        driver, cuda = self.driver and f"driver {self.driver}", self.cuda and f"CUDA {self.cuda}"
        return ", ".join(filter(None, (self.product, driver, cuda, f"torch {self.torch}", self.date)))


class KernelTimes(Strict):
    """The times of one run. cluster: zoo name of the GPU's, or null."""

    schema_: Literal["symconfig.kernel_times/1"] = Field(default="symconfig.kernel_times/1", alias="schema")
    rig: Rig
    cluster: str | None = None
    rows: tuple[Row, ...]
    skipped: tuple[Skipped, ...] = ()
    notes: tuple[str, ...] = ()


def read(path: Path) -> KernelTimes:
    """Return the kernel times in a file; raise InputError with every invalid field."""
    return validate(load_yaml_strict(path), KernelTimes)


def as_yaml(times: KernelTimes) -> str:
    """Return the times as YAML text, without fields that are None."""
    data = times.model_dump(mode="json", by_alias=True, exclude_none=True)
    text: str = yaml.safe_dump(data, default_flow_style=None, sort_keys=False, width=_WIDTH, allow_unicode=True)
    return text


@dataclass(frozen=True, slots=True)
class FamilyErrors:
    """Relative errors of one family's n kernels: the mean absolute error, and the largest error with its sign, before
    and after the fit.
    """

    family: str
    n: int
    before: float
    worst_before: float
    after: float
    worst_after: float


@dataclass(frozen=True, slots=True)
class KernelFit:
    """cluster: whose peaks the constants are shares of. kernels: its constants, those measured replaced.

    rows: what was fitted, with the seconds of the model before and after.
    """

    cluster: ClusterDescriptor
    kernels: Kernels
    parameters: tuple[Parameter, ...]
    fit: Fit
    rows: tuple[Row, ...]
    before_s: Array
    after_s: Array
    families: tuple[FamilyErrors, ...]


def fit_kernels(times: KernelTimes, cluster: ClusterDescriptor) -> KernelFit:
    """Return a GPU's kernel constants fitted to measured times, with the errors by family before and after.

    Host copies and products in a precision that the cluster's GPU lacks are left out. Raises InputError if no kernel is
    left.
    """
    peaks = cluster.gpu.peak_flops
    rows = tuple(
        row
        for row in times.rows
        if not isinstance(row.what, HostCopy)
        and (not isinstance(row.what, Product) or getattr(peaks, row.what.dtype) is not None)
    )
    if not rows:
        raise InputError("no kernel was measured that constants could be fitted to", got=str(times.rig))
    parameters = _parameters(rows, cluster.kernels)
    measured = np.log([row.seconds for row in rows])

    def evaluate(theta: Array) -> Array:
        named = {p.name: np.exp(values) for p, values in zip(parameters, theta, strict=True)}
        return np.log(model_seconds([row.what for row in rows], cluster, named, theta.shape[1]))

    fitted = fit(evaluate, measured, parameters)
    before = np.log(model_seconds([row.what for row in rows], cluster, {}, 1)[:, 0])
    kernels = with_fitted(cluster.kernels, parameters, fitted, f"measured: {times.rig}; symconfig measure")
    families = []
    for family, mine in grouped((row.what.family, index) for index, row in enumerate(rows)).items():
        off = [np.exp(log_s[mine] - measured[mine]) - 1 for log_s in (before, fitted.log_s)]
        errors = [(float(np.mean(np.abs(each))), float(each[np.argmax(np.abs(each))])) for each in off]
        families.append(FamilyErrors(family, len(mine), *errors[0], *errors[1]))
    return KernelFit(
        cluster=cluster,
        kernels=kernels,
        parameters=parameters,
        fit=fitted,
        rows=rows,
        before_s=np.exp(before),
        after_s=np.exp(fitted.log_s),
        families=tuple(families),
    )


def model_seconds(kernels: Sequence[Kernel], cluster: ClusterDescriptor, values: Constants, n: int) -> Array:
    """Return the cost model's seconds of each kernel, as Megatron-LM runs it, for n sets of constants: [kernels, n].

    A CastProduct in low precision is without its first operand's cast. values: constant name to array [n]; the others
    are the cluster's.
    """
    result = np.empty((len(kernels), n))
    precisions = [
        (kernel.dtype if isinstance(kernel, Product) else "bf16" if cluster.gpu.peak_flops.bf16 else "fp16")
        for kernel in kernels
    ]
    for precision in set(precisions):
        mine = [index for index, each in enumerate(precisions) if each == precision]
        work: list[Task] = []
        numbers: dict[str, float] = {"tp": 1.0}
        for index in mine:
            work.append(_work(str(index), kernels[index], numbers))
        block = DerivedBlock(
            name="kernels",
            sequence_parallel=False,
            work=tuple(work),
            collectives=(),
            held=(),
            weights=(),
            workspaces=(),
            modules=(),
            stops_early=False,
            boundary=ONE,
        )
        rates = machine(cluster, precision, values)
        seconds = work_seconds(block, Lattice(numbers, n), rates, MEGATRON)
        for index, item in zip(mine, work, strict=True):
            kernel, result[index] = kernels[index], seconds[str(index), item.phase]
            if isinstance(kernel, CastProduct) and kernel.low:  # the cost model's product casts its first operand
                result[index] -= traffic_s(rates, rates.cast_bytes * kernel.batch * kernel.m * kernel.k)
    return result


def _work(op: str, kernel: Kernel, numbers: dict[str, float]) -> Task:
    """Return the kernel as a task of the cost model: a product or attention by its kind, a stream as traffic of its
    bytes, any other as traffic of none (a launch). Adds an attention's symbols, keys and channels, to `numbers`.
    """

    def size(value: int) -> Monomial:
        return Monomial(Fraction(value))

    if isinstance(kernel, Product):
        # As a forward whatever its layout: the cost model's weight gradients are added to a sum besides.
        return Matmul(
            op=op,
            phase=Phase.FORWARD,
            batch=size(kernel.batch),
            m=size(kernel.m),
            n=size(kernel.n),
            k=size(kernel.k),
            low_precision=kernel.low,
            turns=ONE,
        )
    if isinstance(kernel, Attention):
        keys, channels = f"keys_{kernel.length}", (f"channels_{kernel.channels}", f"channels_{kernel.value_channels}")
        numbers |= {keys: kernel.length / 2, channels[0]: kernel.channels, channels[1]: kernel.value_channels}
        return AttentionWork(
            op, Phase.INPUT if kernel.backward else Phase.FORWARD, size(kernel.queries), keys, channels, ONE
        )
    moved = ((size(kernel.moved), Element.ACTIVATION),) if isinstance(kernel, Stream) else ()
    return Traffic(op, Phase.FORWARD, moved, ONE)


def _parameters(rows: Sequence[Row], kernels: Kernels) -> tuple[Parameter, ...]:
    """Return the constants that these kernels depend on, starting at the cluster's values clipped to BOUNDS; one that
    it lacks starts at its gemm_efficiency. Their uncertainty is that of any GPU.
    """
    needed = {name for row in rows for name in needs(row.what)}
    stated = constants(kernels)
    start = {name: float(np.asarray(stated.get(name, stated["gemm_efficiency"]))) for name in needed}
    return tuple(
        Parameter(name, min(max(start[name], BOUNDS[name][0]), BOUNDS[name][1]), ANY_GPU[name][1], *BOUNDS[name])
        for name in Kernels.model_fields
        if name in needed
    )


def needs(kernel: Kernel) -> tuple[str, ...]:
    """Return the names of the constants that a kernel's time depends on."""
    if isinstance(kernel, Product):
        return ("gemm_efficiency_low" if kernel.low else "gemm_efficiency", "gemm_k_half")
    if isinstance(kernel, Attention):
        return ("attention_efficiency", *(("attention_backward_ratio",) if kernel.backward else ()))
    return ("hbm_efficiency",) if isinstance(kernel, Stream) else ("launch_s",)
