"""A plan's costs as expressions, what moves its step, and where it stops being the best: `python docs/symbols.py`."""

from __future__ import annotations

from pathlib import Path

from written import fill

import symconfig
from symconfig.api.planning import PlanResult
from symconfig.report.grid import Block, plain
from symconfig.report.symbols import blocks as formulas
from symconfig.report.symbols import symbols
from symconfig.report.whatif import blocks as ranges

PAGE = Path(__file__).with_suffix(".md")
JOB = {"model": "llama3.1-8b", "cluster": "h100", "gpus": 16, "global_batch_size": 256}
WIDTH = 120
VARY = ("global_batch_size=64..4096", "network=0.5..2x")


def parts() -> dict[str, str]:
    """Return the plan's formulas and symbols, and where it stays the best."""
    result = symconfig.plan(**JOB)
    costs = result.symbolic()
    shown = {"formulas": formulas(costs), "symbols": [symbols(costs)], "ranges": _ranges(result)}
    return {name: f"```\n{plain(blocks, WIDTH).rstrip()}\n```\n" for name, blocks in shown.items()}


def _ranges(result: PlanResult) -> list[Block]:
    return ranges(symconfig.whatif(result, list(VARY)))


if __name__ == "__main__":
    fill(PAGE, parts())
