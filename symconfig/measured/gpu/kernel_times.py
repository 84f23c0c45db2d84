"""The schema symconfig.kernel_times/1: what single kernels of one GPU took, as a file and as the fit reads it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar, Literal

import yaml
from pydantic import Field

from symconfig.descriptor.document import load_yaml_strict
from symconfig.descriptor.strict import PositiveInt, Strict, validate

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
        parts = (
            self.product,
            f"driver {self.driver}" if self.driver else "",
            f"CUDA {self.cuda}" if self.cuda else "",
            f"torch {self.torch}",
            self.date,
        )
        return ", ".join(part for part in parts if part)


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
