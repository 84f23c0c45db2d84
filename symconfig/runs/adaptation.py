"""A person's files with the values of a plan in them, and what becomes of the checkpoints that the files name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from symconfig.errors import InputError
from symconfig.existing.adapt.files import adapted, opened, was
from symconfig.existing.adapt.outcome import Adapted
from symconfig.existing.audit.judge import judge
from symconfig.existing.launch.read import ARGUMENTS
from symconfig.existing.launch.reading import Reading, Setting
from symconfig.existing.launch.text import Place
from symconfig.existing.recover.arguments import Arguments
from symconfig.existing.recover.namespace import Namespace
from symconfig.frameworks.backend import Medium
from symconfig.frameworks.known import BACKENDS
from symconfig.frameworks.megatron import flags
from symconfig.plans.plan import Plan
from symconfig.render import megatron
from symconfig.runs.checkpoint import Loadable, loadable, of_folder, read

_RESHARDABLE = "fully_reshardable"

# Options of programs that name the folder of checkpoints.
SAVES = ("save", "save_dir", "save_path", "output_dir", "checkpoint_dir", "save_checkpoint_path")
LOADS = ("load", "load_dir", "resume_from_checkpoint", "pretrained_checkpoint", "load_checkpoint_path")


@dataclass(frozen=True, slots=True)
class Fate:
    """A checkpoint folder that an option names; folder "": its name is unknown.

    loads: whether the run starts from it, or only saves there. seen: whether the folder was read; else its contents are
    those that the old files save. answer: None if unknown, with the reason in `why`.
    """

    option: str
    folder: str
    place: Place
    loads: bool
    seen: bool = False
    answer: Loadable | None = None
    why: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the fate as JSON values; "loadable" is None without an answer, "why" is None if empty."""
        return {
            "option": self.option,
            "folder": self.folder,
            "file": self.place.file,
            "line": self.place.line,
            "loads": self.loads,
            "seen": self.seen,
            "loadable": None if self.answer is None else self.answer.to_dict(),
            "why": self.why or None,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Adaptation(Adapted):
    """A user's files adapted to a plan. plan: the values in the files. fates: what becomes of each checkpoint that
    the files name.
    """

    plan: Plan
    fates: tuple[Fate, ...]

    def to_dict(self, written: bool) -> dict[str, Any]:
        """Return the JSON of `--json`: the adapted files, the plan's best candidate and the checkpoints. written:
        whether the files were written.
        """
        return {
            **Adapted.to_dict(self, written),
            "plan": {"best": self.plan.best.to_dict()},
            "checkpoints": [fate.to_dict() for fate in self.fates],
        }


def adaptation(
    source: str,
    plan: Plan,
    variables: Mapping[str, str],
    extra: Sequence[str] = (),
) -> Adaptation:
    """Return the user's files adapted to the plan, with what becomes of each checkpoint that they name. No file is
    written.

    variables: shell variables; extra: further arguments. Raises InputError if the files cannot be read, or are for
    another model or framework.
    """
    old = ran(opened(source, variables, extra).reading, plan)
    outcome = adapted(source, plan, variables, extra)
    values = {field.name: getattr(outcome, field.name) for field in fields(Adapted)}
    return Adaptation(**values, plan=plan, fates=fates(outcome, plan, old))


def ran(reading: Reading, plan: Plan) -> Plan | None:
    """Return the plan of the run as its files state it, with the model and training schedule of `plan`; None if they
    state no complete run.
    """
    try:
        old = judge(was(reading, plan), plan.cluster, plan.job.limits).plan
    except InputError:
        return None
    return replace(old, model=plan.model, job=old.job.model_copy(update={"training": plan.job.training}))


def fates(outcome: Adapted, plan: Plan, old: Plan | None) -> tuple[Fate, ...]:
    """Return what becomes of the checkpoint that the run loads, or else of the one that it saves; () if the files do
    not change.

    old: the plan of the run before; None if unknown.
    """
    if not outcome.changes:
        return ()
    return tuple(
        _fate(setting, loads, outcome.reading, plan, old)
        for setting, loads in _folders(outcome.reading)
        if setting.values
    )


def _folders(reading: Reading) -> Iterator[tuple[Setting, bool]]:
    """Yield (the option, whether the run loads from it): the load option with a folder, else the save option, else
    nothing.
    """
    arguments = Arguments(reading.settings)
    load, save = arguments.find(*LOADS), arguments.find(*SAVES)
    if load is not None and load.values and load.values[-1].text.lower() not in ("true", "false"):
        yield load, True
    elif save is not None:
        yield save, load is not None


def _fate(setting: Setting, loads: bool, reading: Reading, plan: Plan, old: Plan | None) -> Fate:
    """Return what becomes of a folder's checkpoint: read from this machine if it exists, else as the old run would save
    it.

    If that cannot be known, `answer` is None and `why` says so. Reading errors are not raised.
    """
    word = setting.values[-1]
    fate = Fate(setting.label, word.text, setting.place, loads)
    if word.unknown is not None:
        return replace(fate, folder="", why=f"its value {word.unknown}")
    folder = _folder(word.text, reading)
    if folder is not None:
        try:
            checkpoint = read(folder)
        except InputError as error:
            return replace(fate, why=str(error.problems[0]).rstrip("."))
        return replace(fate, seen=True, answer=of_folder(checkpoint, plan, old))
    if old is None:
        return replace(fate, why="not all of what ran before is known from these files")
    try:
        return replace(fate, answer=loadable(old, plan, _kind(reading, plan, old)))
    except InputError as error:
        return replace(fate, why=str(error.problems[0]).rstrip("."))


def _folder(name: str, reading: Reading) -> Path | None:
    """Return the folder if it exists, relative to the script or to the working directory; None otherwise."""
    bases = [Path()] if reading.file == ARGUMENTS else [Path(reading.file).parent, Path()]
    try:
        return next((base / name for base in bases if name and (base / name).is_dir()), None)
    except (OSError, ValueError):
        return None


def _kind(reading: Reading, plan: Plan, old: Plan) -> str | None:
    """Return the checkpoint's format that the old files save, `torch_dist:fully_reshardable` included; None for the
    backend's default.
    """
    if BACKENDS[plan.best.target.backend].told_by is not Medium.OPTIONS:
        return None
    names = Namespace(reading.settings, flags.flags(megatron.version(plan)))
    kind = str(names["ckpt_format"])
    if kind == "torch_dist" and names["dist_ckpt_optim_fully_reshardable"] and old.best.options.zero_stage:
        return f"{kind}:{_RESHARDABLE}"
    return kind
