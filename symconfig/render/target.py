"""What a target and a launcher are made of: a module that computes, and a folder of templates that only say it.

A module of this package with a `TARGET` is a target, one of `render.launchers` with a `LAUNCHER` a launcher; templates
lie in the folder of its name. Every `*.j2` of the folder makes the file of its name without `.j2`; one that gives
nothing but white space makes none.
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from types import ModuleType
from typing import Any

from symconfig.descriptor.task import PREFERRING, Task
from symconfig.descriptor.training import Training
from symconfig.errors import InfeasibleError, InputError, Problem
from symconfig.frameworks import counting
from symconfig.frameworks.counting import Counting
from symconfig.plans.plan import Plan
from symconfig.render import learning, step_words, summary
from symconfig.render.files import ENDING, File, Files
from symconfig.render.learning import Compares, Learns
from symconfig.render.resume import ResumeCommand, Saving
from symconfig.render.settings import Setting, choose
from symconfig.render.summary import Want
from symconfig.resources import data_dir
from symconfig.solve import whole

_ELSEWHERE = {**dict.fromkeys(PREFERRING, "--target llamafactory"), "rl": "--target verl"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A target, or a launcher.

    variables: a function of a plan (for a launcher also of the files and its settings) that returns the templates'
    variables. texts: files without a template. start: how a user runs the launcher; settings: what can be set of it.
    assumes: fields of a job that it sets by default, such as the backend. counts: how its program counts steps of a
    resumed run; resume_command: the command to resume. ignored_fields: training fields that it does not pass on, with
    the reasons. saving: how to make its program save; None: it always saves. tasks: the tasks that it supports; learns,
    compares: what it supports of RL and of preference training, which are then its only tasks unless it lists more.
    towers: multimodal models whose vision tower it trains.

    Set by `target`: folders, searched for templates in order; shared, templates to extend or include, which make no
    files; foreign, some templates are the user's; base, the target whose variables a user's target has.
    """

    name: str
    does: str
    variables: Callable[..., Mapping[str, Any]]
    texts: Callable[[Plan], Iterable[File]] = lambda plan: ()
    settings: tuple[Setting, ...] = ()
    start: str = ""
    assumes: Mapping[str, str] = field(default_factory=dict)
    resume_command: ResumeCommand | None = None
    counts: Counting = counting.MEGATRON
    ignored_fields: Mapping[str, str] = field(default_factory=dict)
    saving: Saving | None = None
    tasks: tuple[Task, ...] = ()
    learns: Learns | None = None
    compares: Compares | None = None
    towers: Mapping[str, str] = field(default_factory=dict)
    folders: tuple[Path, ...] = ()
    shared: tuple[Path, ...] = ()
    foreign: bool = False
    base: str = ""

    def with_settings(self, given: Mapping[str, str]) -> Target:
        """Return the launcher with these settings; its templates get `settings` and `environment` (for launch.sh).

        Raises InputError.
        """
        chosen, inner = choose(self.settings, self.name, given), self.variables

        def variables(plan: Plan, files: Files) -> Mapping[str, object]:
            return {"settings": chosen.values, "environment": chosen.environment, **inner(plan, files, chosen)}

        return replace(self, variables=variables)

    def files(self, plan: Plan, *of: object, starts: Sequence[str] = ()) -> list[File]:
        """Return the files: from templates by name, then texts that no template has replaced.

        of: further arguments of `variables`. starts: how each launcher is started. Raises InfeasibleError for what the
        target cannot express, InputError for a wrong template.
        """
        from symconfig.render.fill import filled  # whoever asks what an option means renders nothing

        given = self.variables(plan, *of)
        values = {**common(plan, starts, self, given.get("wants", ())), **given}
        files = filled((*self.folders, *self.shared), self.templates(), values)
        made = {item.path for item in files}
        return [*files, *(item for item in self.texts(plan) if item.path not in made)]

    def remarks(self, plan: Plan) -> tuple[str, ...]:
        """Return a sentence for each training field that is set but not passed on, and one if no checkpoint will be
        saved.
        """
        values = {name: getattr(plan.training, name) for name in self.ignored_fields}
        sentences = [
            f"training.{name} {' '.join(value) if isinstance(value, tuple) else value} is not passed on: "
            f"{self.ignored_fields[name]}"
            for name, value in values.items()
            if value != Training.model_fields[name].default
        ]
        if plan.training.save is None and self.saving is not None:
            sentences.append(
                f"No checkpoint is written. Try: --save DIR, training.save in the job, or {self.saving.command}"
            )
        return tuple(sentences)

    def templates(self) -> tuple[str, ...]:
        """Return the sorted relative paths of its templates, with forward slashes."""
        names = {path.relative_to(folder).as_posix() for folder in self.folders for path in folder.rglob(f"*{ENDING}")}
        return tuple(sorted(names))


LAUNCH = "launch.sh"  # what a target writes for its launchers to start


def startable(target: str, own: Sequence[File], launchers: Sequence[Target]) -> None:
    """Raise InfeasibleError if there are launchers, but the target writes no launch.sh."""
    if launchers and not any(item.path == LAUNCH for item in own):
        raise InfeasibleError(
            f"the target {target!r} writes no {LAUNCH}, which is what launchers start",
            field="launcher",
            got=", ".join(source.name for source in launchers),
            hint=f"no launcher, or a {LAUNCH}.j2 among its templates",
        )


def together(made: Sequence[tuple[Target, Sequence[File]]]) -> list[File]:
    """Return the files of all sources.

    Raises InputError if two write the same path, or one's file is another's folder.
    """
    whose: dict[str, Target] = {}
    problems = []
    for source, files in made:
        for item in files:
            if (other := whose.setdefault(item.path, source)) is not source:
                what = f"{item.path} is written by {other.name} and by {source.name}"
                hint = "another name for the template, or another --launcher"
                problems.append(Problem(what, file=_template(item.path, other, source), hint=hint))
    for path, source in whose.items():
        for parent in map(str, PurePosixPath(path).parents):
            if parent in whose:
                what = f"needs a folder where {whose[parent].name} writes the file {parent}"
                problems.append(Problem(what, file=_template(path, source), hint="another name for the template"))
    if problems:
        raise InputError(problems)
    return [item for _, files in made for item in files]


def _template(path: str, *sources: Target) -> str:
    """Return the path of the template that makes a file, the user's own first; the file's path if no template does."""
    ranked = sorted(sources, key=lambda source: not source.foreign)
    places = (folder / f"{path}{ENDING}" for source in ranked for folder in source.folders)
    return next((str(place) for place in places if place.is_file()), path)


def common(
    plan: Plan, starts: Sequence[str] = (), source: Target | None = None, wants: Iterable[Want] = ()
) -> dict[str, object]:
    """Return the variables that every template gets.

    starts: how launchers are started. source: the target that the templates belong to. wants: modules that options
    need.
    """
    return {
        "plan": plan,
        "best": plan.best,
        "model": plan.model,
        "cluster": plan.cluster,
        "training": plan.training,
        "nodes": summary.nodes(plan),
        "summary": summary.words(plan, wants),
        "starts": tuple(starts),
        "passed_on": (*whole.why(plan), *(source.remarks(plan) if source else ())),
        "saving": source.saving if source else None,
        "phases": step_words.phases(plan),
    }


def discovered(package: ModuleType, folder: Path) -> dict[str, Target]:
    """Return the targets or launchers of a package by name, sorted.

    folder: the one that holds their template folders.
    """
    listed = [target(package, info.name, folder) for info in pkgutil.iter_modules(package.__path__)]
    return dict(sorted((each.name, each) for each in listed if each is not None))


def target(package: ModuleType, module_name: str, folder: Path) -> Target | None:
    """Return the target or launcher of one module, with its template folders.

    Return None if there is no such module or it defines none. A target's variables then refuse tasks and vision towers
    that it does not support.
    """
    if importlib.util.find_spec(f"{package.__name__}.{module_name}") is None:
        return None
    module = importlib.import_module(f"{package.__name__}.{module_name}")
    one: Target | None = getattr(module, "TARGET", None) or getattr(module, "LAUNCHER", None)
    if one is None:
        return None
    if package.__name__ == __package__:
        tasks = learning.tasks(one.tasks, one.learns, one.compares)
        one = replace(one, tasks=tasks, variables=_guarded(one, tasks))
    shared = (data_dir("templates") / "shared", data_dir("templates"))
    return replace(one, folders=(folder / one.name,), shared=shared, base=one.name)


def _guarded(one: Target, tasks: tuple[Task, ...]) -> Callable[..., Mapping[str, Any]]:
    """Return the target's `variables`, which now raise InfeasibleError for an unsupported task or vision tower."""

    def variables(plan: Plan, *of: Any) -> Mapping[str, Any]:
        if plan.task not in tasks:
            what, need = f"{one.name} is not for this task", " or ".join(tasks)
            raise InfeasibleError(what, field="task", got=plan.task, need=need, hint=_ELSEWHERE.get(plan.task))
        vision = plan.model.vision
        if vision is not None and vision.model_type not in one.towers:
            what = f"{one.name} trains no vision tower" + (" of this model" if one.towers else "")
            hint = "--images-per-sequence 0, to train the language model alone on text"
            raise InfeasibleError(what, field="vision", got=vision.model_type, hint=hint)
        return one.variables(plan, *of)

    return variables
