"""`symconfig partition`: a split for every operator and tensor of a model, a program or a module."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from symconfig.cli import print_json
from symconfig.cli_shared import check_output, note, say, write_text
from symconfig.errors import InfeasibleError, InputError, Problem, SymconfigError

if TYPE_CHECKING:
    from symconfig.api_partition import PartitionResult

_NAMES = (
    "model", "program", "module", "cluster", "gpus", "mesh", "global_batch_size", "seq_length", "solver", "objective",
    "memory_limit", "num_microbatches", "recompute",
)  # fmt: skip
_FIELDS = {name: "--" + name.replace("_", "-") for name in (*_NAMES, "timeout", "top")}
MOST_TOP = 1000


def partition(arguments: argparse.Namespace) -> int:
    """Exit 1 where nothing fits."""
    from symconfig.api import Problems, check_free
    from symconfig.api_asked import asked
    from symconfig.api_partition import answered
    from symconfig.report.partition import blocks
    from symconfig.report.partition_json import to_dict
    from symconfig.report.progress import Progress

    found = Problems()
    out = Path(arguments.out) if arguments.out is not None else None
    table = Path(arguments.placements) if arguments.placements is not None else None
    if out is not None:
        found.collect(lambda: check_free(out, arguments.force))
    if table is not None:
        found.collect(lambda: check_output("--placements", table, arguments.force, ("Python", ".py")))
    top = found.collect(lambda: _top(arguments.top))
    given = {name: getattr(arguments, name) for name in _NAMES}
    given |= {"flat": not arguments.no_flat, "limit_s": arguments.timeout}
    request = found.collect(lambda: asked(given))
    if found.all or request is None or top is None:
        raise InputError([_as_option(problem) for problem in found.all])
    try:
        with Progress(sys.stderr) as progress:
            progress.say("partitioning")
            result = answered(request)
    except SymconfigError as error:
        raise type(error)([_as_option(problem) for problem in error.problems]) from None
    explained = _operators(result, arguments.explain)
    said = result.said(top, bool(arguments.baselines), explained)
    if out is not None:
        said = replace(said, notes=(*said.notes, *_written(result, out, to_dict(said), arguments.force)))
    if table is not None:
        write_text(table, result.placements_file(), arguments.force)
        note(f"wrote {table}")
    if arguments.json:
        print_json(to_dict(said))
    else:
        say(blocks(said))
    return 0


def _as_option(problem: Problem) -> Problem:
    return replace(problem, field=_FIELDS.get(problem.field or "", problem.field))


def _top(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= MOST_TOP):
        raise InputError(Problem("out of range", field="top", got=text, need=f"a whole number from 1 to {MOST_TOP}"))
    return int(text)


def _operators(result: PartitionResult, name: str | None) -> tuple[int, ...]:
    """The folded operators that a name means: their own, or with * for the numbers in it."""
    from symconfig.report.partition_said import general

    if name is None:
        return ()
    every = [(v, node.name) for v, node in enumerate(result.found.net.nodes) if node.operator is not None]
    wanted = tuple(v for v, known in every if name in (known, general(known)) or general(name) == general(known))
    if not wanted:
        import difflib

        names = list(dict.fromkeys(general(known) for _, known in every))
        ends = [known for known in names if known.rpartition(".")[2] == name]
        near = ends or difflib.get_close_matches(name, names, n=3, cutoff=0.4) or names[:3]
        raise InputError(Problem("there is no such operator", field="--explain", got=name, hint=" or ".join(near)))
    return wanted


def _written(result: PartitionResult, out: Path, data: dict[str, object], force: bool) -> list[str]:
    """partition.json and placements.py; the planner's files where a framework can be told. Remarks on them."""
    said = []
    plan = None
    if result.projection.exact and result.asked.source.model is not None:
        try:
            plan = result.plan()
        except (InfeasibleError, InputError) as error:
            said.append(f"the planner does not take these degrees: {error.problems[0]}")
    out.mkdir(parents=True, exist_ok=True)
    if plan is not None:
        plan.write(out / "plan", force=force)
    write_text(out / "placements.py", result.placements_file(), True)
    write_text(out / "partition.json", json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False) + "\n", True)
    note(f"wrote {out}: partition.json, placements.py" + (", plan/" if plan is not None else ""))
    return said
