"""Constants of GPU types from published measurements of kernels, in the cost model's own formulas."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from symconfig.cost import formulas
from symconfig.cost.machine import Constants, machine
from symconfig.descriptor.cluster import SHARES, Kernels
from symconfig.measured.calibrate import ANY_GPU, BOUNDS, gpu_type
from symconfig.measured.fit import BETWEEN_SOURCES, DEVIATION, Array, Parameter, fit
from symconfig.measured.gpu.kernel_fit import model_seconds
from symconfig.units import significant
from tools.priors_rows import Measured, Message, read

WEAK = 3.0  # times what is believed of any GPU: kernels decide alone
# A kernel among others of its kind, as rates are measured (gpu-benches, stream launches: A100 2.6 us, H200 2.4 us).
# More of a launch shows in a training, and no row has that.
LAUNCH_S = 2.5e-6
RATES = (*SHARES, "attention_backward_ratio")
# Long runs clock lower than short measurements: GB200's fp8 products reach 2,907 TFLOP/s at 16,384 cubed and 3,616 at
# their best (azure-gb200, mle), and AMD's with normal data 5 to 15 % less than its best (amd-taf, amd-maf).
SUSTAINED = 0.1
CLOCKED = ("gemm_efficiency", "gemm_efficiency_low", "attention_efficiency")


def seconds(rows: Sequence[Measured], values: Constants, n: int) -> Array:
    """Return the seconds [rows, n] that the cost model predicts under n sets of constants."""
    result = np.zeros((len(rows), n))
    clusters = {id(row.cluster): row.cluster for row in rows}
    for key, cluster in clusters.items():
        mine = [(index, item) for index, row in enumerate(rows) if id(row.cluster) == key for item in row.work]
        kernels = [(index, item) for index, item in mine if not isinstance(item, Message)]
        if kernels:
            of_kernels = model_seconds([item for _, item in kernels], cluster, values, n)
            np.add.at(result, [index for index, _ in kernels], of_kernels)
        levels = machine(cluster, "bf16", values).levels
        for index, item in mine:
            if isinstance(item, Message):
                result[index] += _message_s(item, levels)
    return result


def _message_s(message: Message, levels: Constants) -> Array | float:
    if message.op == "all_to_all":
        result: Array | float = formulas.all_to_all_s(message.bytes_, message.ranks, 1.0, 1.0, 0.0, 1.0, 1.0, **levels)
        return result
    result = formulas.ring_s(message.bytes_, 2.0 if message.op == "all_reduce" else 1.0, message.ranks, 1.0, **levels)
    return result


@dataclass(frozen=True, slots=True)
class GpuConstants:
    """The constants of one GPU type. offsets: of each group of rows; off: what is left of each row; both in logarithms
    of measured over modelled seconds.
    """

    rows: tuple[Measured, ...]
    values: dict[str, float]
    uncertainty: dict[str, float]
    offsets: dict[str, float]
    off: Array


def fitted(rows: Sequence[Measured]) -> GpuConstants:
    """Fit the constants of one GPU type, and how far each source is off as a whole.

    A source's own offset keeps the sizes that it happens to have from passing for what sizes do.
    """
    needed = frozenset().union(*(row.needs for row in rows))
    names = [name for name in Kernels.model_fields if name in needed]
    parameters = [Parameter(name, ANY_GPU[name][0], WEAK * ANY_GPU[name][1], *BOUNDS[name]) for name in names]
    others = {name: value for name, (value, _) in ANY_GPU.items()} | {"launch_s": LAUNCH_S}

    def evaluate(theta: Array) -> Array:
        values = others | dict(zip(names, np.exp(theta), strict=True))
        result: Array = np.log(seconds(rows, values, theta.shape[1]))
        return result

    measured = np.log([row.seconds for row in rows])
    groups = [_group(row) for row in rows]
    fitted = fit(evaluate, measured, parameters, sources=groups)
    return GpuConstants(
        rows=tuple(rows),
        values=dict(zip(names, fitted.values.tolist(), strict=True)),
        uncertainty=dict(zip(names, fitted.uncertainty.tolist(), strict=True)),
        offsets=fitted.offsets,
        off=measured - fitted.log_s - np.array([fitted.offsets[group] for group in groups]),
    )


def _group(row: Measured) -> str:
    return f"{row.source}: {', '.join(sorted(row.needs))}"


def constant(one: GpuConstants, name: str) -> dict[str, Any]:
    """Return one constant as model_zoo/kernel_priors.yaml has it."""
    mine = [row for row in one.rows if name in row.needs]
    return {
        "value": significant(one.values[name], 3),
        "uncertainty": significant(one.uncertainty[name], 2),
        "rows": len(mine),
        "sources": sorted({row.source for row in mine}),
    }


def spread(types: Sequence[GpuConstants], name: str) -> float:
    """Return how far a training's kernels may be from measured ones: they count as another source, with other shapes.

    Shapes count as what is left of the rows of a GPU type, whatever its source.
    """
    around = []
    for one in types:
        mine = [index for index, row in enumerate(one.rows) if name in row.needs]
        if mine:
            around.append(DEVIATION * float(np.median(np.abs(one.off[mine]))))
    return float(np.sqrt(BETWEEN_SOURCES**2 + np.median(around) ** 2 + SUSTAINED**2 * (name in CLOCKED)))


def distilled(types: Sequence[GpuConstants]) -> dict[str, Any]:
    """Return the GPU types and the spreads as model_zoo/kernel_priors.yaml has them."""
    gpus = []
    for one in types:
        constants = {name: constant(one, name) for name in one.values}
        gpus.append({"cluster": min(row.cluster.name for row in one.rows), "constants": constants})
    gpus.sort(key=lambda gpu: str(gpu["cluster"]))
    measured = [name for name in RATES if any(name in gpu["constants"] for gpu in gpus)]
    return {"spread": {name: significant(spread(types, name), 2) for name in measured}, "gpus": gpus}


def distil(folder: Path) -> dict[str, Any]:
    """Distil all files of a folder, in the schema symconfig.kernel_priors/1."""
    titles, rows = read(folder)
    types: dict[object, list[Measured]] = {}
    for row in rows:
        types.setdefault(gpu_type(row.cluster), []).append(row)
    data = distilled([fitted(mine) for mine in types.values()])
    used = {name for gpu in data["gpus"] for item in gpu["constants"].values() for name in item["sources"]}
    return {"schema": "symconfig.kernel_priors/1", "sources": {name: titles[name] for name in sorted(used)}, **data}
