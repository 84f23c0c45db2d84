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
from pathlib import Path
from types import ModuleType
from typing import Any

from symconfig.descriptor.task import Task
from symconfig.frameworks import counting
from symconfig.frameworks.counting import Counting
from symconfig.plans.plan import Plan
from symconfig.render import learning, step_words, summary, towers
from symconfig.render.files import ENDING, File, Files
from symconfig.render.going_on import GoesOn
from symconfig.render.learning import Compares, Learns
from symconfig.render.preflight import Want
from symconfig.render.settings import Setting, choose
from symconfig.render.unsaid import Saving, unsaid, unsaved
from symconfig.resources import data_dir
from symconfig.solve import whole


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A target, or a launcher.

    variables: of its templates, from a plan, of a launcher with the files and the chosen settings. texts: files that no
    template makes. start: how a person starts a launcher; settings: what may be set of it. assumes: fields of a job
    that are so where the job does not say otherwise: whose framework it runs on. counts: how its program counts a run
    that goes on from a checkpoint; goes_on: what a person then does. unsaid: fields of training that it does not pass
    on, and why. saving: how its program is told to save; without it, it saves unasked. tasks: what it is for; with
    learns (what of a step of reinforcement learning it can be told) or compares (of training on pairs) no others.
    towers: the multimodal models whose vision tower it trains.

    Set where it is found: folders, where its templates lie, the first that has one wins; shared, templates that others
    extend or include, which make no file; foreign, there are templates of a user's own among them; base, the target
    whose variables a user's own has, and with them what it can be told.
    """

    name: str
    does: str
    variables: Callable[..., Mapping[str, Any]]
    texts: Callable[[Plan], Iterable[File]] = lambda plan: ()
    settings: tuple[Setting, ...] = ()
    start: str = ""
    assumes: Mapping[str, str] = field(default_factory=dict)
    goes_on: GoesOn | None = None
    counts: Counting = counting.MEGATRON
    unsaid: Mapping[str, str] = field(default_factory=dict)
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
        """Return a launcher as somebody wants it: its templates have `settings` and `environment` (for launch.sh), too.

        Raises InputError.
        """
        chosen, inner = choose(self.settings, self.name, given), self.variables

        def variables(plan: Plan, files: Files) -> Mapping[str, object]:
            return {"settings": chosen.values, "environment": chosen.environment, **inner(plan, files, chosen)}

        return replace(self, variables=variables)

    def files(self, plan: Plan, *of: object, starts: Sequence[str] = ()) -> list[File]:
        """Return its files in a written order: templates by name, then texts. `of`: what else `variables` is given;
        `starts`: how each launcher is started.

        Raises InfeasibleError for what cannot be expressed, InputError for a template that is wrong.
        """
        from symconfig.render.fill import filled  # whoever asks what an option means renders nothing

        given = self.variables(plan, *of)
        values = {**common(plan, starts, self, given.get("wants", ())), **given}
        files = filled((*self.folders, *self.shared), self.templates(), values)
        made = {item.path for item in files}
        return [*files, *(item for item in self.texts(plan) if item.path not in made)]

    def remarks(self, plan: Plan) -> tuple[str, ...]:
        """Say what of the job's training the files do not pass on, and where no checkpoint is written."""
        return (*unsaid(plan, self.unsaid), *unsaved(plan, self.saving))

    def template_of(self, path: str) -> str | None:
        """Return where the template of this file lies; None of a file that no template makes."""
        places = (folder / f"{path}{ENDING}" for folder in self.folders)
        return next((str(place) for place in places if place.is_file()), None)

    def templates(self) -> tuple[str, ...]:
        """Return the templates' names, with forward slashes."""
        names = {path.relative_to(folder).as_posix() for folder in self.folders for path in folder.rglob(f"*{ENDING}")}
        return tuple(sorted(names))


def common(
    plan: Plan, starts: Sequence[str] = (), source: Target | None = None, wants: Iterable[Want] = ()
) -> dict[str, object]:
    """Return what every template may use. source: whose templates they are; wants: modules that options want."""
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
    """Return the targets or launchers of a package by name; `folder`: where each has its templates."""
    listed = [target(package, info.name, folder) for info in pkgutil.iter_modules(package.__path__)]
    return dict(sorted((each.name, each) for each in listed if each is not None))


def target(package: ModuleType, module_name: str, folder: Path) -> Target | None:
    """Return the target or launcher of one module; None where there is no such module, or it has none."""
    if importlib.util.find_spec(f"{package.__name__}.{module_name}") is None:
        return None
    module = importlib.import_module(f"{package.__name__}.{module_name}")
    one: Target | None = getattr(module, "TARGET", None) or getattr(module, "LAUNCHER", None)
    if one is None:
        return None
    if package.__name__ == __package__:
        tasks = learning.tasks(one.tasks, one.learns, one.compares)
        guarded = towers.guarded(one.name, one.towers, one.variables)
        one = replace(one, tasks=tasks, variables=learning.guarded(one.name, tasks, guarded))
    shared = (data_dir("templates") / "shared", data_dir("templates"))
    return replace(one, folders=(folder / one.name,), shared=shared, base=one.name)
