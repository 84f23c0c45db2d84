"""What the GPUs of a launch of Megatron-LM have no kernels for."""

from __future__ import annotations

from collections.abc import Iterator

from symconfig.errors import Problem
from symconfig.existing.rules.facts import MegatronFacts, NotKnown
from symconfig.existing.rules.megatron_experts import EIGHT
from symconfig.existing.rules.rule import Rules
from symconfig.frameworks.megatron.releases import NO_GROUPED_GEMM

# Transformer Engine, fp8.py: FP8 from capability 8.9 on, MXFP8 and NVFP4 from 10.0 on; AMD's CDNA 3 and 4 have FP8.
FP8_GPUS = ("ada", "hopper", "blackwell", "cdna3", "cdna4")
BLOCK_GPUS = ("blackwell",)
HALF_ONLY = ("volta",)  # no bf16 before Ampere

MEGATRON: Rules[MegatronFacts] = Rules()


def _gpu(facts: MegatronFacts) -> str:
    if facts.architecture is None:
        raise NotKnown
    return facts.architecture


@MEGATRON.rule(
    "format-without-kernels",
    "error",
    "The GPU does not multiply in this format",
    "Transformer Engine refuses FP8 below compute capability 8.9, and MXFP8 and NVFP4 below 10.0, when the first layer "
    "is built (transformer_engine/pytorch/fp8.py, check_fp8_support).",
    "--fp8-format e4m3 --fp8-recipe mxfp8",
    since="core_v0.12.1",
)
def _format(facts: MegatronFacts) -> Iterator[Problem]:
    gpu = _gpu(facts)
    if facts.value("fp4") is not None and gpu not in BLOCK_GPUS:
        yield facts.problem(f"has no kernels on {gpu} GPUs", "fp4", need="Blackwell, or another format")
    if facts.value("fp8") is None:
        return
    if facts.value("fp8_recipe") == "mxfp8" and gpu not in BLOCK_GPUS:
        yield facts.problem(
            f"has no kernels on {gpu} GPUs", "fp8_recipe", "fp8", got="mxfp8", need="Blackwell, or another recipe"
        )
    elif gpu not in FP8_GPUS:
        yield facts.problem(f"has no kernels on {gpu} GPUs", "fp8", got=facts.text("fp8"), need="--bf16 alone")


@MEGATRON.rule(
    "grouped-experts-without-kernels",
    "error",
    "The GPU has no grouped kernels",
    "validate_args asserts compute capability 8.0 for --moe-grouped-gemm.",
    EIGHT + "--fp16",
    architecture="volta",
)
def _grouped(facts: MegatronFacts) -> Iterator[Problem]:
    if _gpu(facts) in NO_GROUPED_GEMM and facts.experts and facts.on("moe_grouped_gemm"):
        yield facts.problem(f"has no kernels on {facts.architecture} GPUs", "moe_grouped_gemm", need="it absent")


@MEGATRON.rule(
    "bf16-without-kernels",
    "warning",
    "The GPU's tensor cores do not take bf16",
    "They take it from Ampere on; before it products in bf16 are emulated, many times slower than in fp16.",
    "--lr 1e-4",
    architecture="volta",
)
def _bf16(facts: MegatronFacts) -> Iterator[Problem]:
    if _gpu(facts) in HALF_ONLY and facts.on("bf16"):
        yield facts.problem(f"has no kernels on {facts.architecture} GPUs", "bf16", need="--fp16")
