"""Hold plans and their files against the real frameworks: `python -m tools verify KIND`.

zoo: every model on every cluster for Megatron-LM and DeepSpeed. real: ranks of every model are built. formats: every
target's files are read by its program's own parser. training: every target's files are started on CPU ranks.
checkpoints: what a run of one plan saved is loaded by the run of another. logits: trainers' own are counted. cases: all
cases of the tests that take a sample.
"""

from __future__ import annotations

import sys
from importlib import import_module

KINDS = ("zoo", "real", "formats", "training", "checkpoints", "logits", "cases")


def main() -> int | str | None:
    """Run the kind that is named, and return its exit status."""
    kind = sys.argv[1] if len(sys.argv) > 1 else ""
    if kind not in KINDS:
        return f"usage: python -m tools verify {{{','.join(KINDS)}}} [--help] [options]"
    sys.argv = [f"{sys.argv[0]} {kind}", *sys.argv[2:]]
    status: int | str | None = import_module(f"{__name__}.{kind}").main()
    return status
