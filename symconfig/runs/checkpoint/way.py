"""The steps from an old run's checkpoint to a new run, of what several rules ask for: one way, one command at its end.

A checkpoint has a form and a place. Each conversion reads what the one before it wrote, the new run loads the last in
the one way that its form has, and is told only what has a use for that form; so no two rules can contradict each other.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from symconfig.plans.plan import Plan
from symconfig.runs.checkpoint.changes import closes
from symconfig.runs.checkpoint.kinds import between
from symconfig.runs.checkpoint.table import table
from symconfig.runs.checkpoint.verdict import Step

ONE_BUCKET = 2**40  # elements: more than any buffer has
KEPT = ("tp", "pp", "vpp", "ep", "etp", "zero")  # pins with which every rank reads what it wrote
DEGREES = ("tp", "pp", "vpp", "cp", "ep", "etp", "dp")


def way(form: str, wanted: Collection[str], old: Plan, new: Plan) -> tuple[Step, ...]:
    """Return the steps; form: of the checkpoint, a format.

    wanted: conversions and what the new run is told, by name, in any order.
    """
    steps, place = [], "CHECKPOINT"
    for name, conversion in table().conversions.items():
        if name in wanted and form in conversion.reads:
            steps += [
                Step(row.run, row.kind, _filled(row.words, place, old, new), _filled(row.does, place, old, new))
                for row in conversion.rows
                if between(old.best.target.version, row.since, row.until)
            ]
            form, place = conversion.makes, conversion.at
    return (*steps, *_new_run(form, place, wanted, old, new))


def _new_run(form: str, place: str, wanted: Collection[str], old: Plan, new: Plan) -> Iterator[Step]:
    """Yield the options that start the new run: a step for each kind, in which every option is once."""
    tells = table().tells
    options = {name: tells[name] for name in tells if name in wanted and form in tells[name].reads}
    rows = [
        *filter(None, [table().loads.get(form)]),
        *(entry for entry in options.values() if not set(entry.useless_with) & options.keys()),
    ]
    for kind in dict.fromkeys(row.kind for row in rows):
        these = [row for row in rows if row.kind == kind]
        words = (_filled(row.words, place, old, new) for row in these)
        if kind == "options":
            words = (option for line in words for option in re.split(r"\s+(?=--)", line))
        does = "; ".join(_filled(row.does, place, old, new) for row in these)
        yield Step("new", kind, " ".join(dict.fromkeys(words)), does)


def _filled(words: str, place: str, old: Plan, new: Plan) -> str:
    """Fill in words; JSON has braces of its own, so that fields are in double angles."""
    words = words.replace("<<from>>", place).replace("<<old.bucket>>", str(closes(old) or ONE_BUCKET))
    words = words.replace("<<old.keep>>", ",".join((*KEPT, *(["layout"] if old.best.options.pipeline_layout else []))))
    for degree in DEGREES:
        words = words.replace(f"<<new.{degree}>>", str(getattr(new.best.parallel, degree)))
    return words
