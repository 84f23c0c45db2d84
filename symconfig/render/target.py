"""What a target and a launcher are made of: functions that compute, and a folder of templates that only say it.

Every `*.j2` of the folder makes the file of its name without `.j2`; one that gives nothing but white space makes none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any, TypeAlias

from symconfig.descriptor import learning_rate
from symconfig.descriptor.job import Job
from symconfig.descriptor.task import PLAIN, PREFERRING, TASKS, Task
from symconfig.descriptor.training import Training
from symconfig.descriptor.tuning import LOSSES
from symconfig.errors import InfeasibleError, InputError, Problem, Problems, among
from symconfig.plans.plan import Plan
from symconfig.render import shared
from symconfig.render.files import ENDING, File, Files
from symconfig.render.learning import Compares, Learns
from symconfig.render.shared import MEGATRON_COUNTING, Counting, program_problems
from symconfig.resources import data_dir
from symconfig.solve.run import learning_rate_key

LAUNCH = "launch.sh"  # what a target writes for its launchers to start
_ELSEWHERE = {**dict.fromkeys(PREFERRING, "--target llamafactory"), "rl": "--target verl"}
# A function of a plan and of options of the framework's own program (Megatron-LM's pretrain_gpt.py, train.py) by which
# it resumes. It returns the command; None where the target has no words for one of them.
ResumeCommand: TypeAlias = Callable[[Plan, Sequence[str]], str | None]


@dataclass(frozen=True, slots=True)
class Saving:
    """How to make a run save checkpoints. word: the text that a command with saving contains. command: an example."""

    word: str
    command: str


def ignored(program: str, **others: str) -> dict[str, str]:
    """Return {training field: reason} of what a program around a published model does not take: tokenizer and gc
    interval. others: further fields, which come first.
    """
    tokenizer = f"{program} takes the model's tokenizer"
    gc = f"{program} leaves garbage collection to Python"
    return {**others, "tokenizer_model": tokenizer, "tokenizer_type": tokenizer, "manual_gc_interval": gc}


def launched(plan: Plan, words: Sequence[str]) -> str:
    """Return the command that resumes a run: launch.sh with the framework's own options."""
    return f"bash launch.sh {' '.join(words)}"


def translated(known: Mapping[str, str]) -> ResumeCommand:
    """Return a `resume_command` that translates Megatron-LM's options by a table of templates ("{}" is the value); an
    option mapped to "" is dropped. It returns None if the table lacks any of the options.
    """

    def command(plan: Plan, words: Sequence[str]) -> str | None:
        """Return the command of launch.sh with the translated words; None if the table lacks an option. A word without
        dashes is the value of the option before it; the last value of a repeated option counts.
        """
        given: dict[str, str] = {}  # a switch has the value ""
        name = ""
        for word in words:
            if word.startswith("--"):
                name, _, value = word.partition("=")
                given[name] = value
            else:
                given[name] = word
        if not given.keys() <= known.keys():
            return None
        return " ".join(("bash launch.sh", *filter(None, (known[name].format(given[name]) for name in given))))

    return command


ENVIRONMENT = "env."  # env.NAME=VALUE: a variable that launch.sh then finds on every node, with any launcher
# What a launcher tells launch.sh of the nodes and of the process, or launch.sh the processes: no setting may differ.
LAUNCHER_VARIABLES = frozenset(
    {"NNODES", "GPUS_PER_NODE", "NODE_RANK", "MASTER_ADDR", "PER_RANK", "RANK", "LOCAL_RANK", "WORLD_SIZE"}
)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SETTING = re.compile(r"[a-z][a-z0-9-]*|env\.[^=,]*")


@dataclass(frozen=True, slots=True)
class Setting:
    """A launcher's setting. default: None: it is left out of the files."""

    name: str
    does: str
    default: str | None = None
    pattern: str = r"[A-Za-z0-9_.,:@/+-]+"
    need: str = "letters, digits and any of _ . , : @ / + -"


@dataclass(frozen=True, slots=True)
class Chosen:
    """The values of one launcher's settings, and variables for launch.sh."""

    values: Mapping[str, str | None]
    environment: Mapping[str, str]


def split(launcher: str) -> tuple[str, dict[str, str]]:
    """Return (name, settings) of a launcher's text like slurm:partition=big,time=2:00:00. A comma belongs to the value
    before it unless `name=` or `env.NAME=` follows. Raises InputError if the first part is no `name=value`, and for a
    setting given twice.
    """
    name, _, rest = launcher.partition(":")
    settings: dict[str, str] = {}
    last = None
    for part in rest.split(",") if rest else ():
        key, equals, value = part.partition("=")
        if equals and _SETTING.fullmatch(key):
            if key in settings:
                raise InputError("is set twice", field=f"{name}:{key}", got=f"{settings[key]!r} and {value!r}")
            settings[key] = value
            last = key
        elif last is None:
            raise InputError("is no setting", field=f"launcher {name}", got=repr(part), need="name=value")
        else:
            settings[last] += f",{part}"
    return name, settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A target, or a launcher.

    variables: a function of a plan (for a launcher also of the files and its settings) that returns the templates'
    variables. problems: what its program does not support of a plan, for which it is refused before; words: the words
    of its command line, where its program takes all of a plan so. texts: files without a template. start: how a user
    runs the launcher; settings: what can be set of it. assumes: fields of a job that it sets by default, such as the
    backend. counts: how its program counts steps of a resumed run; resume_command: the command to resume; None: how it
    resumes is not known. ignored_fields: training fields that it does not pass on, with the reasons. saving: how to
    make its program save; None: it always saves. tasks: the tasks that it supports; learns, compares: what it supports
    of RL and of preference training, whose tasks are added to `tasks`. towers: multimodal models whose vision tower it
    trains. program: its name in messages; "": that of the target.

    Set by `placed`: folders, searched for templates in order; shared, templates to extend or include, which make no
    files.
    """

    name: str
    does: str
    variables: Callable[..., Mapping[str, Any]]
    problems: Callable[[Plan], Iterable[Problem]] = lambda plan: ()
    words: Callable[[Plan], Sequence[str]] | None = None
    texts: Callable[[Plan], Iterable[File]] = lambda plan: ()
    settings: tuple[Setting, ...] = ()
    start: str = ""
    assumes: Mapping[str, str] = field(default_factory=dict)
    resume_command: ResumeCommand | None = None
    counts: Counting = MEGATRON_COUNTING
    ignored_fields: Mapping[str, str] = field(default_factory=dict)
    saving: Saving | None = None
    tasks: tuple[Task, ...] = ()
    learns: Learns | None = None
    compares: Compares | None = None
    towers: Mapping[str, str] = field(default_factory=dict)
    program: str = ""
    folders: tuple[Path, ...] = ()
    shared: tuple[Path, ...] = ()

    def placed(self, folder: Path) -> Target:
        """Return a copy with `folder`/name as its template folder, the shared template folders, and with all of its
        tasks: its own, then "rl" with `learns` and those of the losses in `compares`, in the order of TASKS; PLAIN
        without any of these. A launcher (one with `start`) has no tasks.
        """
        special = {LOSSES[loss].task for loss in self.compares.losses} if self.compares else set()
        added = tuple(task for task in TASKS if task in special or (task == "rl" and self.learns))
        tasks = () if self.start else (*(self.tasks or (() if added else PLAIN)), *added)
        general = (data_dir("templates") / "shared", data_dir("templates"))
        return replace(self, tasks=tasks, folders=(folder / self.name,), shared=general)

    def with_settings(self, given: Mapping[str, str]) -> Target:
        """Return a copy of the launcher with these settings, defaults included; its templates get `settings` and
        `environment`. `environment`: the variables `env.NAME` for launch.sh; they may not be those that launchers set,
        and their values must be one printable line. Raises one InputError with every unknown setting and wrong value.
        """
        known = {setting.name: setting for setting in self.settings}
        problems = []
        for key, value in given.items():
            field = f"{self.name}:{key}"
            if key.startswith(ENVIRONMENT):
                variable = key.removeprefix(ENVIRONMENT)
                if not _VARIABLE.fullmatch(variable):
                    problems.append(Problem("is no name of a variable", field=field, need="env.NAME"))
                elif variable in LAUNCHER_VARIABLES:
                    what = "is what the launcher itself tells launch.sh, by the plan and the node"
                    problems.append(Problem(what, field=field, got=repr(value), need="another variable"))
                elif not value.isprintable():
                    problems.append(Problem("wrong value", field=field, got=repr(value), need="one printable line"))
            elif key not in known:
                near = among(key, (*known, f"{ENVIRONMENT}NAME"))
                problems.append(Problem("is not a setting of this launcher", field=field, **near))
            elif not re.fullmatch(known[key].pattern, value):
                problems.append(Problem("wrong value", field=field, got=repr(value), need=known[key].need))
        Problems(problems).check()
        chosen = Chosen(
            {key: given.get(key, setting.default) for key, setting in known.items()},
            {key.removeprefix(ENVIRONMENT): value for key, value in given.items() if key.startswith(ENVIRONMENT)},
        )
        inner = self.variables

        def variables(plan: Plan, files: Files) -> Mapping[str, object]:
            """Return the launcher's own variables with `settings` and `environment`, which they may replace."""
            return {"settings": chosen.values, "environment": chosen.environment, **inner(plan, files, chosen)}

        return replace(self, variables=variables)

    def assuming(self, job: Job) -> Job:
        """Return a copy of the job whose unset fields have the target's values in `assumes`."""
        return job.model_copy(update={name: v for name, v in self.assumes.items() if name not in job.model_fields_set})

    def refusals(self, plan: Plan) -> tuple[Problem, ...]:
        """Return the problems of `refuse` and of the templates' variables for which the target cannot express a plan;
        () if it can. Raises InputError for wrong values of the job.
        """
        try:
            self.checked_variables(plan)
        except InfeasibleError as error:
            return error.problems
        return ()

    def refuse(self, plan: Plan) -> None:
        """Raise InfeasibleError for an unsupported task, or a vision tower that it does not train, or else with all
        problems of the plan. The problems are those of RL or preference training (`learns`, `compares`), its program's
        constraints (`frameworks/programs.py`), and `problems`. A launcher has only the last, none by default.
        """
        if self.tasks and plan.task not in self.tasks:
            what, need = f"{self.name} is not for this task", " or ".join(self.tasks)
            raise InfeasibleError(what, field="task", got=plan.task, need=need, hint=_ELSEWHERE.get(plan.task))
        vision = plan.model.vision
        if self.tasks and vision is not None and vision.model_type not in self.towers:
            what = f"{self.name} trains no vision tower" + (" of this model" if self.towers else "")
            hint = "--images-per-sequence 0, to train the language model alone on text"
            raise InfeasibleError(what, field="vision", got=vision.model_type, hint=hint)
        kind = self.learns if plan.job.rl is not None else self.compares if plan.job.preference is not None else None
        of_kind = () if kind is None else kind.unsupported(plan, self.program or self.name)
        if faults := (*of_kind, *program_problems(plan, self.name), *self.problems(plan)):
            raise InfeasibleError(faults)

    def checked_variables(self, plan: Plan, *of: object) -> Mapping[str, Any]:
        """Return the templates' variables after `refuse`; of: further arguments of `variables`. Raises InfeasibleError,
        InputError."""
        self.refuse(plan)
        return self.variables(plan, *of)

    def files(self, plan: Plan, *of: object, starts: Sequence[str] = ()) -> list[File]:
        """Return the files: from templates by name, without those that come out blank, then texts whose path no file
        has yet. of: further arguments of `variables`, for launchers. starts: how each launcher is started. Raises
        InfeasibleError for what the target cannot express, InputError for a wrong template.
        """
        from symconfig.render.fill import filled  # whoever asks what an option means renders nothing

        given = self.checked_variables(plan, *of)
        values = {**common(plan, starts, self), **given}
        files = filled((*self.folders, *self.shared), self.templates(), values)
        made = {item.path for item in files}
        return [*files, *(item for item in self.texts(plan) if item.path not in made)]

    def remarks(self, plan: Plan) -> tuple[str, ...]:
        """Return a sentence for each field of `ignored_fields` that is not at its default, and one if no checkpoint
        will be saved. The latter only if training.save is None and the program has an option for saving.
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


def together(made: Sequence[tuple[Target, Sequence[File]]]) -> list[File]:
    """Return the files of all sources in order; a source may repeat its own path. Raises InputError if two write the
    same path, or a file's path is another's folder.
    """
    whose: dict[str, str] = {}
    problems = Problems()
    for source, item in ((source, item) for source, files in made for item in files):
        if (other := whose.setdefault(item.path, source.name)) != source.name:
            what = f"is written by {other} and by {source.name}"
            problems.add(Problem(what, file=item.path, hint="another name for the template, or another --launcher"))
    for path, name in whose.items():
        for parent in {*map(str, PurePosixPath(path).parents)} & whose.keys():
            what = f"{name} needs a folder where {whose[parent]} writes the file {parent}"
            problems.add(Problem(what, file=path, hint="another name for the template"))
    problems.check()
    return [item for _, files in made for item in files]


def common(plan: Plan, starts: Sequence[str] = (), source: Target | None = None) -> dict[str, object]:
    """Return the variables that every template gets, before its target's own. starts: how launchers are started.

    source: the target that the templates belong to; None: no remarks and no saving. `predicted_for` says that the times
    are another framework's: of a plan that was not made for the target's own, and always without a target.
    """
    backend, other = source.assumes.get("backend", "") if source else "", ""
    if plan.best.target.backend != backend:
        other = (
            "The plan was made for the other framework, and these times and bytes are what that one would take: "
            f"`symconfig plan --backend {backend}` predicts them for this one."
        )
    return {
        "plan": plan,
        "best": plan.best,
        "model": plan.model,
        "cluster": plan.cluster,
        "training": plan.training,
        "nodes": shared.nodes(plan),
        "wants": (),
        "starts": tuple(starts),
        "passed_on": (
            *learning_rate.why(plan.training, *learning_rate_key(plan.task, plan.model)),
            *(source.remarks(plan) if source else ()),
        ),
        "saving": source.saving if source else None,
        "predicted_for": other,
    }
