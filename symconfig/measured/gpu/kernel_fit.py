"""The few constants of a GPU that explain its kernels' times best, in the very formulas that plans are weighed with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from symconfig.cost.formulas import traffic_s
from symconfig.cost.lattice import Array, Lattice
from symconfig.cost.machine import Constants, constants, machine
from symconfig.cost.work import work_seconds
from symconfig.descriptor.cluster import ClusterDescriptor, Kernels
from symconfig.errors import InputError
from symconfig.frameworks.megatron.behaviour import MEGATRON
from symconfig.graph.derived import AttentionWork, DerivedBlock, Matmul, Phase, Task, Traffic
from symconfig.graph.dims import ONE, Monomial
from symconfig.graph.operator import Element
from symconfig.measured.calibrate import BOUNDS, with_fitted
from symconfig.measured.fit import Fit, Parameter, fit
from symconfig.measured.gpu.kernel_times import (
    Attention,
    CastProduct,
    HostCopy,
    Kernel,
    KernelTimes,
    Product,
    Row,
    Stream,
)
from symconfig.measured.priors import ANY_GPU


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
    """Fit a GPU's kernel constants to measured times, with the errors by family before and after. Host copies and
    products in a precision that the cluster's GPU lacks are left out. Raise InputError if no kernel is left.
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
    for family in dict.fromkeys(row.what.family for row in rows):
        mine = [index for index, row in enumerate(rows) if row.what.family == family]
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
    """Return the cost model's seconds of each kernel, [kernels, n], for n sets of constants. values: constant name to
    array [n]; the others are the cluster's.
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
            discards=frozenset(),
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
    needed: dict[str, None] = {}
    for row in rows:
        needed |= dict.fromkeys(needs(row.what))
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
