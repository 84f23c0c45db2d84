"""The choices of a plan that are no numbers: precision and ZeRO stage."""

from __future__ import annotations

from typing import Literal

ZeroStage = Literal[0, 1, 2, 3]
Precision = Literal["bf16", "fp16", "fp8", "mxfp8", "nvfp4"]
ZERO_STAGES: tuple[ZeroStage, ...] = (0, 1, 2, 3)
PRECISIONS: tuple[Precision, ...] = ("bf16", "fp16", "fp8", "mxfp8", "nvfp4")
