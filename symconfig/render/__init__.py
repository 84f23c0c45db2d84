"""Plan -> files. A target and a launcher are one module and one folder in templates/ each (`render.target`)."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from symconfig.descriptor.document import called
from symconfig.descriptor.job import Job
from symconfig.descriptor.model import ModelDescriptor
from symconfig.errors import InfeasibleError, InputError, Problem, among
from symconfig.plans.plan import Plan
from symconfig.render.files import ENDING, File, Files
from symconfig.render.settings import split
from symconfig.render.target import LAUNCH, Target, discovered, startable, target, together
from symconfig.resources import data_dir

# Whose files a plan of a framework is for that learns by reinforcement, and any other of one that has no program.
_LEARNING = {"megatron": "verl", "deepspeed": "openrlhf", "fsdp": "verl-fsdp"}
_PROGRAM = {"fsdp": "transformers"}
LAUNCHERS = ("slurm",)  # what is written where nobody says which, and there is something to start


@cache
def targets() -> dict[str, Target]:
    """Return every target by name."""
    return discovered(sys.modules[__name__], data_dir("templates"))


@cache
def every_launcher() -> dict[str, Target]:
    """Return every launcher by name."""
    from symconfig.render import launchers as package

    return discovered(package, data_dir("templates") / "launchers")


def named(name: str, known: Mapping[str, Target] | None = None) -> Target:
    """Return the target of this name.

    Where `known` is None and symconfig has a target of that name, no other module is imported. Raises InputError, with
    similar names, for an unknown one.
    """
    if known is None:
        if (alone := _alone(name.lower())) is not None:
            return alone
        known = targets()
    if (own := called(name, known)) is None:
        raise InputError(_unknown(known, name, "target"))
    return known[own]


@cache
def _alone(name: str) -> Target | None:
    # A name with a dot or an underscore is no target's: it would be another module's.
    plain = name.replace("-", "").isalnum() and name.isascii()
    own = target(sys.modules[__name__], name.replace("-", "_"), data_dir("templates")) if plain else None
    return own if own is not None and own.name == name else None


def target_of(model: ModelDescriptor, job: Job) -> Target:
    """Return the target that the job names, or else the default one for its task, framework and model.

    An adapter without a named framework is trained with DeepSpeed, and with Megatron-Bridge if Megatron is named.
    Vision towers, RL and preferences go to programs that train them. Raises InputError for an unknown target,
    InfeasibleError for preferences with Megatron-LM.
    """
    if job.target is not None:
        return named(job.target)
    megatron = "backend" in job.model_fields_set and job.backend == "megatron"
    if job.preference is not None:
        if megatron:
            able = (name for name, target in targets().items() if job.preference.means.task in target.tasks)
            what, hint = "no target trains on preferences with Megatron-LM", f"--target {' or '.join(able)}"
            raise InfeasibleError(what, field="backend", got="megatron", need="deepspeed or fsdp", hint=hint)
        return named("llamafactory")
    if job.rl is not None:
        return named(_LEARNING[job.backend])
    if job.backend in _PROGRAM:
        return named(_PROGRAM[job.backend])
    if model.vision is not None:
        return named("ms-swift" if job.backend == "megatron" else "llamafactory")
    if model.adapter is None and not job.wants_adapters:
        return named(job.backend)
    return named("bridge" if megatron else "deepspeed")


def own_target(plan: Plan) -> str:
    """Return the name of the target that the plan was made for."""
    return target_of(plan.model, plan.job).name


def render(plan: Plan, target: str, launch: Sequence[str] | None = None, templates: Path | None = None) -> Files:
    """Return the files of `target` and of every launcher in `launch`, with plan.json first and REPORT.md last.

    launch: launchers with their settings (`render.settings`); None: the usual ones. templates: a folder of the user's
    own templates (`render.overlay`). Raises InputError for unknown names and files with equal paths, InfeasibleError
    for what the target cannot express or launchers cannot start.
    """
    launch = usual_launchers(plan, target, templates) if launch is None else launch
    first, *others = sources(target, launch, templates)
    own = first.files(plan, starts=[source.start for source in others])
    startable(target, own, others)
    made = together([(first, own), *((source, source.files(plan, Files(tuple(own)))) for source in others)])
    return Files((File("plan.json", plan.to_json()), *sorted(made, key=lambda item: item.path == "REPORT.md")))


def usual_launchers(plan: Plan, target: str, templates: Path | None) -> tuple[str, ...]:
    """Return the default launchers of a target; () if it writes no launch.sh. Raises InputError, InfeasibleError.

    The target's files are rendered to find out.
    """
    (target_source,) = sources(target, (), templates)
    starts = f"{LAUNCH}{ENDING}" in target_source.templates()
    return LAUNCHERS if starts and any(item.path == LAUNCH for item in target_source.files(plan)) else ()


def sources(target: str | None, launch: Sequence[str], templates: Path | None) -> list[Target]:
    """Return the target, if one is named, then each launcher with its settings.

    Raises InputError with all unknown or repeated names.
    """
    known = _with_own(templates) if templates is not None else None
    wrong: list[Problem] = []
    chosen: list[Target] = []
    if target is not None:
        try:
            chosen.append(named(target, known))
        except InputError as error:
            wrong += error.problems
    starting: dict[str, Target] = {}
    for word in dict.fromkeys(launch):
        try:
            source = _launcher(word)
        except InputError as error:
            wrong += error.problems
            continue
        if source.name in starting:
            wrong.append(Problem("is asked for twice", field="launcher", got=repr(source.name)))
        starting[source.name] = source
    if wrong:
        raise InputError(wrong)
    return [*chosen, *starting.values()]


def _with_own(templates: Path) -> dict[str, Target]:
    """Return every target by name, with the user's own templates in `templates`. Raises InputError."""
    from symconfig.render.overlay import overlaid

    return overlaid(targets(), templates)


def _launcher(word: str) -> Target:
    """Return a launcher with its settings, of a text like slurm:partition=big,time=2:00:00. Raises InputError."""
    name, given = split(word)
    known = every_launcher()
    if name not in known:
        raise InputError(_unknown(known, name, "launcher"))
    return known[name].with_settings(given)


def _unknown(known: Mapping[str, Target], name: str, field: str) -> Problem:
    return Problem(f"is not a {field}", field=field, got=repr(name), **among(name, known))
