"""Plan -> files. A target or launcher is a `Target` of a module here and one folder in templates/ (`render.target`)."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

from symconfig.descriptor.document import called
from symconfig.descriptor.job import Job
from symconfig.descriptor.model import ModelDescriptor
from symconfig.errors import InfeasibleError, InputError, Problem, Problems, among
from symconfig.plans.plan import Plan
from symconfig.render.files import ENDING, File, Files
from symconfig.render.target import LAUNCH, Target, split, together
from symconfig.resources import data_dir

# The module of each target, among whose `TARGETS` it is.
MODULES: Mapping[str, str] = {
    "accelerate": "accelerate",
    "axolotl": "tuners",
    "bridge": "bridge",
    "deepspeed": "deepspeed",
    "llamafactory": "tuners",
    "megatron": "megatron",
    "mindspeed": "megatron",
    "ms-swift": "ms_swift",
    "ms-swift-deepspeed": "ms_swift",
    "nemo-rl": "rl.nemo_rl",
    "openrlhf": "rl.openrlhf",
    "slime": "rl.slime",
    "transformers": "accelerate",
    "trl": "trl",
    "verl": "rl.verl",
    "verl-fsdp": "rl.verl",
}
# Whose files a plan of a framework is for that learns by reinforcement, and any other of one that has no program.
_LEARNING = {"megatron": "verl", "deepspeed": "openrlhf", "fsdp": "verl-fsdp"}
_PROGRAM = {"fsdp": "transformers"}
_RESERVED = tuple(f"{name}{ENDING}" for name in ("plan.json", "manifest.json", "trace.json"))  # files of any target
LAUNCHERS = ("slurm",)  # what is written where nobody says which, and there is something to start


@cache
def _target(name: str) -> Target:
    """Return a target of `MODULES` with its template folders and tasks; only its own module is imported. Cached."""
    module = importlib.import_module(f"{__name__}.{MODULES[name]}")
    found: Target = next(target for target in module.TARGETS if target.name == name)
    return found.placed(data_dir("templates"))


@cache
def targets() -> dict[str, Target]:
    """Return every target by name."""
    return {name: _target(name) for name in MODULES}


@cache
def every_launcher() -> dict[str, Target]:
    """Return every launcher by name."""
    from symconfig.render import launchers

    return {each.name: each.placed(data_dir("templates") / "launchers") for each in launchers.LAUNCHERS}


def named(name: str, known: Mapping[str, Target] | None = None) -> Target:
    """Return the target of this name; case is ignored. known: the targets to look in; None: symconfig's own, of which
    only this one's module is imported. Raises InputError with similar names for an unknown one.
    """
    if (own := called(name, MODULES if known is None else known)) is None:
        raise InputError(_unknown(MODULES if known is None else known, name, "target"))
    return _target(own) if known is None else known[own]


def overlaid(templates: Path) -> dict[str, Target]:
    """Return every target by name; one with a folder of its name in `templates` looks up its templates there first.
    Files and hidden folders in `templates` are ignored. Raises InputError if `templates` is no folder, and one with
    each folder that has no target's name and each that holds plan.json.j2, manifest.json.j2 or trace.json.j2.
    """
    known = targets()
    if "\0" in str(templates) or not templates.is_dir():
        raise InputError("there is no such folder", file=repr(str(templates)), field="--templates")
    folders = {path.name: path for path in sorted(templates.iterdir()) if path.is_dir() and path.name[0] != "."}
    problems = Problems(
        Problem("is no target", file=str(path), **among(name, known))
        for name, path in folders.items()
        if name not in known
    )
    problems.add(
        *(
            Problem("would stand in the place of a file that symconfig writes itself", file=str(path / name))
            for path in folders.values()
            for name in _RESERVED
            if (path / name).exists()
        )
    )
    problems.check()
    return {
        name: replace(target, folders=(folders[name], *target.folders)) if name in folders else target
        for name, target in known.items()
    }


def target_of(model: ModelDescriptor, job: Job) -> Target:
    """Return the target that the job names, else the default for its task, backend and model.

    In this order: preferences: llamafactory; RL: verl (megatron), openrlhf (deepspeed), verl-fsdp (fsdp); fsdp:
    transformers; vision: ms-swift (megatron) or llamafactory; no adapter: the backend's name; adapter: bridge if the
    job states backend megatron, else deepspeed. Raises InputError for an unknown target, InfeasibleError for
    preferences if the job states backend megatron.
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
    """Return plan.json, the files of `target`, then those of each launcher; REPORT.md is moved to the end.

    launch: launchers with settings (`target.split`); None: `usual_launchers`. templates: a folder of the user's
    templates (`overlaid`). Raises InputError for unknown names, wrong templates and equal paths, InfeasibleError for
    what target or launcher cannot express, or if there are launchers and the target writes no launch.sh.
    """
    launch = usual_launchers(plan, target, templates) if launch is None else launch
    first, *others = sources(target, launch, templates)
    own = first.files(plan, starts=[source.start for source in others])
    if others and not any(item.path == LAUNCH for item in own):
        raise InfeasibleError(
            f"the target {target!r} writes no {LAUNCH}, which is what launchers start",
            field="launcher",
            got=", ".join(source.name for source in others),
            hint=f"no launcher, or a {LAUNCH}.j2 among its templates",
        )
    made = together([(first, own), *((source, source.files(plan, Files(tuple(own)))) for source in others)])
    return Files((File("plan.json", plan.to_json()), *sorted(made, key=lambda item: item.path == "REPORT.md")))


def usual_launchers(plan: Plan, target: str, templates: Path | None) -> tuple[str, ...]:
    """Return ("slurm",) if the target has a launch.sh.j2 and it makes a file for this plan, else (). Its files are
    rendered to find out. templates: as in `render`. Raises InputError, InfeasibleError.
    """
    (target_source,) = sources(target, (), templates)
    starts = f"{LAUNCH}{ENDING}" in target_source.templates()
    return LAUNCHERS if starts and any(item.path == LAUNCH for item in target_source.files(plan)) else ()


def sources(target: str | None, launch: Sequence[str], templates: Path | None) -> list[Target]:
    """Return the target, if one is named, then each launcher with its settings; equal texts in `launch` count once.
    launch: texts like slurm:partition=big,time=2:00:00. templates: see `overlaid`, which may raise first. Raises one
    InputError with all unknown names, wrong settings, and launchers named twice with other settings.
    """
    known = None if templates is None else overlaid(templates)
    problems, starting = Problems(), dict[str, Target]()
    chosen = problems.read(lambda name: named(name, known), target)
    for word in dict.fromkeys(launch):
        if (source := problems.collect(partial(_launcher, word))) is not None:
            if source.name in starting:
                problems.add(Problem("is asked for twice", field="launcher", got=repr(source.name)))
            starting[source.name] = source
    problems.check()
    return [*filter(None, [chosen]), *starting.values()]


def _launcher(word: str) -> Target:
    """Return the launcher of a text like slurm:partition=big with its settings. Raises InputError."""
    name, given = split(word)
    if name not in every_launcher():
        raise InputError(_unknown(every_launcher(), name, "launcher"))
    return every_launcher()[name].with_settings(given)


def _unknown(known: Mapping[str, Target] | Mapping[str, str], name: str, field: str) -> Problem:
    return Problem(f"is not a {field}", field=field, got=repr(name), **among(name, known))
