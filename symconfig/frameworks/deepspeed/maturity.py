"""What is known of DeepSpeed's options."""

from __future__ import annotations

from dataclasses import replace

from symconfig.frameworks.maturity import Maturity, Option, Standing
from symconfig.frameworks.megatron import maturity as megatron

SHORTEST_SEQUENCE = 8192  # tokens, of the shortest run in the benchmarks that are cited below

SHORT_ULYSSES = Option(
    name="short_ulysses",
    label=f"Ulysses with sequences of less than {SHORTEST_SEQUENCE:,} tokens",
    uses=lambda f, p: (p.cp > 1) & (p.seq_length < SHORTEST_SEQUENCE),
    about="cp",
    example={"cp": 2, "cp_comm": "a2a", "seq_length": 2048},
    doubt=Standing(
        maturity=Maturity.UNUSUAL,
        why="runs published with it have 8,192 tokens or more, and are no faster at 8,192 than without",
        source="huggingface.co/blog/ulysses-sp, Benchmarks: ZeRO-3 with 4 ranks of Ulysses, 8,192 to 98,304 tokens",
    ),
)

BF16_GRADIENTS = replace(
    megatron.BF16_GRADIENTS,
    label="gradients added up in bf16",
    doubt=Standing(
        maturity=Maturity.CHANGES_NUMBERS,
        why="microbatches are added with 8 bits of mantissa, so that small gradients are lost beside large sums",
        source="deepspeed/runtime/engine.py, get_data_types: without grad_accum_dtype the sum has the weights' type",
    ),
)

OPTIONS: tuple[Option, ...] = (SHORT_ULYSSES, BF16_GRADIENTS)
