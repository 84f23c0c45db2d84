"""A configuration from its files, adapted to a plan in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from symconfig.errors import InputError
from symconfig.existing.adapt import deepspeed, megatron, trainers
from symconfig.existing.adapt import tuners as of_tuners
from symconfig.existing.adapt.draft import Draft, Progress
from symconfig.existing.adapt.names import numbers, numbers_of, stale
from symconfig.existing.adapt.outcome import Adapted, Flaw, Stale
from symconfig.existing.adapt.runs import noted
from symconfig.existing.launch.dialects import nemo_rl, openrlhf, slime, tuners
from symconfig.existing.launch.dialects.verl import FORMAT, tunes
from symconfig.existing.launch.files import instead
from symconfig.existing.launch.read import ARGUMENTS, read
from symconfig.existing.launch.reading import Reading
from symconfig.existing.recover.run import Run
from symconfig.frameworks.backend import Medium
from symconfig.frameworks.known import BACKENDS
from symconfig.plans.plan import Plan


def adapted(
    source: str, plan: Plan, variables: Mapping[str, str], extra: Sequence[str] = (), harmless: Sequence[str] = ()
) -> Adapted:
    """Adapt a configuration. source: a path, or a line of arguments. variables, extra: what the script would find in
    its environment, and be given. harmless: files that cannot be read and change nothing. Raises InputError where it
    cannot be read, is of another model or framework than the plan.
    """

    draft = opened(source, variables, extra, harmless)
    reading, side = draft.reading, _side(plan, draft.reading)
    progress, flaws = side.audited(placed(draft, plan), reading, plan)
    progress = noted(progress)
    names = _stale(reading, progress, plan) if progress.changes else ()
    return Adapted(reading, progress.draft.files, progress.changes, progress.unplaced, progress.notes, flaws, names)


def opened(source: str, variables: Mapping[str, str], extra: Sequence[str] = (), harmless: Sequence[str] = ()) -> Draft:
    """Read files to edit. Arguments and errors as of `adapted`."""

    def taken(source: str) -> Reading:
        return read(source, variables=variables, extra=extra, harmless=harmless)

    reading = taken(source)
    first = reading.texts[0]

    def reread(files: Mapping[str, bytes]) -> Reading:
        if first.file == ARGUMENTS:  # a line, which is in no file
            return taken(files.get(first.file, first.data).decode())
        with instead(files):
            return taken(source)

    return Draft(reread, reading, {})


def placed(draft: Draft, plan: Plan) -> Progress:
    """Put a plan's values into files, not audited yet. Raises InputError as `adapted` does."""
    side = _side(plan, draft.reading)
    if side is megatron:
        _check_megatron(draft.reading)
    return side.adapt(draft, plan)


def was(reading: Reading, plan: Plan) -> Run:
    """Return a configuration as it was, in the planner's terms; what it hides is taken to be as in the plan. Raises
    InputError for one that means nothing.
    """
    return _side(plan, reading).original(reading, plan)


class _Side(Protocol):
    """A framework's way to adapt configurations: a module, or a trainer's facts."""

    def adapt(self, draft: Draft, plan: Plan) -> Progress: ...
    def audited(self, progress: Progress, original: Reading, plan: Plan) -> tuple[Progress, tuple[Flaw, ...]]: ...
    def original(self, reading: Reading, plan: Plan) -> Run: ...


def _side(plan: Plan, reading: Reading) -> _Side:
    if reading.format == FORMAT and not tunes(reading):
        return trainers.VERL
    if slime.applies(reading):
        return trainers.SLIME
    if openrlhf.program(reading) == openrlhf.RAY:
        return trainers.OPENRLHF
    if reading.format == nemo_rl.FORMAT:
        return trainers.NEMO
    if (of_openrlhf := openrlhf.applies(reading)) or tunes(reading):
        whose = "OpenRLHF" if of_openrlhf else "verl that fine-tunes"
        what = f"starts a program of {whose}, whose options are not adapted"
        raise InputError(what, file=reading.file, hint="the degrees of the plan, by hand")
    if (program := tuners.program(reading)) is not None and _apart(program, reading, plan):
        return of_tuners.LEARNED[program.trainer]
    told_by = BACKENDS[plan.best.target.backend].told_by
    if told_by is Medium.CODE:
        what = "is not of verl, and others' programs around PyTorch's FSDP are not adapted"
        raise InputError(what, file=reading.file, hint="symconfig render PLAN.json --target T")
    return deepspeed if told_by is Medium.JSON else megatron


def _apart(program: tuners.Program, reading: Reading, plan: Plan) -> bool:
    """Tell whether a program around Transformers is told more than its Trainer and DeepSpeed's JSON are."""
    more = plan.job.rl is not None or plan.job.preference is not None
    return program.megatron or more or reading.deepspeed is None


def _stale(before: Reading, progress: Progress, plan: Plan) -> tuple[Stale, ...]:
    """Return names that carry the old run's numbers; where a recipe hides the run, those of the changes themselves."""
    after = progress.draft.reading
    try:
        old, new = was(before, plan), was(after, plan)
    except InputError:
        return stale(before, after, *numbers_of(progress.changes))
    mine, theirs = (numbers(run.configuration, each.world.nodes) for run, each in ((old, before), (new, after)))
    return stale(before, after, mine, theirs)


def _check_megatron(reading: Reading) -> None:
    """Raise InputError where not Megatron-LM's options alone say how it runs."""
    if reading.deepspeed is None and not reading.json_alone:
        return
    file = reading.deepspeed.text.file if reading.deepspeed is not None else reading.file
    what = "the plan is for Megatron-LM, and this is a configuration of DeepSpeed, which decides ZeRO and the batch too"
    raise InputError(what, file=file, hint="a plan with --backend deepspeed")
