"""A configuration from its files, adapted to a plan in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from symconfig.errors import InputError, Problem
from symconfig.existing.adapt import deepspeed, megatron
from symconfig.existing.adapt.draft import Draft
from symconfig.existing.adapt.outcome import Adapted
from symconfig.existing.adapt.runs import noted
from symconfig.existing.launch.files import instead
from symconfig.existing.launch.read import ARGUMENTS, read
from symconfig.existing.launch.reading import Reading
from symconfig.frameworks.backend import Told
from symconfig.frameworks.known import BACKENDS
from symconfig.plans.plan import Plan


def adapted(source: str, plan: Plan, variables: Mapping[str, str], extra: Sequence[str] = ()) -> Adapted:
    """source: a path, or a line of arguments. variables, extra: what the script would find in its environment, and be
    given. Raises InputError where it cannot be read, is of another model or framework than the plan."""

    reading = read(source, variables=variables, extra=extra)
    first = reading.texts[0]

    def again(files: Mapping[str, bytes]) -> Reading:
        if first.file == ARGUMENTS:  # a line, which is in no file
            return read(files.get(first.file, first.data).decode(), variables=variables, extra=extra)
        with instead(files):
            return read(source, variables=variables, extra=extra)

    draft = Draft(again, reading, {})
    if BACKENDS[plan.best.target.backend].told_by is Told.JSON:
        progress = deepspeed.adapt(draft, plan)
    else:
        _check_megatron(reading)
        progress = megatron.adapt(draft, plan)
    progress = noted(progress)
    return Adapted(reading, progress.draft.files, progress.changes, progress.unplaced, progress.notes)


def _check_megatron(reading: Reading) -> None:
    """Raises InputError where not Megatron-LM's options alone say how it runs."""
    if reading.deepspeed is None and not reading.json_alone:
        return
    file = reading.deepspeed.text.file if reading.deepspeed is not None else reading.file
    what = "the plan is for Megatron-LM, and this is a configuration of DeepSpeed, which decides ZeRO and the batch too"
    raise InputError(Problem(what, file=file, hint="a plan with --backend deepspeed"))
