"""What is known of DeepSpeed's options."""

from __future__ import annotations

from symconfig.frameworks.maturity import Maturity, Option, Standing

SHORTEST_SEQUENCE = 8192  # tokens, of the shortest that a published run of Ulysses has

SHORT_ULYSSES = Option(
    name="short_ulysses",
    label=f"Ulysses with sequences of less than {SHORTEST_SEQUENCE:,} tokens",
    uses=lambda f, p: (p.cp > 1) & (p.seq_length < SHORTEST_SEQUENCE),
    about="cp",
    example={"cp": 2, "cp_comm": "a2a", "seq_length": 2048},
    standings=(
        Standing(
            maturity=Maturity.UNUSUAL,
            why="published runs have 8,192 tokens or more, most of them 32,768, and are no faster there than without",
            source="huggingface.co/blog/ulysses-sp, Benchmarks; arXiv 2506.13996 (ALST) and 2309.14509 (Ulysses)",
        ),
    ),
)

OPTIONS: tuple[Option, ...] = (SHORT_ULYSSES,)
