"""A plan's costs as expressions, what moves its step, and where it stops being the best: `python docs/symbols.py`."""

from __future__ import annotations

from pathlib import Path

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
INTRO = """# A plan's costs as symbols

Written by `make symbols`, for 8B parameters of Llama 3.1 on 16 H100 and a batch of 256 sequences.

    result = symconfig.plan(model="llama3.1-8b", cluster="h100", gpus=16, global_batch_size=256)
    costs = result.symbolic()
    costs.time["compute"]                      # a SymPy expression; costs.memory[0]["weights"] another
    costs.definitions                          # of each quantity that has a name in them
    costs.numbers                              # of each symbol: the substitution that gives the plan's numbers
    costs.derivatives()["hbm_bytes_per_s"]     # seconds of the step for one byte/s more
    costs.at({"global_batch_size": 512.0})     # the step and the memory there, and whether the formulas hold

`at` says with `holds` whether every choice in the formulas is still the one that the plan made. `break_even` of
`symconfig.solve.plan_symbols` finds where two candidates' steps are equal. A pipeline's stages keep their layers when
`pp` moves, and an event simulation is no formula: its seconds over the formula's are symbols, and stay what they are.
"""
WHATIF = """## Where the plan stays the best

`symconfig whatif PLAN.json --vary global_batch_size=64..4096 --vary network=0.5..2x` plans again at seven values and
the plan's own, then half way between two that differ, until the border is known. The planner itself is asked each time,
so that every candidate is weighed again, not only the plan's alternatives. A batch moves in steps in which the plan
itself can run.
"""


def page() -> str:
    """The whole page."""
    result = symconfig.plan(**JOB)
    costs = result.symbolic()
    sections = [INTRO, "## Formulas\n", _shown(formulas(costs)), "## All symbols\n", _shown([symbols(costs)])]
    return "\n".join([*sections, WHATIF, _shown(_ranges(result))])


def _ranges(result: PlanResult) -> list[Block]:
    return ranges(symconfig.whatif(result, list(VARY)))


def _shown(blocks: list[Block]) -> str:
    """Blocks as they are printed."""
    return f"```\n{plain(blocks, WIDTH).rstrip()}\n```\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
